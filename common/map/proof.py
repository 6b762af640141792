"""Proof that a PyTorch and a Keras model compute the same outputs, gradients and updates of their state.

Both models compute on the same inputs and weights, each in a process of its framework, its side. A parameter map says
which variables correspond. The proof is numerical: float64 makes an accidental agreement to ten digits all but
impossible.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from common.errors import UserError
from common.map.array_differences import compute_norm, relative_difference
from common.map.description import Arrays, ComputedPass, ModelDescription
from common.map.first_difference import explain_first_difference
from common.map.output_pairs import draw_projections, largest_difference, pair_outputs
from common.map.pair_variables import ParameterMap
from common.map.side import Side, receive_all
from common.map.state_changes import compare_state, compare_statistics, find_unpaired_changes
from common.map.unused_variables import draw_constants

OUTPUT_TOLERANCE, GRADIENT_TOLERANCE = 1e-10, 1e-9  # largest differences, relative to the norm of the array
# A gradient whose norm is less than this share of the largest gradient's norm is compared relative to that share of the
# largest norm, because it consists mostly of rounding errors.
SMALL_GRADIENT_SHARE = 1e-4
# Outputs that differ by less, and by more than the tolerance, differ by the rounding of float32.
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

    The proof ends at the first mode in which they differ. `initial_weights` are those of PyTorch's model. `seed` is the
    seed of the random factors by which outputs are multiplied, and of the random weights that replace constant ones.
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
    stream = np.random.default_rng(seed)
    for training, mode in MODES.items():
        torch_pass, keras_pass = computation.run(training)
        outputs, error = pair_outputs(torch_pass.outputs, keras_pass.outputs, torch_description.has_channels)
        if error:
            proof.errors.append(f"in {mode} {error}")
            return proof
        difference = largest_difference(outputs, torch_pass, keras_pass)
        proof.measured[f"outputs in {mode}"] = difference
        if difference > OUTPUT_TOLERANCE:
            passes = computation.add_calls(torch_pass, keras_pass)
            cause = _explain_outputs(computation, training, passes, parameter_map, difference)
            proof.errors.append(f"in {mode} the outputs differ by {difference:.1e} of their norm; {cause}")
            return proof
        projections = draw_projections(outputs, torch_pass.outputs, stream)
        torch_pass, keras_pass = computation.add_gradients(torch_pass, keras_pass, *projections)
        difference, error = _compare_gradients(parameter_map, weights, torch_pass, keras_pass)
        torch_pass = drop_gradients(torch_pass, parameter_map.torch_names)
        keras_pass = drop_gradients(keras_pass, paired)
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
        keras_unpaired: Its other weights. `add_state` needs them.
        are_set: Whether both models have these weights, because no pass has changed them since they were sent.
    """

    torch_side: Side
    keras_side: Side
    torch_weights: Arrays
    keras_weights: Arrays
    keras_unpaired: Arrays = field(default_factory=dict)
    are_set: bool = False

    def run(self, training: bool) -> tuple[ComputedPass, ComputedPass]:
        """Compute a pass of both models."""
        self.torch_side.send("compute", weights={} if self.are_set else self.torch_weights, training=training)
        self.keras_side.send("compute", weights={} if self.are_set else self.keras_weights, training=training)
        self.are_set = False
        torch_pass, keras_pass = receive_all(self.torch_side, self.keras_side)
        return torch_pass, keras_pass

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
        """Return the last passes with gradients."""
        self.torch_side.send("gradients", projections=torch_projections)
        self.keras_side.send("gradients", projections=keras_projections)
        torch_gradients, keras_gradients = receive_all(self.torch_side, self.keras_side)
        return replace(torch_pass, gradients=torch_gradients), replace(keras_pass, gradients=keras_gradients)

    def add_state(self, torch_pass: ComputedPass, keras_pass: ComputedPass) -> tuple[ComputedPass, ComputedPass]:
        """Return the last passes with all variables after the pass. The processes send only those that it changed."""
        for side in (self.torch_side, self.keras_side):
            side.send("changed_weights")
        torch_changed, keras_changed = receive_all(self.torch_side, self.keras_side)
        self.are_set = not torch_changed and not keras_changed
        torch_updated = self.torch_weights | torch_changed
        keras_updated = self.keras_unpaired | self.keras_weights | keras_changed
        return (
            replace(torch_pass, updated=torch_updated, changed=frozenset(torch_changed)),
            replace(keras_pass, updated=keras_updated, changed=frozenset(keras_changed)),
        )


def drop_gradients(computed: ComputedPass, names: Collection[str]) -> ComputedPass:
    """Return a pass without the gradients of some variables, which take as much memory as the model."""
    return replace(computed, gradients={name: array for name, array in computed.gradients.items() if name not in names})


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


def _compare_gradients(
    parameter_map: ParameterMap, torch_weights: Arrays, torch_pass: ComputedPass, keras_pass: ComputedPass
) -> tuple[float, str]:
    """Return the largest difference between gradients, and an error, which is empty if all gradients agree.

    The error names the last differing gradient in the order of execution, which is nearest to the output: the backward
    pass spreads a difference from there to the earlier layers.
    """
    norms = [compute_norm(gradient) for gradient in keras_pass.gradients.values()]
    min_norm = SMALL_GRADIENT_SHARE * max(norms, default=0)
    torch_arrays = {**torch_weights, **torch_pass.gradients}
    largest, message = 0.0, ""
    for pair in parameter_map.variable_pairs:
        if pair.keras not in keras_pass.gradients or pair.transformation.sources[0].name not in torch_pass.gradients:
            continue
        gradient = pair.transformation.gradient_to_keras(torch_arrays)
        difference = relative_difference(gradient, keras_pass.gradients[pair.keras], min_norm)
        largest = max(largest, difference)
        if difference > GRADIENT_TOLERANCE:
            message = (
                "the outputs agree and gradients differ; nearest to the output: "
                f"{' + '.join(map(str, pair.transformation.sources))} (PyTorch) and {pair.keras} (Keras), by "
                f"{difference:.1e} of the norm{_explain_padding(parameter_map, pair.keras)}"
            )
    return largest, message


def _explain_padding(parameter_map: ParameterMap, keras_name: str) -> str:
    """Explain a different gradient by PyTorch's padding row if the variable is an embedding that has one."""
    for pair in parameter_map.layer_pairs:
        row = pair.torch.settings.get("padding_idx")
        if keras_name in pair.keras.variable_names and row is not None:
            return f"; PyTorch's has padding_idx={row}, a row that gets no gradient there"
    return ""


def _compare_trainable(
    parameter_map: ParameterMap, torch_description: ModelDescription, keras_description: ModelDescription
) -> list[str]:
    """Return errors for variables that only one side trains."""
    errors = []
    for pair in parameter_map.variable_pairs:
        names = [source.name for source in pair.transformation.sources]
        trained = [name for name in names if torch_description.variables[name].trainable]
        is_whole = len(trained) in (0, len(names)) or pair.transformation.joined == "+"  # one term changes a sum
        if not is_whole or keras_description.variables[pair.keras].trainable != bool(trained):
            side = "PyTorch and not in Keras" if trained else "Keras and not in PyTorch"
            side = side if is_whole else f"PyTorch only in {' and '.join(trained)}"
            errors.append(f"{' + '.join(names)} (PyTorch) and {pair.keras} (Keras): trained in {side}")
    return errors


def _note_sums(parameter_map: ParameterMap) -> list[str]:
    """Return a note on biases in PyTorch that are one bias in Keras, or no note if there are none."""
    transformations = [
        pair.transformation for pair in parameter_map.variable_pairs if pair.transformation.joined == "+"
    ]
    if not transformations:
        return []
    sums = ", ".join(transformation.join_sources() for transformation in transformations)
    other_terms = ", ".join(str(source) for transformation in transformations for source in transformation.sources[1:])
    return [
        f"{sums}: two biases in PyTorch are one bias in Keras, their sum. Both get its gradient, so that SGD moves the "
        f"sum twice as far; to train alike, set to zero and freeze {other_terms}"
    ]


def describe_unused(
    parameter_map: ParameterMap, torch_description: ModelDescription, keras_description: ModelDescription
) -> list[str]:
    """Return sentences about trainable variables on which no output depends, unless a map file pairs them."""
    paired = parameter_map.torch_names | {pair.keras for pair in parameter_map.variable_pairs}
    notes = []
    for side, description in (("PyTorch", torch_description), ("Keras", keras_description)):
        names = [name for name in description.unused if name not in paired and description.variables[name].trainable]
        if names:
            notes.append(f"{side}'s {', '.join(names)}: left out, since no output depends on them")
    return notes
