"""Comparison of the state that a forward pass changes: BatchNorm's moving statistics, and other variables.

The comparison is a part of the proof that a PyTorch and a Keras model compute the same. A parameter map says which
variables correspond.
"""

import math
from collections.abc import Collection, Iterator, Sequence

from common.map.array_differences import relative_difference
from common.map.description import Arrays, ComputedPass
from common.map.pair_variables import ParameterMap
from common.map.sublayers import LayerPair, Sublayer, list_variable_names, name_pairs

STATISTICS = ("running_mean", "running_var")


def compare_statistics(
    parameter_map: ParameterMap,
    torch_weights: Arrays,
    torch_pass: ComputedPass,
    keras_pass: ComputedPass,
    tolerance: float,
) -> tuple[list[str], list[str]]:
    """Compare the moving statistics after a pass in training mode.

    PyTorch's layer divides the batch's variance by n - 1 (unbiased) before it enters the moving variance, Keras's by n
    (biased). This difference is allowed and noted. On both backends Keras's layer divides by n.

    Args:
        parameter_map: The parameter map.
        torch_weights: PyTorch's variables before the pass.
        torch_pass: The pass of PyTorch's model.
        keras_pass: The pass of Keras's model.
        tolerance: The largest relative difference.

    Returns:
        Errors, and a note about the variance if there is any.
    """
    errors: list[str] = []
    variances: list[tuple[LayerPair, int, float]] = []
    momenta: dict[str, list[LayerPair]] = {}
    transformations = {pair.keras: pair.transformation for pair in parameter_map.variable_pairs}
    for pair in _list_with_statistics(parameter_map):
        torch_momentum, keras_momentum = pair.torch.settings.get("momentum"), pair.keras.settings.get("momentum")
        if (
            not isinstance(torch_momentum, float)
            or not isinstance(keras_momentum, float)
            or abs(torch_momentum - keras_momentum) > 1e-12
        ):
            momenta.setdefault(_describe_momentum(torch_momentum, keras_momentum), []).append(pair)
            continue
        for role in STATISTICS:
            (name,) = list_variable_names(pair.keras.variables[role])
            before = transformations[name].to_keras(torch_weights)
            after = transformations[name].to_keras(torch_pass.updated)
            expected, keras_after = after, keras_pass.updated[name]
            count = None if parameter_map.is_keras else _count_values(pair.torch, torch_pass)
            if role == "running_var" and count is not None:
                unchanged_share = (1 - torch_momentum) * before
                expected = unchanged_share + (after - unchanged_share) * (count - 1) / count
                variances.append((pair, count, relative_difference(after, keras_after, equal_nan=True)))
            if (difference := relative_difference(expected, keras_after, equal_nan=True)) > tolerance:
                errors.append(f"{pair}: {role} differs by {difference:.1e} of its norm after a training step")
    return [
        *(f"{difference}, in {name_pairs(pairs)}" for difference, pairs in momenta.items()),
        *errors,
    ], _note_variances(variances)


def _note_variances(variances: Sequence[tuple[LayerPair, int, float]]) -> list[str]:
    """Return a note on the layers whose moving variances differ by definition, or no note if there are none.

    Args:
        variances: For each pair, the number of values of a channel in the batch, and the difference after a step.
    """
    if not variances:
        return []
    pairs, counts, differences = zip(*variances, strict=True)
    return [
        f"{name_pairs(pairs)}: the batch's variance enters the moving variance unbiased in PyTorch and biased in "
        f"Keras, at most {min(counts)} / {min(counts) - 1} times as large; after this step they differ by "
        f"{max(differences):.1e}"
    ]


def compare_state(
    parameter_map: ParameterMap,
    torch_pass: ComputedPass,
    keras_pass: ComputedPass,
    training: bool,
    tolerance: float,
) -> list[str]:
    """Return errors for paired variables that differ after a pass, which had equal ones before.

    In training mode the moving statistics are left out, because `compare_statistics` compares them.
    """
    statistics = {
        name
        for pair in _list_with_statistics(parameter_map)
        for role in STATISTICS
        for name in list_variable_names(pair.keras.variables[role])
    }
    errors = []
    for pair in parameter_map.variable_pairs:
        if training and pair.keras in statistics:
            continue
        sources = {source.name for source in pair.transformation.sources}
        if pair.keras not in keras_pass.changed and not sources & torch_pass.changed:
            continue
        array = pair.transformation.to_keras(torch_pass.updated)
        difference = relative_difference(array, keras_pass.updated[pair.keras], equal_nan=True)
        if difference > tolerance:
            names = " + ".join(map(str, pair.transformation.sources))
            errors.append(
                f"{names} (PyTorch) and {pair.keras} (Keras): differ by {difference:.1e} of the norm after it"
            )
    return errors


def find_unpaired_changes(computed: ComputedPass, paired: Collection[str], side: str) -> list[str]:
    """Return errors for variables without a counterpart that a pass changed or that have a gradient."""
    errors = []
    for name in computed.updated:
        if name in paired:
            continue
        if name in computed.changed:
            errors.append(f"{side}'s {name} changes and has no counterpart; pair it in model.map")
        elif name in computed.gradients and computed.gradients[name].norm != 0:
            errors.append(f"{side}'s {name} has a gradient and no counterpart; pair it in model.map")
    return errors


def _list_with_statistics(parameter_map: ParameterMap) -> Iterator[LayerPair]:
    """Yield the pairs of BatchNorm layers that keep moving statistics."""
    for pair in parameter_map.layer_pairs:
        if pair.torch.kind == "batch norm" and "running_mean" in pair.torch.variables:
            yield pair


def _describe_momentum(torch_momentum: object, keras_momentum: object) -> str:
    """Describe different momentums. Both arguments are PyTorch's momentum, which is 1 - Keras's."""
    if isinstance(torch_momentum, float):
        expected = f"{1 - torch_momentum:g}"
    else:
        expected = "none, since PyTorch's layer averages all batches"
    actual = f"{1 - keras_momentum:g}" if isinstance(keras_momentum, float) else str(keras_momentum)
    return f"momentum {torch_momentum} in PyTorch is {expected} in Keras, which has {actual}"


def _count_values(sublayer: Sublayer, torch_pass: ComputedPass) -> int | None:
    """Count the values of a channel in the batch. Return None for a layer that training mode does not call."""
    shape = torch_pass.received_shapes.get(sublayer.path)
    return None if shape is None else math.prod(shape) // shape[1]
