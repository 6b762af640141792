"""Whether two models compute the same with weights that are mapped from one to the other: outputs and gradients."""

from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from common.errors import UserError
from common.map.array_differences import explain_first_difference, relative_difference
from common.map.description import ComputedPass, ModelDescription
from common.map.output_pairs import draw_projections, largest_difference, pair_outputs
from common.map.pair_variables import ParameterMap
from common.map.side import Side
from common.map.state_changes import compare_state, compare_statistics, find_unpaired_changes
from common.map.sublayers import list_variable_names

OUTPUT, GRADIENT = 1e-10, 1e-9  # largest differences, relative to norms
SMALL_GRADIENT = 1e-4  # of the largest gradient's norm: smaller gradients are compared relative to that
MODES = {False: "evaluation mode", True: "training mode"}


@dataclass
class Proof:
    """errors: none where the models are the same. measured: the largest relative difference of each kind.

    dropped: what the dropout layers of PyTorch and of Keras receive, by path.
    """

    errors: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    measured: dict[str, float] = field(default_factory=dict)
    dropped: list[dict[str, np.ndarray]] = field(default_factory=list)


def prove_models(
    torch: Side, keras: Side, ours: ModelDescription, theirs: ModelDescription, parameter_map: ParameterMap, seed: int
) -> Proof:
    """Compute both models in float64 with the same inputs and weights, in both modes; compare all there is."""
    proof = Proof(notes=[*_notes(parameter_map), *_unused(parameter_map, ours, theirs)])
    weights = draw_constants(torch.call("weights"), ours, seed)
    mapped = map_weights(parameter_map, weights, theirs)
    proof.errors += _trained_alike(parameter_map, ours, theirs)
    taken = {source.name for each in parameter_map.variable_pairs for source in each.transformation.sources}
    initial = keras.call("weights")
    stream = np.random.default_rng(seed)
    for training, mode in MODES.items():
        a, b = _both(torch, keras, weights, mapped, training, {}, {})
        outputs, error = pair_outputs(a.outputs, b.outputs, ours.channels)
        if error:
            proof.errors.append(f"in {mode} {error}")
            return proof
        a, b = _both(torch, keras, weights, mapped, training, *draw_projections(outputs, a.outputs, stream))
        difference = largest_difference(outputs, a, b)
        proof.dropped = [_received_by(ours.dropouts, a), _received_by(theirs.dropouts, b)]
        proof.measured[f"outputs in {mode}"] = difference
        if difference > OUTPUT:
            where = explain_first_difference(parameter_map.layer_pairs, a, b, OUTPUT)
            proof.errors.append(f"in {mode} the outputs differ by {difference:.1e} of their norm; {where}")
            return proof
        proof.measured[f"gradients in {mode}"] = _compare_gradients(proof, parameter_map, a, b, mode)
        state = compare_state(parameter_map, a, b, training, OUTPUT)
        state += find_unpaired_changes(weights, a, taken, "PyTorch")
        state += find_unpaired_changes(initial, b, set(mapped), "Keras")
        proof.errors += [f"in {mode} {each}" for each in state]
        if proof.errors:
            return proof
    errors, notes = compare_statistics(parameter_map, weights, a, b, OUTPUT)
    proof.errors += errors
    proof.notes += notes
    return proof


def draw_constants(weights: Mapping[str, np.ndarray], torch: ModelDescription, seed: int) -> dict[str, np.ndarray]:
    """The weights, with random values where all are the same: zeros and ones would hide an error."""
    variances = {name for layer in torch.layers for role, name in layer.variables.items() if role == "running_var"}
    stream = np.random.default_rng(seed)
    drawn = dict(weights)
    for name, array in weights.items():
        if name in variances:
            drawn[name] = stream.uniform(0.5, 2, array.shape)
        elif not torch.variables[name].constant and array.size and np.ptp(array) == 0:
            drawn[name] = array + 0.2 * stream.standard_normal(array.shape)
    return drawn


def map_weights(
    parameter_map: ParameterMap, weights: Mapping[str, np.ndarray], keras: ModelDescription
) -> dict[str, np.ndarray]:
    """Keras's weights. Raises UserError for a transformation that does not fit."""
    mapped = {}
    for each in parameter_map.variable_pairs:
        shape = keras.variables[each.keras].shape
        try:
            mapped[each.keras] = each.transformation.to_keras(weights)
        except (ValueError, IndexError) as error:
            raise UserError(f"{each.keras}: {each.transformation}: {error}; correct it in model.map") from error
        if mapped[each.keras].shape != shape:
            raise UserError(
                f"{each.keras}: {each.transformation} has the shape {mapped[each.keras].shape}, Keras's variable "
                f"{shape}; correct it in model.map"
            )
    return mapped


def _both(
    torch: Side,
    keras: Side,
    weights: Mapping[str, np.ndarray],
    mapped: Mapping[str, np.ndarray],
    training: bool,
    ours: Mapping[str, np.ndarray],
    theirs: Mapping[str, np.ndarray],
) -> tuple[ComputedPass, ComputedPass]:
    torch.send("compute", weights=weights, training=training, projections=ours)
    keras.send("compute", weights=mapped, training=training, projections=theirs)
    return receive_all(torch, keras)


def receive_all(*sides: Side) -> tuple[Any, ...]:
    """What calls to these sides returned; all are waited for though one failed."""
    if not sides:
        return ()
    try:
        first = sides[0].receive()
    except UserError:
        with suppress(UserError):
            receive_all(*sides[1:])
        raise
    return first, *receive_all(*sides[1:])


def _received_by(paths: Iterable[str], computed: ComputedPass) -> dict[str, np.ndarray]:
    found = {path: computed.calls[path].received for path in paths}
    return {path: array for path, array in found.items() if array is not None}


def _compare_gradients(proof: Proof, parameter_map: ParameterMap, a: ComputedPass, b: ComputedPass, mode: str) -> float:
    """The largest difference; an error names the one nearest to the output, from where it spreads."""
    floor = SMALL_GRADIENT * max((float(np.linalg.norm(each)) for each in b.gradients.values()), default=0)
    found = []
    for each in parameter_map.variable_pairs:
        if each.keras in b.gradients and each.transformation.sources[0].name in a.gradients:
            mapped = each.transformation.gradient_to_keras({**a.updated, **a.gradients})
            found.append((relative_difference(mapped, b.gradients[each.keras], floor), each))
    worse = [(difference, each) for difference, each in found if difference > GRADIENT]
    if worse:
        difference, each = worse[-1]
        ours = " + ".join(map(str, each.transformation.sources))
        proof.errors.append(
            f"in {mode} the outputs agree and gradients differ; nearest to the output: {ours} (PyTorch) and "
            f"{each.keras} (Keras), by {difference:.1e} of the norm{_padding(parameter_map, each.keras)}"
        )
    return max((difference for difference, _ in found), default=0)


def _padding(parameter_map: ParameterMap, name: str) -> str:
    """What explains another gradient of an embedding."""
    rows = {
        a.settings.get("padding_idx")
        for a, b in parameter_map.layer_pairs
        for array in b.arrays.values()
        if name in list_variable_names(array)
    }
    row = next(iter(rows - {None}), None)
    return "" if row is None else f"; PyTorch's has padding_idx={row}, a row that gets no gradient there"


def _trained_alike(parameter_map: ParameterMap, ours: ModelDescription, theirs: ModelDescription) -> list[str]:
    errors = []
    for each in parameter_map.variable_pairs:
        names = [source.name for source in each.transformation.sources]
        trained = {ours.variables[name].trainable for name in names}
        if theirs.variables[each.keras].trainable not in trained:
            where = "Keras and not in PyTorch" if trained == {False} else "PyTorch and not in Keras"
            errors.append(f"{' + '.join(names)} (PyTorch) and {each.keras} (Keras): trained in {where}")
    return errors


def _notes(parameter_map: ParameterMap) -> list[str]:
    sums = [each.transformation.sources for each in parameter_map.variable_pairs if each.transformation.joined == "+"]
    if not sums:
        return []
    listed = ", ".join(" + ".join(map(str, sources)) for sources in sums)
    frozen = ", ".join(str(sources[1]) for sources in sums)
    return [
        f"{listed}: two biases in PyTorch, whose sum Keras has. Both get its gradient, so that SGD moves the sum twice "
        f"as far; to train alike, set to zero and freeze {frozen}"
    ]


def _unused(parameter_map: ParameterMap, ours: ModelDescription, theirs: ModelDescription) -> list[str]:
    """What is trained in layers that the forward pass does not call, unless a map file pairs it."""
    taken = {source.name for each in parameter_map.variable_pairs for source in each.transformation.sources}
    taken |= {each.keras for each in parameter_map.variable_pairs}
    sides = {"PyTorch": ours, "Keras": theirs}
    left = {
        side: [name for name in each.unused if name not in taken and each.variables[name].trainable]
        for side, each in sides.items()
    }
    return [
        f"{side}'s {', '.join(names)}: left out, since the forward pass calls no layer that has them"
        for side, names in left.items()
        if names
    ]
