"""Words for operations and the lines of a script that call them."""

import re
from collections.abc import Sequence
from itertools import groupby

from common.diagnose.recorded.operations.operation_names import is_selection
from common.diagnose.recorded.operations.section_side import SectionSide
from common.errors import escape_control_characters, one_line
from common.recording.operation_format import Operation
from common.recording.record_format import ROOT

FIT = re.compile(r"\.(fit|train_on_batch)\(")
MOST_OPERATIONS = 4  # of a script, in a sentence
MOST_CHARACTERS = 80  # of the arguments of an operation
MOST_CHARACTERS_OF_TEXT = 160


def describe_lines(side: SectionSide, operations: Sequence[Operation]) -> str:
    """Return words for operations, with the lines of the script that call them."""
    parts = []
    for place, group in groupby(operations[:MOST_OPERATIONS], key=lambda x: (x["file"], x["line"], x["code"])):
        of_line = [*group]
        described = ", ".join(_describe(side, operation) for operation in of_line)
        parts.append(described + _describe_place(*place, of_line[0]))
    remaining = len(operations) - MOST_OPERATIONS
    return "; ".join([*parts, *([f"and {remaining} more"] if remaining > 0 else [])])


def locate(operation: Operation) -> str:
    """Return file and line of an operation, after the elements that it selects if it does.

    An operation of a functional model has the line that trains the model: its name and its layer are its place.
    """
    if _is_in_fit(operation):
        return shorten(operation["name"]) + _describe_layer(operation)
    place = f"{shorten(operation['file'])}:{operation['line']}"
    return f"{_write_selection(operation)} in {place}" if is_selection(operation) else place


def _write_selection(operation: Operation) -> str:
    """Return an operation that selects elements in the notation that the frameworks share, such as `x[:, -1]`."""
    return shorten(f"x{operation['arguments']['index']}")


def _describe(side: SectionSide, operation: Operation) -> str:
    if is_selection(operation):
        return _write_selection(operation)
    # The framework passes private ones, such as _stacklevel, to itself
    arguments = [
        str(value) if name.isdigit() else f"{name}={value}"
        for name, value in operation["arguments"].items()
        if value is not None and not name.startswith("_")
    ]
    text = ", ".join([*arguments, *(f"{number:.6g}" for number in side.list_numbers(operation))])
    layer = side.find_layer(operation)
    words = text if len(text) <= MOST_CHARACTERS else f"{text[:MOST_CHARACTERS]}..."
    return shorten(f"{operation['name']}{f'({words})' if words else ''}{f' {layer}' if layer else ''}")


def _is_in_fit(operation: Operation) -> bool:
    """Check whether the script's line of a layer's operation only trains the whole model."""
    return bool(operation["layer"]) and bool(FIT.search(operation["code"]))


def _describe_place(file: str, line: int, code: str, operation: Operation) -> str:
    if _is_in_fit(operation):
        return _describe_layer(operation)
    if file:
        return f" in {shorten(file)}:{line} `{shorten(code)}`"
    return _describe_layer(operation)


def _describe_layer(operation: Operation) -> str:
    """Return words for the layer whose code computes an operation; empty if it is the model itself, or none."""
    return f" in layer {shorten(operation['layer'])}" if operation["layer"] not in ("", ROOT) else ""


def shorten(text: str) -> str:
    """Return a text of a record, which may come from somebody else, as a part of one line."""
    return escape_control_characters(one_line(text))[:MOST_CHARACTERS_OF_TEXT]


def describe_layouts(sides: Sequence[SectionSide], tensors: Sequence[Sequence[int]]) -> str:
    """Return words for the operations of each side that give tensors their order; empty if both have none."""
    operations = [side.list_layouts(x) for side, x in zip(sides, tensors, strict=True)]
    if not any(operations):
        return ""
    parts = [
        f"{name} computes {describe_lines(side, listed) if listed else 'nothing'}"
        for name, side, listed in zip("AB", sides, operations, strict=True)
    ]
    return " and ".join(parts)
