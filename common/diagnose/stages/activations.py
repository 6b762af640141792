"""The stages "activations": which layer, or which code between two layers, adds a difference.

A is the reference run of a diagnosis, and B the run that is compared with it. Every layer of B receives what its
counterpart in A received (the isolated computation), so that a difference belongs to one layer, or to the code between
two. The noise of a tensor is the difference that rounding alone causes in it.
"""

from collections import Counter
from dataclasses import replace

import numpy as np

from common.diagnose.array_layouts import convert_layout
from common.diagnose.comparison import SideComparison
from common.diagnose.explain.attention import list_masks
from common.diagnose.explain.between_layers import explain_code
from common.diagnose.explain.code_section import CodeSection, LayerOutput
from common.diagnose.explain.indices import explain_indices
from common.diagnose.explain.layer import explain_layer, find_setting_of_size
from common.diagnose.findings import SHAPE_OF_OUTPUTS, Explanation, Stage
from common.diagnose.layer_match import LayerMatch
from common.diagnose.layout_conversion import RECURRENT, convert_calls
from common.diagnose.model_observations import ModelObservations
from common.diagnose.observation import CallNoise
from common.diagnose.rounding import is_close, measure_noise
from common.map.array_differences import list_different_settings
from common.map.description import RecordedCall, drop_call_number

EVALUATION_MODE, TRAINING_MODE = "activations", "activations in training mode"  # names of the two stages
OTHER_STATE = "the outputs differ for the same input, but not in the first call: compare the states that it receives"
NO_CALL, NO_NOISE = RecordedCall(None, None), CallNoise(None, None)  # for layers that the forward pass did not enter


def compare_activations(comparison: SideComparison) -> list[Stage]:
    """Compare the layers in evaluation mode, and also in training mode if the model has BatchNorm."""
    stages = [compare_layers(EVALUATION_MODE, comparison.evaluation_mode)]
    if any(name.endswith(("running_mean", "moving_mean")) for name in comparison.a.states[0].weights):
        stage = compare_layers(TRAINING_MODE, comparison.training_mode)
        known_causes = {(cause.cause, cause.tensor) for cause in stages[0].causes}
        stage.causes = [cause for cause in stage.causes if (cause.cause, cause.tensor) not in known_causes]
        stages.append(stage)
    return stages


def compare_layers(name: str, models: ModelObservations) -> Stage:
    """Compare each layer alone, and the code before it, in A's order of execution."""
    layer_comparison = _LayerComparison(Stage(name, precision=models.precision), models)
    order = {path: index for index, path in enumerate(models.a.calls)}
    for layer in sorted(models.layers, key=lambda layer: order.get(layer.path_a, 0)):
        layer_comparison.compare_layer(layer)
    layer_comparison.compare_outputs()
    return layer_comparison.stage


class _LayerComparison:
    """Comparison of the layers one after another, which remembers the outputs of the layers before."""

    def __init__(self, stage: Stage, models: ModelObservations) -> None:
        self.stage, self.models = stage, models
        # The inputs and outputs of A's layers, in B's layout, by the layer's path in B
        self.calls_of_a = convert_calls(models.layers, models.a, models.b)
        self.earlier_outputs: list[LayerOutput] = []
        self.compared_calls = Counter(drop_call_number(layer.path_b) for layer in models.layers)
        # Paths in B of layers whose input, or whose output, differs for a reason that an earlier call has shown
        self.explained_inputs: set[str] = set()
        self.explained_layers: set[str] = set()
        # Whether a setting of an earlier layer, such as its stride, explains the other sizes of the next inputs
        self.has_other_sizes = False
        self.hides_later_code = False  # whether a layer differs, and some of its calls are not compared
        sides = (("a", models.a, models.unpaired_a), ("b", models.b, models.unpaired_b))
        # Calls of layers that the other model lacks, by side. A call is removed at the first difference after it
        self.pending = {
            side: {path for path in observation.calls if drop_call_number(path) in unpaired}
            for side, observation, unpaired in sides
        }
        self.positions = {  # position of each call in the order of execution, by side and path
            side: {path: position for position, path in enumerate(observation.calls)} for side, observation, _ in sides
        }

    def compare_layer(self, layer: LayerMatch) -> None:
        """Compare the inputs that the code computes from A's outputs, and the layer's outputs for A's input."""
        models, expected = self.models, self.calls_of_a.get(layer.path_b)
        isolated = layer.get_call_of_b(models.b_isolated.calls)
        if expected is None or isolated is None:
            self._compare_shapes(layer, isolated or NO_CALL)
            return
        call_a = layer.get_call_of_a(models.a.calls) or NO_CALL
        layer_noise, whole_noise = (
            layer.get_call_of_a(observation.noise) or NO_NOISE
            for observation in (models.layer_noise, models.a_perturbed)
        )
        model_noise = whole_noise.returned or 0.0
        a, b = expected.received, isolated.received
        if a is not None and b is not None and a.shape == b.shape:
            self.has_other_sizes = False
            noise = model_noise if layer_noise.received is None else layer_noise.received
            tensor, precision = f"input of {layer.title}", models.precision_of(a, b)
            if self.stage.compare_arrays(tensor, a, b, noise, precision=precision).differs:
                self._explain_code(tensor, layer.title, a, b, layer)
                self.hides_later_code |= self._has_other_calls(layer)
        elif a is None and expected.returned is None:
            return
        if expected.returned is not None and isolated.returned is not None:
            noise = model_noise if layer_noise.returned is None else layer_noise.returned
            self._compare_returned(layer, expected, isolated, noise, model_noise)
        returned = call_a.returned if expected.returned is None else expected.returned
        self.earlier_outputs.append(LayerOutput(layer.title, returned, a, b))

    def _compare_shapes(self, layer: LayerMatch, isolated: RecordedCall) -> None:
        """Add a cause if a layer receives an array of another size in B, because code pools or pads otherwise.

        If the layers receive arrays of one size, and a setting makes the sizes of the outputs differ, it is the cause.
        """
        call_a = layer.get_call_of_a(self.models.a.calls) or NO_CALL
        call_b = layer.get_call_of_b(self.models.b.calls) or NO_CALL
        if (setting := find_setting_of_size(layer, call_a, call_b)) is not None:
            name, value_a, value_b = setting
            sentence = f"{layer.title}: {name} is {value_a} in A and {value_b} in B: its outputs have other sizes"
            self.stage.add_mismatch(layer.title)
            self.stage.add_cause(name, "b", layer.title, sentence)
            self.has_other_sizes = True
            return
        a, b = call_a.received, isolated.received
        if a is None or b is None or a.dtype.kind != "f" or a.ndim != b.ndim or a.ndim < 3 or a.size == b.size:
            return
        returned_b = (layer.get_call_of_b(self.models.b.calls) or NO_CALL).returned
        returned_a = convert_layout(call_a.returned, returned_b)
        if returned_a is not None and returned_b is not None and is_close(returned_a, returned_b):
            return  # one side pads before the layer and the other within it, for example
        aligned = a if a.shape[-1] == b.shape[-1] else np.moveaxis(a, 1, -1)
        has_moved = aligned is not a
        if aligned.shape[-1] == b.shape[-1] and (has_moved or aligned.shape[1] != b.shape[1]) and len(a) == len(b):
            tensor = f"input of {layer.title}"
            self.stage.add_mismatch(tensor)
            if self.has_other_sizes:
                self.stage.checks[-1] = replace(self.stage.checks[-1], may_begin_here=False)
            else:
                self._explain_code(tensor, layer.title, aligned, b, layer)

    def _compare_returned(
        self, layer: LayerMatch, expected: RecordedCall, isolated: RecordedCall, noise: float, model_noise: float
    ) -> None:
        """Compare the outputs of a layer for the same input. If they agree, compare the outputs in the whole models.

        Args:
            layer: The pair of layers.
            expected: The input and the output of A's layer, in B's layout.
            isolated: The output of B's layer for A's input.
            noise: Noise of the layer alone.
            model_noise: Noise of the layer's output in the whole model.
        """
        a, b, b_whole = expected.returned, isolated.returned, self.models.b.calls[layer.path_b].returned
        assert a is not None and b is not None
        precision = self.models.precision_of(a, b)
        path, has_state = drop_call_number(layer.path_b), _is_later_call_of_cell(layer, expected)
        is_known = path in self.explained_layers or self._is_incomplete(layer)
        is_known = is_known or self._receives_other_indices(layer, isolated)
        # The state of a cell is another input, which earlier differences change
        is_known = is_known or (has_state and any(check.differs for check in self.stage.checks))
        check = self.stage.compare_arrays(layer.title, a, b, noise, may_begin_here=not is_known, precision=precision)
        if check.differs and not is_known:
            self.explained_layers.add(path)
            masks = list_masks(self.models.batch)
            explanation = (
                Explanation("recurrent_layer", f"{layer.title}: {OTHER_STATE}", confirmed=False)
                if has_state
                else explain_layer(layer, expected, isolated, self.models.weights, masks, self._list_memories())
            )
            self.stage.add_explanation(layer.title, explanation)
        elif not is_known and b_whole is not None and b_whole.shape == a.shape:
            tensor = f"{layer.title} (whole model)"
            self.stage.compare_arrays(tensor, a, b_whole, model_noise, may_begin_here=False)
        self.hides_later_code |= check.differs and self._has_other_calls(layer)

    def _has_other_calls(self, layer: LayerMatch) -> bool:
        """Check whether some calls of a layer are not compared. In these calls B's layer returns its own arrays."""
        path_a, path_b = drop_call_number(layer.path_a), drop_call_number(layer.path_b)
        count = max(self.models.a.counts.get(path_a, 1), self.models.b.counts.get(path_b, 1))
        return count > self.compared_calls[path_b]

    def _list_memories(self) -> list[np.ndarray]:
        """Return arrays that a cross-attention may attend to: earlier outputs, the latest first, and the batch."""
        outputs = [output.returned for output in reversed(self.earlier_outputs)]
        return [array for array in (*outputs, *self.models.batch.values()) if array is not None and array.ndim == 3]

    def _receives_other_indices(self, layer: LayerMatch, isolated: RecordedCall) -> bool:
        """Check whether the code before an embedding of B computes other indices than A's, and add the cause."""
        call_a = layer.get_call_of_a(self.models.a.calls)
        if layer.kind != "embedding" or call_a is None or call_a.received is None or isolated.received is None:
            return False
        explanation = explain_indices(layer.title, call_a.received, isolated.received)
        path = drop_call_number(layer.path_b)
        if explanation is not None and path not in self.explained_inputs:
            self.explained_inputs.add(path)
            self.stage.add_mismatch(f"input of {layer.title}")
            self.stage.add_explanation(f"input of {layer.title}", explanation)
        return explanation is not None

    def _is_incomplete(self, layer: LayerMatch) -> bool:
        """Check whether one of a pair of layers has a parameter that the other lacks, such as a bias."""
        return any(
            drop_call_number(path) in unpaired
            for paths, unpaired in ((layer.paths_a, self.models.unpaired_a), (layer.paths_b, self.models.unpaired_b))
            for path in paths
        )

    def compare_outputs(self) -> None:
        """Compare the outputs of the models for the first micro-batch."""
        models = self.models
        a, b, b_isolated = models.outputs_of_a, models.b.outputs[0], models.b_isolated.outputs[0]
        if a.shape != b.shape:
            self.stage.add_mismatch("outputs")
            sentence = f"outputs are {list(a.shape)} in A and {list(b.shape)} in B"
            self.stage.add_cause(SHAPE_OF_OUTPUTS, "b", "outputs", sentence)
            return
        model_noise = measure_noise(models.a.outputs[0], models.a_perturbed.outputs[0])
        noise = measure_noise(models.a.outputs[0], models.layer_noise.outputs[0], model_noise)
        precision = models.precision_of(a, b_isolated)
        if self.stage.compare_arrays("outputs", a, b_isolated, noise, precision=precision).differs:
            self._explain_code("outputs", "the outputs", a, b_isolated)
        elif not np.array_equal(a, b, equal_nan=True):
            self.stage.compare_arrays("outputs (whole model)", a, b, model_noise, may_begin_here=False)

    def _explain_code(
        self, tensor: str, title: str, a: np.ndarray, b: np.ndarray, layer: LayerMatch | None = None
    ) -> None:
        """Add the causes of a difference in the code before a layer, or before the outputs if the layer is None.

        If one model lacks a layer, this layer is the cause of the first difference in the code after it. The code
        before the calls of a layer is explained once.
        """
        path = drop_call_number(layer.path_b) if layer else ""
        is_known = self._pop_unpaired(layer) or self._comes_from_unpaired(a, b) or path in self.explained_inputs
        if is_known and layer is not None:
            self.explained_inputs.add(path)
        if is_known or self.hides_later_code:
            self.stage.checks[-1] = replace(self.stage.checks[-1], may_begin_here=False)
            return
        models = self.models
        reordered = [] if layer is None else self._list_reordered_outputs(layer)
        section = CodeSection(tensor, title, a, b, self.earlier_outputs, models.batch, models.weights, reordered)
        explanations = explain_code(section)
        for explanation in explanations:
            self.stage.add_explanation(tensor, explanation)
        if layer is not None and explanations:
            self.explained_inputs.add(path)
        if not explanations:  # an earlier difference explains this difference
            self.stage.checks[-1] = replace(self.stage.checks[-1], may_begin_here=False)

    def _list_reordered_outputs(self, layer: LayerMatch) -> list[LayerOutput]:
        """Return the outputs of the layers that run before a layer on one side and after it on the other."""
        positions_a, positions_b = self.positions["a"], self.positions["b"]
        position_a, position_b = positions_a.get(layer.path_a, 0), positions_b.get(layer.path_b, 0)
        return [
            LayerOutput(other.title, call.returned)
            for other in self.models.layers
            if (positions_a.get(other.path_a, position_a) < position_a)
            != (positions_b.get(other.path_b, position_b) < position_b)
            and (call := self.calls_of_a.get(other.path_b)) is not None
        ]

    def _pop_unpaired(self, layer: LayerMatch | None) -> bool:
        """Check whether a call of a layer that one model lacks is pending before `layer`; None: before the outputs.

        Such calls are no longer pending afterwards.
        """
        has_any = False
        for side, paths in (("a", layer.paths_a if layer else None), ("b", layer.paths_b if layer else None)):
            positions = self.positions[side]
            end = len(positions) if paths is None else max(positions.get(path, -1) for path in paths)
            earlier = {path for path in self.pending[side] if positions.get(path, end) < end}
            self.pending[side] -= earlier
            has_any = has_any or bool(earlier)
        return has_any

    def _comes_from_unpaired(self, a: np.ndarray, b: np.ndarray) -> bool:
        """Check whether A's or B's array is the output of a layer that the other model lacks."""
        sides = (
            (a, self.models.a.calls, self.models.unpaired_a),
            (b, self.models.b_isolated.calls, self.models.unpaired_b),
        )
        for array, calls, paths in sides:
            for call in (call for path, call in calls.items() if drop_call_number(path) in paths):
                converted = convert_layout(call.returned, array)
                if converted is not None and is_close(converted, array):
                    return True
        return False


def _is_later_call_of_cell(layer: LayerMatch, expected: RecordedCall) -> bool:
    """Check whether this is not the first call of a recurrent cell [n, features] that has the same settings in B."""
    is_cell = layer.kind in RECURRENT and expected.received is not None and expected.received.ndim == 2
    is_later = layer.path_a != drop_call_number(layer.path_a)
    return is_cell and is_later and not list_different_settings(layer.settings_a, layer.settings_b)
