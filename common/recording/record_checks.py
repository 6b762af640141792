"""Checks of the content of record.json, which may come from somebody else, against its format."""

import math
import types
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, Union, cast, get_args, get_origin, get_type_hints, is_typeddict

from common.errors import UserError, one_line
from common.recording.operation_format import MOST_OPERATIONS, MOST_PARTS, OperationTrace
from common.recording.record_format import FORMAT, READABLE_FORMATS, RecordFacts
from common.records.files import is_count, is_number, read_json_object

FRAMEWORKS = ("torch", "tensorflow")
MOST_RANKS, MOST_STEPS = 100_000, 10_000
MOST_AXES, MOST_ELEMENTS = 256, 2**63 - 1  # of a tensor in either framework
# For each type that the format may give to a value: its description in errors, and the check of a value
TITLES: dict[object, str] = {
    str: "a text",
    bool: "true or false",
    int: "a whole number from 0 on",
    float: "a number",
}
PREDICATES: dict[object, Callable[[object], bool]] = {
    str: lambda value: isinstance(value, str),
    bool: lambda value: isinstance(value, bool),
    int: is_count,
    float: is_number,
}


def read_facts(file: Path) -> RecordFacts:
    """Read record.json. Raise UserError that names the file and the value if it is damaged or of another format."""
    content = read_json_object(file)
    version = content.get("format")
    if not is_count(version):
        raise UserError(f"{file}: has no number 'format', so it is not the file of a record; pass another directory")
    if version not in READABLE_FORMATS:
        advice = "update Lockstep" if version > FORMAT else "record the script again"
        known = " and ".join(map(str, READABLE_FORMATS))
        raise UserError(f"{file}: has format {version}, and this version of Lockstep reads formats {known}; {advice}")
    _check(content, RecordFacts, f"{file}: ")
    facts = cast(RecordFacts, content)
    if facts["framework"] not in FRAMEWORKS:
        raise UserError(f"{file}: framework must be one of {', '.join(FRAMEWORKS)}, is {facts['framework'][:60]!r}")
    if not facts["rank"] < facts["world_size"] <= MOST_RANKS:
        raise UserError(f"{file}: has rank {facts['rank']} of {facts['world_size']}; record the script again")
    steps = [step["step"] for step in facts["steps"]]
    if steps != sorted(set(steps)) or steps[:1] == [0] or len(steps) > MOST_STEPS:
        raise UserError(f"{file}: its steps are not in order; record the script again")
    factors = [factor for step in facts["steps"] for factor in step.get("clip_factors", {}).values()]
    if not all(0 < factor < math.inf for factor in factors):
        raise UserError(f"{file}: clip_factors must be numbers above 0; record the script again")
    decays = [decay for step in facts["steps"] for decay in step.get("decays", {}).values()]
    if not all(map(math.isfinite, decays)):
        raise UserError(f"{file}: decays must be finite numbers; record the script again")
    return facts


def read_operations(file: Path) -> OperationTrace:
    """Read operations.json. Raise UserError that names the file and the value if it is damaged."""
    content = read_json_object(file)
    _check(content, OperationTrace, f"{file}: ")
    trace = cast(OperationTrace, content)
    operations, count = trace["operations"], len(trace["tensors"])
    statistics = [tensor[key] for tensor in trace["tensors"] for key in ("sum", "norm", "minimum", "maximum")]
    if not all(number is None or math.isfinite(number) for number in statistics):
        raise UserError(f"{file}: statistics of tensors must be finite numbers or null; record the script again")
    centers = [tensor["centers"] for tensor in trace["tensors"] if "centers" in tensor]
    if not all(map(math.isfinite, (number for numbers in centers for number in numbers))):
        raise UserError(f"{file}: centers of tensors must be finite numbers; record the script again")
    if any(len(tensor["centers"]) != len(tensor["shape"]) for tensor in trace["tensors"] if "centers" in tensor):
        raise UserError(f"{file}: a tensor needs a center for each axis; record the script again")
    shapes = [tensor["shape"] for tensor in trace["tensors"]]
    if not all(len(shape) <= MOST_AXES and math.prod(shape) <= MOST_ELEMENTS for shape in shapes):
        raise UserError(f"{file}: a tensor has too many axes or elements; record the script again")
    if len(operations) > MOST_OPERATIONS:
        raise UserError(f"{file}: lists more than {MOST_OPERATIONS} operations; record the script again")
    parts = [part for operation in operations for part in operation.get("parts", ())]
    if len(parts) > MOST_PARTS:
        raise UserError(f"{file}: lists more than {MOST_PARTS} parts of operations; record the script again")
    numbers = [
        number for operation in (*operations, *parts) for number in (*operation["inputs"], *operation["outputs"])
    ]
    numbers += [*trace["names"].values(), *([] if trace["loss"] is None else [trace["loss"]])]
    if max(numbers, default=0) >= max(count, 1):
        raise UserError(f"{file}: names tensor {max(numbers)}, and has {count} tensors; record the script again")
    return trace


def _check(value: object, expected: object, path: str) -> None:
    """Raise UserError if a JSON value does not have the type that the format gives it.

    Args:
        value: The value.
        expected: The type: a TypedDict, list, dict, a union with None, object, or a key of PREDICATES.
        path: Path of the value in the file, with a separator at the end, for the error.
    """
    origin, arguments = get_origin(expected), get_args(expected)
    if expected is object:
        return
    if origin in (Union, types.UnionType):
        if value is not None:
            _check(value, next(argument for argument in arguments if argument is not type(None)), path)
    elif is_typeddict(expected):
        _check_keys(value, expected, path)
    elif origin in (list, dict):
        if not isinstance(value, origin):
            raise _build_error(value, "a list" if origin is list else "an object", path)
        items = value.items() if isinstance(value, dict) else enumerate(value)
        for key, item in items:
            _check(item, arguments[-1], f"{path}{key}.")
    elif not PREDICATES[expected](value):
        raise _build_error(value, TITLES[expected], path)


_find_hints = cache(get_type_hints)


def _check_keys(value: object, format_class: Any, path: str) -> None:  # noqa: ANN401  a TypedDict
    if not isinstance(value, dict):
        raise _build_error(value, "an object", path)
    for key, expected in _find_hints(format_class).items():
        if key not in value and key in format_class.__optional_keys__:
            continue
        if key not in value:
            raise UserError(f"{path}{key} is missing; record the script again")
        _check(value[key], expected, f"{path}{key}.")


def _build_error(value: object, title: str, path: str) -> UserError:
    text = one_line(repr(value))[:60]
    return UserError(f"{path.removesuffix('.')[:300]} must be {title}, is {text}; record the script again")
