"""Copies of a part of a model within the model, which the script does not train, such as a momentum encoder.

In the other script the copy may be a model of its own, which its recorder does not have. Its variables must then not be
paired with those of the part that both scripts train.
"""

from collections.abc import Sequence
from typing import cast

from common.diagnose.recorded.recorded_model import RecordedModel
from common.recording.record_format import ModelFacts, VariableFacts


def remove_passive_copies(model: RecordedModel, other: RecordedModel) -> RecordedModel:
    """Return a model without its passive copies, or as it is unless the other model lacks as many variables."""
    copies = list_passive_copies(model)
    missing = _count_floats(model) - _count_floats(other)
    if not copies or missing < len(copies) / 2:
        return model
    layers = [layer for layer in model.facts["layers"] if not copies.keys() & {*layer["variables"].values()}]
    variables = {name: facts for name, facts in model.facts["variables"].items() if name not in copies}
    return RecordedModel(model.is_torch, cast(ModelFacts, {**model.facts, "layers": layers, "variables": variables}))


def list_passive_copies(model: RecordedModel) -> dict[str, str]:
    """Return the variables of passive copies, and the variables of which they are copies.

    A passive copy is a part whose variables are all frozen, or none of whose layers the script calls, beside another
    part of the same shapes that is trained and called.
    """
    separator = "." if model.is_torch else "/"
    variables = model.facts["variables"]
    called = {name for layer in model.facts["layers"] for name in layer["variables"].values()}

    def identify(path: str, names: Sequence[str]) -> tuple[object, ...]:
        return path.rpartition(separator)[0], *(tuple(variables[name]["shape"]) for name in names)

    parts: dict[str, list[str]] = {}
    for name in variables:
        components = name.split(separator)
        for count in range(1, len(components)):
            parts.setdefault(separator.join(components[:count]), []).append(name)
    active: dict[tuple[object, ...], list[str]] = {}  # the variables of the first trained part by parent and shapes
    for path, names in parts.items():
        if _is_trained(names, variables) and not called.isdisjoint(names):
            active.setdefault(identify(path, names), names)
    copies: dict[str, str] = {}
    for path, names in parts.items():
        is_passive = not _is_trained(names, variables) or called.isdisjoint(names)
        if is_passive and len(names) > 1 and copies.keys().isdisjoint(names):
            copies.update(zip(names, active.get(identify(path, names), ()), strict=False))
    return copies


def _count_floats(model: RecordedModel) -> int:
    return sum("float" in facts["dtype"] for facts in model.facts["variables"].values())


def _is_trained(names: Sequence[str], variables: dict[str, VariableFacts]) -> bool:
    return any(variables[name]["trainable"] for name in names)
