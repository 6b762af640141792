"""The stages "activations": which layer adds a difference, or the code between two layers."""

import numpy as np

from common.diagnose.comparison import SideComparison
from common.diagnose.explain.between_layers import CodeSection, LayerOutput, explain_code
from common.diagnose.explain.layer import explain_layer
from common.diagnose.findings import Stage
from common.diagnose.layer_match import LayerMatch
from common.diagnose.layout_conversion import convert_calls
from common.diagnose.model_observations import ModelObservations
from common.diagnose.rounding import measure_noise
from common.map.description import RecordedCall

EVALUATION_MODE, TRAINING_MODE = "activations", "activations in training mode"
NO_CALL = RecordedCall(None, None)


def compare_activations(comparison: SideComparison) -> list[Stage]:
    """Compare the layers in evaluation mode, and also in training mode if the model has BatchNorm."""
    stages = [compare_layers(EVALUATION_MODE, comparison.evaluation_mode)]
    if any(name.endswith(("running_mean", "moving_mean")) for name in comparison.a.states[0].weights):
        stage = compare_layers(TRAINING_MODE, comparison.training_mode)
        known = {(cause.cause, cause.tensor) for cause in stages[0].causes}
        stage.causes = [cause for cause in stage.causes if (cause.cause, cause.tensor) not in known]
        stages.append(stage)
    return stages


def compare_layers(name: str, models: ModelObservations) -> Stage:
    """Compare each layer by itself, and the code before it."""
    walk = _LayerComparison(Stage(name, precision=models.precision), models)
    order = {path: index for index, path in enumerate(models.a.calls)}
    for layer in sorted(models.layers, key=lambda layer: order.get(layer.path_a, 0)):
        walk.compare_layer(layer)
    walk.compare_outputs()
    return walk.stage


class _LayerComparison:
    """SideComparison of the layers in the order of execution, which remembers the layers that ran before."""

    def __init__(self, stage: Stage, models: ModelObservations) -> None:
        self.stage, self.models = stage, models
        self.calls = convert_calls(models.layers, models.a, models.b)  # A's arrays in B's layout, by B's path
        self.earlier: list[LayerOutput] = []

    def compare_layer(self, layer: LayerMatch) -> None:
        """Compare what a layer receives and what it returns."""
        models, expected = self.models, self.calls.get(layer.path_b)
        isolated = models.b_isolated.calls.get(layer.path_b)
        if expected is None or isolated is None:
            return
        call_a, call_noisy, call_perturbed = (
            observation.calls.get(layer.path_a, NO_CALL)
            for observation in (models.a, models.layer_noise, models.a_perturbed)
        )
        model_noise = measure_noise(call_a.returned, call_perturbed.returned)
        a, b = expected.received, isolated.received
        if a is not None and b is not None and a.shape == b.shape:
            noise = measure_noise(call_a.received, call_noisy.received, model_noise)
            tensor, precision = f"input of {layer.title}", models.precision_of(a, b)
            if self.stage.compare_arrays(tensor, a, b, noise, precision=precision).differs:
                self._explain_code(tensor, layer.title, a, b)
        if expected.returned is not None and isolated.returned is not None:
            noise = measure_noise(call_a.returned, call_noisy.returned, model_noise)
            self._compare_returned(layer, expected, isolated, noise, model_noise)
        self.earlier.append(LayerOutput(layer.title, expected.returned))

    def _compare_returned(
        self, layer: LayerMatch, expected: RecordedCall, isolated: RecordedCall, noise: float, model_noise: float
    ) -> None:
        """Compare the outputs of a layer for the same input, and the outputs in the whole model if those agree."""
        a, b, b_whole = expected.returned, isolated.returned, self.models.b.calls[layer.path_b].returned
        assert a is not None and b is not None
        precision = self.models.precision_of(a, b)
        if self.stage.compare_arrays(layer.title, a, b, noise, precision=precision).differs:
            explanation = explain_layer(layer, expected, isolated, self.models.weights)
            self.stage.add_explanation(layer.title, explanation)
        elif b_whole is not None and b_whole.shape == a.shape:
            tensor = f"{layer.title} (whole model)"
            self.stage.compare_arrays(tensor, a, b_whole, model_noise, may_begin_here=False)

    def compare_outputs(self) -> None:
        """Compare the outputs of the models for the first micro-batch."""
        models = self.models
        a, b, b_isolated = (observation.outputs[0] for observation in (models.a, models.b, models.b_isolated))
        if a.shape != b.shape:
            self.stage.add_mismatch("outputs")
            sentence = f"outputs are {list(a.shape)} in A and {list(b.shape)} in B"
            self.stage.add_cause("shape_of_outputs", "b", "outputs", sentence)
            return
        model_noise = measure_noise(a, models.a_perturbed.outputs[0])
        noise = measure_noise(a, models.layer_noise.outputs[0], model_noise)
        precision = models.precision_of(a, b_isolated)
        if self.stage.compare_arrays("outputs", a, b_isolated, noise, precision=precision).differs:
            self._explain_code("outputs", "the outputs", a, b_isolated)
        elif not np.array_equal(a, b, equal_nan=True):
            self.stage.compare_arrays("outputs (whole model)", a, b, model_noise, may_begin_here=False)

    def _explain_code(self, tensor: str, title: str, a: np.ndarray, b: np.ndarray) -> None:
        for explanation in explain_code(CodeSection(tensor, title, a, b, self.earlier, self.models.batch)):
            self.stage.add_explanation(tensor, explanation)
