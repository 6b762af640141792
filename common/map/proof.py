"""Proof that a PyTorch and a Keras model compute the same outputs, gradients and updates of their state.

Both models compute on the same inputs and weights. Each model runs in its own process, a `Side`, because no process
imports both frameworks. A parameter map says which variables correspond. The proof is numerical: float64 makes an
accidental agreement to ten digits all but impossible.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import zip_longest

import numpy as np

from common.errors import UserError
from common.map.array_differences import relative_difference
from common.map.array_groups import group_by_size
from common.map.description import Arrays, ComputedPass, ModelDescription
from common.map.first_difference import explain_first_difference
from common.map.gradient_comparison import GradientSummaries, compare_gradients
from common.map.output_pairs import draw_projections, largest_difference, pair_outputs
from common.map.pair_variables import ParameterMap
from common.map.side import Side, receive_all
from common.map.state_changes import compare_state, compare_statistics, find_unpaired_changes
from common.map.unused_variables import draw_constants

OUTPUT_TOLERANCE = 1e-10  # largest difference, relative to the norm of the array
# A difference between OUTPUT_TOLERANCE and this value suggests that one model computes a part in float32.
ROUNDED_DIFFERENCE = 1e-7
MODES = {False: "evaluation mode", True: "training mode"}


@dataclass
class Proof:
    """The result of comparing two models.

    Attributes:
        errors: Sentences about what differs; empty if the models compute the same.
        notes: Sentences about differences that are no errors.
        measured: The largest relative difference of each comparison, by its name, such as "outputs in training mode".
    """

    errors: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    measured: dict[str, float] = field(default_factory=dict)


def prove_models(
    torch_side: Side,
    keras_side: Side,
    torch_description: ModelDescription,
    keras_description: ModelDescription,
    parameter_map: ParameterMap,
    initial_weights: Arrays,
    seed: int,
) -> Proof:
    """Compute both models in float64, first in evaluation and then in training mode, and compare them.

    The proof ends at the first mode in which they differ. `initial_weights` are the weights of PyTorch's model. Random
    values replace constant weights, because zeros and ones can hide an error. Each output is multiplied by a random
    factor, and both models compute the gradients of the sum. `seed` seeds the values and the factors.
    """
    proof = Proof(
        notes=[*_note_sums(parameter_map), *describe_unused(parameter_map, torch_description, keras_description)]
    )
    weights = draw_constants(initial_weights, torch_description, seed)
    keras_weights = map_weights(parameter_map, weights, keras_description)
    keras_unpaired = keras_side.call("weights", names=keras_description.variables.keys() - keras_weights.keys())
    computation = Computation(torch_side, keras_side, weights, keras_weights, keras_unpaired)
    proof.errors += _compare_trainable(parameter_map, torch_description, keras_description)
    paired = keras_weights.keys()
    summaries: tuple[GradientSummaries, GradientSummaries] | None = None
    difference, error = 0.0, ""
    for training, mode in MODES.items():
        torch_pass, keras_pass = computation.run(training)
        outputs, output_error = pair_outputs(torch_pass.outputs, keras_pass.outputs, torch_description.has_channels)
        if output_error:
            proof.errors.append(f"in {mode} {output_error}")
            return proof
        output_difference = largest_difference(outputs, torch_pass, keras_pass)
        proof.measured[f"outputs in {mode}"] = output_difference
        if output_difference > OUTPUT_TOLERANCE:
            passes = computation.add_calls(torch_pass, keras_pass)
            cause = _explain_outputs(computation, training, passes, parameter_map, output_difference)
            proof.errors.append(f"in {mode} the outputs differ by {output_difference:.1e} of their norm; {cause}")
            return proof
        # Both modes use the same factors, so most models have the same gradients in both modes, which are compared
        # once.
        projections = draw_projections(outputs, torch_pass.outputs, np.random.default_rng(seed))
        torch_pass, keras_pass = computation.add_gradients(torch_pass, keras_pass, *projections)
        if (torch_pass.gradients, keras_pass.gradients) != summaries:
            summaries = torch_pass.gradients, keras_pass.gradients
            difference, error = compare_gradients((torch_side, keras_side), parameter_map, weights, *summaries)
        torch_pass, keras_pass = computation.add_state(torch_pass, keras_pass)
        proof.measured[f"gradients in {mode}"] = difference
        errors = [
            *([error] if error else []),
            *compare_state(parameter_map, torch_pass, keras_pass, training, OUTPUT_TOLERANCE),
            *find_unpaired_changes(torch_pass, parameter_map.torch_names, "PyTorch"),
            *find_unpaired_changes(keras_pass, paired, "Keras"),
        ]
        proof.errors += [f"in {mode} {error}" for error in errors]
        if proof.errors:
            return proof
    errors, notes = compare_statistics(parameter_map, weights, torch_pass, keras_pass, OUTPUT_TOLERANCE)
    proof.errors += errors
    proof.notes += notes
    return proof


def map_weights(parameter_map: ParameterMap, weights: Arrays, keras_description: ModelDescription) -> Arrays:
    """Compute Keras's weights from PyTorch's. Raise UserError if a transformation does not fit its variable."""
    keras_weights = {}
    for pair in parameter_map.variable_pairs:
        shape = keras_description.variables[pair.keras].shape
        try:
            array = pair.transformation.to_keras(weights)
        except (ValueError, IndexError) as error:
            raise UserError(f"{pair.keras}: {pair.transformation}: {error}; correct it in model.map") from error
        if array.shape != shape:
            raise UserError(
                f"{pair.keras}: {pair.transformation} has the shape {array.shape}, Keras's variable {shape}; correct "
                "it in model.map"
            )
        keras_weights[pair.keras] = array
    return keras_weights


@dataclass
class Computation:
    """The computation of both models with corresponding weights.

    Attributes:
        torch_side: The process of PyTorch's model.
        keras_side: The process of Keras's model.
        torch_weights: All weights of PyTorch's model.
        keras_weights: The weights of Keras's model that have a counterpart.
        keras_unpaired: The other weights of Keras's model. `add_state` needs them.
        is_synchronized: Whether the models in both processes have these weights: no pass has changed the weights since
            they were sent.
    """

    torch_side: Side
    keras_side: Side
    torch_weights: Arrays
    keras_weights: Arrays
    keras_unpaired: Arrays = field(default_factory=dict)
    is_synchronized: bool = False

    def run(self, training: bool) -> tuple[ComputedPass, ComputedPass]:
        """Compute a pass of both models."""
        if not self.is_synchronized:
            self._set_weights()
        self.is_synchronized = False
        for side in (self.torch_side, self.keras_side):
            side.send("compute", weights={}, training=training)
        torch_pass, keras_pass = receive_all(self.torch_side, self.keras_side)
        return torch_pass, keras_pass

    def _set_weights(self) -> None:
        """Send both models their weights, some variables at a time, because a message holds a copy of its arrays."""
        sides = (self.torch_side, self.torch_weights), (self.keras_side, self.keras_weights)
        groups = [group_by_size({name: array.nbytes for name, array in weights.items()}) for _, weights in sides]
        for names in zip_longest(*groups, fillvalue=()):
            for (side, weights), group in zip(sides, names, strict=True):
                side.send("set_weights", weights={name: weights[name] for name in group})
            receive_all(self.torch_side, self.keras_side)

    def add_calls(self, torch_pass: ComputedPass, keras_pass: ComputedPass) -> tuple[ComputedPass, ComputedPass]:
        """Return the last passes with the calls of all layers."""
        for side in (self.torch_side, self.keras_side):
            side.send("calls")
        torch_calls, keras_calls = receive_all(self.torch_side, self.keras_side)
        return replace(torch_pass, calls=torch_calls), replace(keras_pass, calls=keras_calls)

    def add_gradients(
        self,
        torch_pass: ComputedPass,
        keras_pass: ComputedPass,
        torch_projections: Mapping[str, np.ndarray],
        keras_projections: Mapping[str, np.ndarray],
    ) -> tuple[ComputedPass, ComputedPass]:
        """Return the last passes with summaries of their gradients."""
        self.torch_side.send("compute_gradients", projections=torch_projections)
        self.keras_side.send("compute_gradients", projections=keras_projections)
        torch_gradients, keras_gradients = receive_all(self.torch_side, self.keras_side)
        return replace(torch_pass, gradients=torch_gradients), replace(keras_pass, gradients=keras_gradients)

    def add_state(self, torch_pass: ComputedPass, keras_pass: ComputedPass) -> tuple[ComputedPass, ComputedPass]:
        """Return the last passes with all variables after the pass. The processes send only those that it changed."""
        for side in (self.torch_side, self.keras_side):
            side.send("changed_weights")
        torch_changed, keras_changed = receive_all(self.torch_side, self.keras_side)
        self.is_synchronized = not torch_changed and not keras_changed
        torch_updated = self.torch_weights | torch_changed
        keras_updated = self.keras_unpaired | self.keras_weights | keras_changed
        return (
            replace(torch_pass, updated=torch_updated, changed=frozenset(torch_changed)),
            replace(keras_pass, updated=keras_updated, changed=frozenset(keras_changed)),
        )


def _explain_outputs(
    computation: Computation,
    training: bool,
    passes: tuple[ComputedPass, ComputedPass],
    parameter_map: ParameterMap,
    difference: float,
) -> str:
    """Return a sentence that explains why the outputs of two passes differ.

    Args:
        computation: The computation, which this function repeats.
        training: Whether the passes are in training mode.
        passes: The passes, with the calls of all layers.
        parameter_map: The correspondence between the variables.
        difference: The largest relative difference of the outputs.
    """
    cause = explain_first_difference(parameter_map.layer_pairs, *passes, OUTPUT_TOLERANCE)
    for framework, first, second in zip(("PyTorch", "Keras"), passes, computation.run(training), strict=True):
        pairs = [(array, second.outputs[name]) for name, array in first.outputs.items()]
        if any(relative_difference(*pair, equal_nan=True) > OUTPUT_TOLERANCE for pair in pairs):
            return (
                f"{framework}'s model returns something else when the same inputs are computed again, because it draws "
                "random numbers or keeps a state; draw numbers in training mode only, in a layer that is recognized as "
                f"noise (see docs/custom_models.md); {cause}"
            )
    if difference < ROUNDED_DIFFERENCE:
        return f"{cause}; so small a difference may be that of a constant or a table that one model computes in float32"
    return cause


def _compare_trainable(
    parameter_map: ParameterMap, torch_description: ModelDescription, keras_description: ModelDescription
) -> list[str]:
    """Return errors for variables that only one side trains."""
    errors = []
    for pair in parameter_map.variable_pairs:
        names = [source.name for source in pair.transformation.sources]
        trained = [name for name in names if torch_description.variables[name].trainable]
        # All sources are trained or none. In a sum, one trained term is enough.
        is_consistent = len(trained) in (0, len(names)) or pair.transformation.is_sum
        if not is_consistent or keras_description.variables[pair.keras].trainable != bool(trained):
            side = "PyTorch and not in Keras" if trained else "Keras and not in PyTorch"
            side = side if is_consistent else f"PyTorch only in {' and '.join(trained)}"
            errors.append(f"{' + '.join(names)} (PyTorch) and {pair.keras} (Keras): trained in {side}")
    return errors


def _note_sums(parameter_map: ParameterMap) -> list[str]:
    """Return a note on biases in PyTorch whose sum is one bias in Keras, or no note if there are none."""
    transformations = [pair.transformation for pair in parameter_map.variable_pairs if pair.transformation.is_sum]
    if not transformations:
        return []
    sums = ", ".join(transformation.join_sources() for transformation in transformations)
    other_terms = ", ".join(str(source) for transformation in transformations for source in transformation.sources[1:])
    return [
        f"{sums}: two biases in PyTorch, whose sum is one bias in Keras. Both get the gradient of the sum, so that SGD "
        f"changes the sum twice as much; to train alike, freeze these terms at zero: {other_terms}"
    ]


def describe_unused(
    parameter_map: ParameterMap, torch_description: ModelDescription, keras_description: ModelDescription
) -> list[str]:
    """Return sentences about trainable variables that no output depends on, unless a map file pairs them."""
    paired = parameter_map.torch_names | {pair.keras for pair in parameter_map.variable_pairs}
    notes = []
    for side, description in (("PyTorch", torch_description), ("Keras", keras_description)):
        names = [name for name in description.unused if name not in paired and description.variables[name].trainable]
        if names:
            notes.append(f"{side}'s {', '.join(names)}: left out, since no output depends on them")
    return notes
