"""The stage "activations": the first layer that returns something else for the same input, in the first step.

A is the reference record of a diagnosis, and B the record that is compared with it. A "call" is the input and the
output of a layer. Nothing can compute a recorded layer on the other side's arrays. A layer is therefore compared only
as long as it receives the same in both records; later layers inherit the difference.
"""

import numpy as np

from common.diagnose.explain.attention import list_masks
from common.diagnose.explain.code_section import CodeSection, LayerOutput
from common.diagnose.explain.layer import explain_layer
from common.diagnose.explain.received_ids import explain_ids
from common.diagnose.findings import NOT_COMPARED, SHAPE_OF_OUTPUTS, Explanation, Stage, TensorCheck
from common.diagnose.layer_match import LayerMatch
from common.diagnose.layout_conversion import RECURRENT, convert_calls
from common.diagnose.observation import Observation
from common.diagnose.recorded.aligned_calls import list_leaves, observe_sides, read_followed, read_layer_weights
from common.diagnose.recorded.carried_states import list_carried_states
from common.diagnose.recorded.code_explanations import explain_recorded_code
from common.diagnose.recorded.cut_outputs import cut_outputs
from common.diagnose.recorded.differing_calls import describe_call_of_outputs, describe_unjoined
from common.diagnose.recorded.example_order import ArrayPair, pair_arrays
from common.diagnose.recorded.joined_outputs import join_outputs
from common.diagnose.recorded.masked_tokens import explain_mask_zero
from common.diagnose.recorded.merged_rows import arrange_rows, has_merged_rows
from common.diagnose.recorded.operations.call_order import CallOrder
from common.diagnose.recorded.operations.explanation import add_lines, explain_operations
from common.diagnose.recorded.operations.initial_states import explain_initial_state
from common.diagnose.recorded.operations.operation_names import LOSS
from common.diagnose.recorded.output_activation import align_outputs
from common.diagnose.recorded.own_activation import has_own_activation
from common.diagnose.recorded.packed_rows import arrange_packed
from common.diagnose.recorded.padded_rows import hide_padding
from common.diagnose.recorded.record_pair import RecordPair
from common.diagnose.recorded.recorded_side import RecordedSide
from common.diagnose.recorded.time_first_layers import explain_time_first
from common.diagnose.recorded.unexplained_rounding import find_unexplained_rounding
from common.diagnose.rounding import rounding_tolerance
from common.map.array_differences import relative_difference
from common.map.description import RecordedCall

# Causes that the operations of a layer may show, if its class is one of the script that computes something else
UNCERTAIN = ("layer", "padding", "same_padding_at_strides")
ONLY_OUTPUTS = "only the outputs are compared: the first calls of the models have no examples in common"


def compare_activations(pair: RecordPair) -> Stage:
    """Compare the layers in A's order of execution."""
    stage = Stage("activations", precision=pair.precision)
    if pair.why_steps_differ:
        stage.omit(pair.why_steps_differ)
        return stage
    step = pair.equal_steps[0]
    counts = [sum(side.batches.count_examples(step)) for side in pair.sides]
    if counts[0] != counts[1]:
        stage.omit(f"the models get {counts[0]} examples in A and {counts[1]} in B")
        return stage
    observations = observe_sides(pair, step)
    _LayerComparison(stage, pair, *observations).compare()
    if (rounding := find_unexplained_rounding(stage)) is not None:
        stage = Stage(stage.name, precision=stage.precision)
        pair.remember(rounding)
        pair.equal_tensors, pair.changed_signs = [], set()
        _LayerComparison(stage, pair, *observations).compare()
    if pair.why_outputs_differ:
        extent = "only layers with equal inputs are compared" if stage.checks else NOT_COMPARED
        stage.omit(pair.why_outputs_differ, extent)
    if not stage.checks and not stage.omission:
        stage.omit("the records have no layers in common")
    elif not any(observation.calls for observation in observations):
        stage.note = stage.note or ONLY_OUTPUTS
    return stage


class _LayerComparison:
    """Comparison of the layers one after another."""

    def __init__(self, stage: Stage, pair: RecordPair, a: Observation, b: Observation) -> None:
        self.stage, self.pair, self.a, self.b = stage, pair, a, b
        self.calls_of_a = convert_calls(pair.models.layers, a, b)  # arrays in B's layout, by the layer's path in B
        naming_side = pair.b if pair.b.is_torch else pair.a  # explanations use PyTorch's names of the layers
        self.weights = read_layer_weights(naming_side)
        self.followed = read_followed(pair, a)
        self.random = pair.changing_layers
        self.orders = [{layer["path"]: index for index, layer in enumerate(side.layers)} for side in pair.sides]
        inputs = pair.a.batches.read_step(pair.equal_steps[0], "input").values()
        self.tokens = [array for array in inputs if array.ndim == 2 and array.dtype.kind in "iu"]
        self.has_drawn = False  # whether a layer that may draw random numbers was compared
        self.earlier_outputs: list[LayerOutput] = []
        self.differs, self.call_order = False, CallOrder(pair)

    def compare(self) -> None:
        """Compare the layers that contain no others, and the outputs of the models."""
        layers = {layer.path_a: layer for layer in self.pair.models.layers}
        for path in list_leaves([*layers], self.orders[0]):
            self._compare_layer(layers[path])
        self._compare_outputs()

    def _compare_layer(self, layer: LayerMatch) -> None:
        expected, call_of_b = self.calls_of_a.get(layer.path_b), layer.get_call_of_b(self.b.calls)
        if expected is None or call_of_b is None or self.call_order.has_other_first_call(layer):
            return
        examples = len(self.pair.orders[self.pair.equal_steps[0]])
        arranged = arrange_rows(expected, call_of_b, examples, self._are_close)
        a, b = arranged.received, call_of_b.received
        has_equal_input = not self.differs
        if a is not None and b is not None and a.shape == b.shape and b.dtype.kind == "f":
            has_equal_input = self._compare_input(layer, a, b)
            may_explain = has_equal_input and not self.differs and layer.kind in RECURRENT
            if may_explain and (explanation := explain_time_first(self.pair, layer)):
                self.stage.add_mismatch(layer.title)
                self.stage.add_explanation(layer.title, explanation)
                self.differs = True
        returned = self.followed.get(layer.path_b)
        if returned is not None and a is not None and not (layer.entries_a or layer.entries_b):
            # B's layer has computed on A's array
            a, has_equal_input, call_of_b = expected.received, True, RecordedCall(expected.received, returned)
        else:
            expected = arranged
        self.has_drawn |= self._may_be_random(layer)
        if self.pair.why_outputs_differ and (not has_equal_input or self._may_be_random(layer)):
            return
        if expected.returned is not None and call_of_b.returned is not None:
            self._compare_returned(layer, expected, call_of_b, has_equal_input)
        returned = expected.returned
        if returned is None and layer.kind in RECURRENT:  # A or B returns only its last state
            returned = next((x for x in self._list_returned(layer, call_of_b) if x is not None and x.ndim > 2), None)
        self.earlier_outputs.append(LayerOutput(layer.title, returned, a, b))

    def _list_returned(self, layer: LayerMatch, call_of_b: RecordedCall) -> list[np.ndarray | None]:
        call_of_a = layer.get_call_of_a(self.a.calls)
        return [call_of_b.returned, None if call_of_a is None else call_of_a.returned]

    def _are_close(self, a: np.ndarray, b: np.ndarray) -> bool:
        return relative_difference(a, b) <= rounding_tolerance(self.pair.noise, self.pair.precision)

    def _may_be_random(self, layer: LayerMatch) -> bool:
        """Check whether a layer draws random numbers, or is of an unknown kind that may consist of such layers."""
        return not layer.kind or layer.path_a in self.random[0] or layer.path_b in self.random[1]

    def _may_follow_draws(self, layer: LayerMatch) -> bool:
        """Check whether random numbers may have been drawn before a layer, in layers or in the code around them."""
        if not self.pair.why_outputs_differ:
            return False
        is_after = [
            any(order.get(random, -1) < order.get(path, len(order)) for random in paths)
            for path, order, paths in zip((layer.path_a, layer.path_b), self.orders, self.random, strict=True)
        ]
        return self.has_drawn or any(is_after)

    def _compare_input(self, layer: LayerMatch, a: np.ndarray, b: np.ndarray) -> bool:
        """Compare the inputs of a layer, and explain the first difference by the code before the layer.

        Returns:
            Whether A's and B's layer receive the same.
        """
        tensor, names = f"input of {layer.title}", (f"layer/{layer.path_a}/input", f"layer/{layer.path_b}/input")
        check = self._check(tensor, a, b, may_begin_here=not self.differs and not self._may_follow_draws(layer))
        if check.begins_here:
            inputs = {array.name: array.a for array in self._list_inputs()}
            section = CodeSection(tensor, layer.title, a, b, self.earlier_outputs, inputs, self.weights)
            self._add_explanations(section, names)
        else:
            self._remember(check, layer, names, a, b)
        self.differs |= check.differs
        return not check.differs

    def _add_explanations(self, section: CodeSection, names: tuple[str, str]) -> None:
        """Explain what the code computes differently. names: the names of the array in both records."""
        for explanation in explain_recorded_code(self.pair, section, names, self.tokens, self._are_close):
            self.stage.add_explanation(section.tensor, explanation)

    def _compare_returned(
        self, layer: LayerMatch, expected: RecordedCall, call_of_b: RecordedCall, has_equal_input: bool
    ) -> None:
        assert expected.returned is not None
        assert call_of_b.returned is not None
        if expected.returned.shape != call_of_b.returned.shape:
            return
        names = (f"layer/{layer.path_a}/output", f"layer/{layer.path_b}/output")
        if has_own_activation(self.pair, layer, expected.returned, call_of_b.returned):
            return
        check = self._check(layer.title, expected.returned, call_of_b.returned, may_begin_here=has_equal_input)
        self._remember(check, layer, names, expected.returned, call_of_b.returned)
        if check.begins_here:
            explanation = self._explain_layer(layer, expected, call_of_b)
            if not explanation.confirmed:
                arrays = expected.returned, call_of_b.returned
                of_mask = explain_mask_zero(self.pair, layer.title, arrays, self.tokens, self._are_close)
                explanation = of_mask or explanation
            operations = None
            if explanation.cause in UNCERTAIN and not explanation.confirmed and not self.differs:
                operations = explain_operations(self.pair, layer.title, *names)
            if operations is not None:
                self.stage.add_explanation(layer.title, operations)
            if operations is None or explanation.cause != "layer":
                self.stage.add_explanation(layer.title, explanation)
        self.differs |= check.differs

    def _explain_layer(self, layer: LayerMatch, expected: RecordedCall, call_of_b: RecordedCall) -> Explanation:
        batch = {array.name: array.a for array in self._list_inputs()}
        ids_a = self.a.calls[layer.path_a].received if layer.path_a in self.a.calls else None
        if explanation := explain_ids(layer.title, ids_a, call_of_b.received, batch):
            return add_lines(explanation, self.pair, f"layer/{layer.path_a}/input", f"layer/{layer.path_b}/input")
        masks = list_masks(batch)
        explanation = explain_layer(layer, expected, call_of_b, self.weights, masks)
        if not explanation.confirmed and (state := explain_initial_state(self.pair, layer)):
            return state
        sizes = [self._list_sizes(side) for side in self.pair.sides]
        if layer.kind == "batch norm" and not explanation.confirmed and sizes[0] != sizes[1]:
            sentence = (
                f"{layer.title} normalizes by the statistics of {sizes[0][0]} examples in A and of {sizes[1][0]} in B: "
                "micro-batches or processes have batches of other sizes"
            )
            return Explanation("batch_statistics", sentence, confirmed=False)
        return explanation

    def _list_sizes(self, side: RecordedSide) -> list[int]:
        return sorted(set(side.batches.count_examples(self.pair.equal_steps[0])))

    def _check(self, tensor: str, a: np.ndarray, b: np.ndarray, may_begin_here: bool) -> TensorCheck:
        b = hide_padding(a, b, self.tokens, self._are_close)
        check = self.stage.compare_arrays(tensor, a, b, self.pair.noise, may_begin_here=may_begin_here)
        if not check.differs:
            self.pair.remember(check.difference)
        elif self.pair.why_outputs_differ and not may_begin_here:
            self.stage.checks.remove(check)  # other dropout masks explain it
        return check

    def _remember(self, check: TensorCheck, layer: LayerMatch, names: tuple[str, str], *arrays: np.ndarray) -> None:
        """Remember a tensor of a layer that is equal. names: its names in both records; arrays: its numbers."""
        self.pair.equal_tensors += [] if check.differs or self.differs else [names]
        if not check.differs and not np.array_equal(arrays[0] > 0, arrays[1] > 0):
            self.pair.changed_signs.add(layer.path_a)

    def _list_inputs(self) -> list[ArrayPair]:
        step = self.pair.equal_steps[0]
        inputs_a, inputs_b = (side.batches.read_step(step, "input") for side in self.pair.sides)
        return pair_arrays(inputs_a, inputs_b)[0]

    def _compare_outputs(self) -> None:
        """Compare the outputs of the models for all examples of the step."""
        step = self.pair.equal_steps[0]
        if sentence := describe_unjoined(self.pair, step, "output"):
            self.stage.omit(sentence, "the outputs of the models are not compared")
            return
        outputs_a, outputs_b = (self._read_outputs(side, step) for side in self.pair.sides)
        arrays, *_ = pair_arrays(*join_outputs(outputs_a, outputs_b), are_outputs=True)
        for array in map(cut_outputs, arrays):
            counts = [len(array.a), len(array.b)]
            if (packed := arrange_packed(array, self.pair.sides, step)) is not None:
                self._compare_output(packed, packed.a, packed.b)
            elif counts[0] != counts[1] and not all(count == len(self.pair.orders[step]) for count in counts):
                shapes = f"{list(array.a.shape)} in A and {list(array.b.shape)} in B"
                self.stage.note = (
                    self.stage.note or f"output {array.name} has a row for each token in one script: {shapes}"
                )
            elif self.differs and array.a.shape[1:] != array.b.shape[1:]:
                self.stage.add_mismatch(f"output {array.name}", may_begin_here=False)  # perhaps another layout
            elif array.a.shape[1:] != array.b.shape[1:]:
                self._explain_shapes(array)
            elif len(array.a) == len(self.pair.orders[step]) == len(array.b) and array.a.dtype.kind == "f":
                ordered = np.empty_like(array.b)
                ordered[self.pair.orders[step]] = array.b
                self._compare_output(array, *align_outputs(*self.pair.sides, (array.a, ordered)))

    def _explain_shapes(self, outputs: ArrayPair) -> None:
        """Add the causes of outputs whose shapes differ by more than the order of their axes."""
        self.stage.add_mismatch(f"output {outputs.name}")
        operations = explain_operations(self.pair, "loss", LOSS, LOSS)
        if operations is not None:  # a script may cut its outputs, and differ from the other in something else
            self.stage.add_explanation("outputs", operations)
        sentence = f"outputs are {list(outputs.a.shape)} in A and {list(outputs.b.shape)} in B"
        self.stage.add_cause(SHAPE_OF_OUTPUTS, "b", "outputs", sentence, confirmed=operations is None)

    def _read_outputs(self, side: RecordedSide, step: int) -> dict[str, np.ndarray]:
        """Return the outputs of a model, without states, with an example in each row."""
        states = {state.returned for state in list_carried_states(side, step + 1)}
        outputs = {name: array for name, array in side.batches.read_step(step, "output").items() if name not in states}
        count = len(self.pair.orders[step])
        return {
            name: array.reshape(count, -1, *array.shape[1:]) if has_merged_rows(array, count) else array
            for name, array in outputs.items()
        }

    def _compare_output(self, names: ArrayPair, a: np.ndarray, b: np.ndarray) -> None:
        """Compare an output of the models. names: the pair with its names; a, b: the output in one layout."""
        tensor = f"output {names.name}"
        may_begin_here = not self.differs and not self.pair.why_outputs_differ
        check = self._check(tensor, a, b, may_begin_here)
        if check.begins_here and (title := describe_call_of_outputs(self.pair, a, b)):
            sentence = f"{title} returns other values for equal inputs, and another call the same: compare the mode of "
            sentence += "the model and what changes its state between the calls"
            self.stage.add_cause("output_of_call", "b", tensor, sentence, confirmed=False)
        elif check.begins_here:
            section = CodeSection(tensor, "the outputs", a, b, self.earlier_outputs, {}, self.weights)
            self._add_explanations(section, (f"batch/0/output/{names.name}", f"batch/0/output/{names.name_b}"))
        self.differs |= check.differs
