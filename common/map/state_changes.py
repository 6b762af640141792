"""What a forward pass changes on either side: BatchNorm's moving statistics, and any other state."""

import numpy as np

from common.map.array_differences import LayerPairs, relative_difference
from common.map.description import ComputedPass
from common.map.pair_variables import ParameterMap
from common.map.sublayers import KerasTarget, Sublayer, list_variable_names

Weights = dict[str, np.ndarray]


def compare_statistics(
    parameter_map: ParameterMap, weights: Weights, torch: ComputedPass, keras: ComputedPass, tolerance: float
) -> tuple[list[str], list[str]]:
    """Errors, and notes on what differs by definition: Keras's moving variance is biased, PyTorch's is not."""
    errors, notes = [], []
    for ours, theirs in _with_statistics(parameter_map.layer_pairs):
        name = f"{ours.path} (PyTorch) and {theirs.path} (Keras)"
        a, b = ours.settings.get("momentum"), theirs.settings.get("momentum")
        if not isinstance(a, float) or not isinstance(b, float) or abs(a - b) > 1e-12:
            wanted = f"{1 - a:g}" if isinstance(a, float) else "none: it averages all batches"
            has = f"{1 - b:g}" if isinstance(b, float) else str(b)
            errors.append(f"{name}: momentum {a} in PyTorch is {wanted} in Keras, which has {has}")
            continue
        for role in ("running_mean", "running_var"):
            before, after, other = _values(parameter_map, theirs, role, weights, torch, keras)
            expected = after
            count = _count(ours, torch)
            if role == "running_var" and count is not None:
                expected = (1 - a) * before + (after - (1 - a) * before) * (count - 1) / count
                gap = relative_difference(after, other)
                notes.append(
                    f"{name}: the batch's variance enters the moving variance unbiased in PyTorch and biased in Keras, "
                    f"{count} / {count - 1} times as large; after this step they differ by {gap:.1e}"
                )
            if (difference := relative_difference(expected, other)) > tolerance:
                errors.append(f"{name}: {role} differs by {difference:.1e} of its norm after a training step")
    return errors, notes


def compare_state(
    parameter_map: ParameterMap, torch: ComputedPass, keras: ComputedPass, training: bool, tolerance: float
) -> list[str]:
    """Errors for pairs of variables that differ after a pass, but for what `compare_statistics` compares."""
    judged = {
        name
        for _, theirs in _with_statistics(parameter_map.layer_pairs)
        for role in ("running_mean", "running_var")
        for name in list_variable_names(theirs.arrays[role])
    }
    errors = []
    for each in parameter_map.variable_pairs:
        if training and each.keras in judged:
            continue
        difference = relative_difference(each.transformation.to_keras(torch.updated), keras.updated[each.keras])
        if difference > tolerance:
            ours = " + ".join(map(str, each.transformation.sources))
            errors.append(f"{ours} (PyTorch) and {each.keras} (Keras): differ by {difference:.1e} of the norm after it")
    return errors


def find_unpaired_changes(before: Weights, computed: ComputedPass, paired: set[str], side: str) -> list[str]:
    """Errors for variables that have no counterpart and that a pass changed, or that have a gradient."""
    errors = []
    for name, after in computed.updated.items():
        if name in paired:
            continue
        if name not in before or not np.array_equal(before[name], after, equal_nan=True):
            errors.append(f"{side}'s {name} changes and has no counterpart; pair it in model.map")
        elif np.any(computed.gradients.get(name, 0)):
            errors.append(f"{side}'s {name} has a gradient and no counterpart; pair it in model.map")
    return errors


def _with_statistics(parts: LayerPairs) -> LayerPairs:
    return [pair for pair in parts if (a := pair.torch).kind == "batch norm" and "running_mean" in a.arrays]


def _values(
    parameter_map: ParameterMap, theirs: Sublayer, role: str, weights: Weights, torch: ComputedPass, keras: ComputedPass
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Before and after in PyTorch, after in Keras; in Keras's layout."""
    array = theirs.arrays[role]
    assert isinstance(array, KerasTarget)
    (transformation,) = [each.transformation for each in parameter_map.variable_pairs if each.keras == array.name]
    before, after = transformation.to_keras(weights), transformation.to_keras(torch.updated)
    return before, after, keras.updated[array.name]


def _count(ours: Sublayer, torch: ComputedPass) -> int | None:
    """How many values of a channel the batch has; None of a layer that is not called in training mode."""
    call = torch.calls.get(ours.path)
    if call is None or call.received is None:
        return None
    return call.received.size // call.received.shape[1]
