"""Sentences about the variables of two models that have no counterpart."""

from collections.abc import Mapping
from itertools import combinations

from common.map.description import ModelDescription
from common.map.pair_variables import ParameterMap

MAX_LINES = 5  # largest number of lines in a summary


def describe_unmatched(
    parameter_map: ParameterMap, torch_description: ModelDescription, keras_description: ModelDescription
) -> list[str]:
    """Return a line for every variable without a counterpart, with the nearest candidates of the other side."""
    lines = []
    for side, description, other, names in (
        ("PyTorch", torch_description, keras_description, parameter_map.unmatched_torch),
        ("Keras", keras_description, torch_description, parameter_map.unmatched_keras),
    ):
        for name in names:
            shape = description.variables[name].shape
            candidates = _find_candidates(parameter_map, torch_description, keras_description, name)
            halves = _find_halves(parameter_map, torch_description, shape) if side == "Keras" else None
            if halves:
                advice = (
                    f"as large as {' and '.join(halves)}: if it is both, concatenate them in a map file, as in "
                    f"'{name}: {' & '.join(halves)} axis 1 | transpose 1 0'; blocks reorders gates"
                )
            elif candidates:
                listed = ", ".join(f"{path} {list(other.variables[path].shape)}" for path in candidates)
                advice = f"nearest: {listed}"
            else:
                advice = f"no similar variable is left{_suggest_tying(parameter_map, side, shape)}"
            lines.append(f"not matched: {side}'s {name} {list(shape)}; {advice}")
    return lines


def summarize_unmatched(
    parameter_map: ParameterMap, torch_description: ModelDescription, keras_description: ModelDescription
) -> list[str]:
    """Return at most `MAX_LINES` lines about the variables without a counterpart.

    A line counts the variables of one role in layers of one kind, such as the biases of Keras's Conv2D layers.
    """
    lines = dict(
        zip(
            [*parameter_map.unmatched_torch, *parameter_map.unmatched_keras],
            describe_unmatched(parameter_map, torch_description, keras_description),
            strict=True,
        )
    )
    if len(lines) <= MAX_LINES:
        return list(lines.values())
    summary = []
    for side, description, names in (
        ("PyTorch", torch_description, parameter_map.unmatched_torch),
        ("Keras", keras_description, parameter_map.unmatched_keras),
    ):
        for (kind, role), group in _group_by_role(description, names).items():
            line = f"not matched: {side}'s {len(group)} variables '{role}' of {kind} layers, the first one {group[0]}"
            summary.append(lines[group[0]] if len(group) == 1 else line)
    if len(summary) > MAX_LINES:
        more = len(summary) - MAX_LINES + 1
        summary = [*summary[: MAX_LINES - 1], f"and {more} more kinds of variables; all=true lists every variable"]
    return summary


def _find_candidates(
    parameter_map: ParameterMap, torch_description: ModelDescription, keras_description: ModelDescription, name: str
) -> list[str]:
    """Return up to three unmatched variables of the other model that are most similar to an unmatched variable.

    Variables of the same sizes come first, then those with the same number of axes.
    """
    if name in parameter_map.unmatched_torch:
        description, other, unmatched = torch_description, keras_description, parameter_map.unmatched_keras
    else:
        description, other, unmatched = keras_description, torch_description, parameter_map.unmatched_torch
    sizes = sorted(description.variables[name].shape)
    same_sizes = [path for path in unmatched if sorted(other.variables[path].shape) == sizes]
    same_rank = [
        path for path in unmatched if len(other.variables[path].shape) == len(sizes) and path not in same_sizes
    ]
    return (same_sizes + same_rank)[:3]


def _find_halves(
    parameter_map: ParameterMap, torch_description: ModelDescription, shape: tuple[int, ...]
) -> tuple[str, str] | None:
    """Return two unmatched matrices of PyTorch that multiply the token and the state, if one of Keras multiplies both.

    Args:
        parameter_map: The parameter map.
        torch_description: The description of PyTorch's model.
        shape: The shape of the variable of Keras.
    """
    shapes = {name: torch_description.variables[name].shape for name in parameter_map.unmatched_torch}
    matrices = {name: sizes for name, sizes in shapes.items() if len(sizes) == 2}
    for first, second in combinations(matrices, 2):
        rows, columns = zip(matrices[first], matrices[second], strict=True)
        if len(shape) == 2 and (sum(columns), *rows) == (*shape, shape[1]):
            return first, second
    return None


def _group_by_role(description: ModelDescription, names: list[str]) -> Mapping[tuple[str, str], list[str]]:
    """Return the names by (kind, role): the kind of the first layer with the variable, and the role in it."""
    owners: dict[str, tuple[str, str]] = {}
    for layer in description.layers:
        for role, name in layer.variables.items():
            owners.setdefault(name, (layer.kind, role))
    groups: dict[tuple[str, str], list[str]] = {}
    for name in names:
        groups.setdefault(owners[name], []).append(name)
    return groups


def _suggest_tying(parameter_map: ParameterMap, side: str, shape: tuple[int, ...]) -> str:
    """Return advice for an unmatched variable that has the size of an embedding.

    The other model may lack the variable because it ties it to the embedding: one variable serves as both.
    """
    other_side = "Keras" if side == "PyTorch" else "PyTorch"
    for pair in parameter_map.layer_pairs:
        embedding = pair.keras if other_side == "Keras" else pair.torch
        if embedding.kind == "embedding" and sorted(embedding.sizes) == sorted(shape):
            (name,) = embedding.variable_names
            return f"; if it is tied to {name} in {other_side}, tie it in {side} too"
    return ""
