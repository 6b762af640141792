"""Why a layer returns something else on the same input."""

from collections.abc import Mapping

import numpy as np

from common.diagnose.explain.attention import activation_of, epsilon_of
from common.diagnose.explain.gates import gates_of
from common.diagnose.explain.low_precision import TYPES, precision_of
from common.diagnose.findings import Stage
from common.diagnose.observation import LayerPair, Model
from common.diagnose.rounding import close, narrowest
from common.map.description import Call
from common.map.differences import different_settings, has_strides, relative

Array = np.ndarray
Named = tuple[str, str]  # a cause, and the sentence
HALVES = {"bfloat16": 2.0**-7, "float16": 2.0**-10}  # the largest difference that their rounding makes


def explain_numbers(stage: Stage, tensor: str, a: np.ndarray | None, b: np.ndarray | None) -> bool:
    """Numbers that are none, and numbers of fewer digits."""
    if a is None or b is None:
        return False
    for side, name, found, other in (("b", "B", b, a), ("a", "A", a, b)):
        if count := int((~np.isfinite(found) & np.isfinite(other)).sum()):
            what = "NaN" if np.isnan(found[np.isfinite(other)]).any() else "infinite"
            words = (
                f"{tensor} is {what} in {name} in {count} of {found.size} places where it is finite on the other side"
            )
            stage.blame("not_finite", side, tensor, words)
            return True
        kind = narrowest(found)
        if kind in HALVES and kind != narrowest(other) and relative(a, b) < HALVES[kind]:
            words = f"{tensor} is rounded to {kind} in {name}, to {narrowest(other)} on the other side"
            stage.blame("lower_precision", side, tensor, words)
            return True
    return False


def explain_layer(stage: Stage, pair: LayerPair, a: Call, b: Call, model: Model) -> None:
    """The layer itself: on the same input it returns something else."""
    if explain_numbers(stage, pair.title, a.returned, b.returned):
        return
    if settings := different_settings(*pair.settings):
        name, x, y = settings[0]
        confirmed = name == "epsilon" and _epsilon_explains(pair, a, b, model)
        stage.blame(name, "b", pair.title, f"{pair.title}: {name} is {x} in A and {y} in B", confirmed)
        return
    if a.received is not None and a.returned is not None and b.returned is not None:
        for explain in (_linear, _precision, _activation, _epsilon, _gates):
            if found := explain(pair, a.received, a.returned, b.returned, model.weights):
                stage.blame(found[0], "b", pair.title, f"{pair.title}: {found[1]}")
                return
    cause, words = _guess(pair)
    stage.blame(cause, "b", pair.title, f"{pair.title}: {words}", confirmed=False)


def _linear(pair: LayerPair, x: Array, ours: Array, theirs: Array, weights: Mapping[str, Array]) -> Named | None:
    weight, bias = (weights.get(f"{pair.name}.{name}") for name in ("weight", "bias"))
    if pair.kind != "linear" or weight is None or x.ndim != 2:
        return None
    shift = 0 if bias is None else bias
    if weight.shape[0] == weight.shape[1] and close(x @ weight + shift, theirs):
        return "transposed_kernel", "B multiplies by the transposed kernel"
    if bias is not None and close(x @ weight.T, theirs):
        return "bias_ignored", "B does not add the bias"
    return None


def _precision(pair: LayerPair, x: Array, ours: Array, theirs: Array, weights: Mapping[str, Array]) -> Named | None:
    weight = weights.get(f"{pair.name}.weight")
    if weight is None or ours.shape != theirs.shape:
        return None
    bias, stride = weights.get(f"{pair.name}.bias", np.zeros(len(weight))), pair.settings[0].get("stride", 1)
    name = precision_of(x, weight, bias, int(np.max(stride)), ours, theirs)
    if name is None:
        return None
    words = "its output is that of products in float32"
    if name in TYPES:
        words = f"its output is that of inputs and weights rounded to {TYPES[name][0]} bits of mantissa"
    return f"computed_in_{name}", f"B multiplies in {name}: {words}"


def _activation(pair: LayerPair, x: Array, ours: Array, theirs: Array, weights: Mapping[str, Array]) -> Named | None:
    after = activation_of(ours, theirs)
    return None if after in (None, "no activation") else ("activation", f"B has {after} after it, A has not")


def _epsilon(pair: LayerPair, x: Array, ours: Array, theirs: Array, weights: Mapping[str, Array]) -> Named | None:
    weight, bias = (weights.get(f"{pair.name}.{name}") for name in ("weight", "bias"))
    if weight is None or bias is None:
        return None
    a, b = (epsilon_of(x, weight, bias, each) for each in (ours, theirs))
    return ("epsilon", f"epsilon is {a:.3g} in A and {b:.3g} in B") if a is not None and b is not None else None


def _gates(pair: LayerPair, x: Array, ours: Array, theirs: Array, weights: Mapping[str, Array]) -> Named | None:
    a, b = (gates_of(pair.name, weights, x, each) for each in (ours, theirs))
    return ("gate_order", f"the gates are {a} in A and {b} in B") if a and b and a != b else None


def _guess(pair: LayerPair) -> Named:
    """What nothing confirms."""
    if pair.kind == "convolution" and any(map(has_strides, pair.settings)):
        words = "padding='same' at strides pads more at the end than at the start, PyTorch's padding as much on both"
        return "same_padding_at_strides", words
    if pair.kind in ("LSTM", "GRU", "RNN"):
        words = "the layer's output differs on the same input: compare the order of gates, reset_after, activations"
        return "recurrent_layer", words
    return "layer", "on the same input B returns something else"


def _epsilon_explains(pair: LayerPair, a: Call, b: Call, model: Model) -> bool:
    """Whether each side's output is what its epsilon makes of the same input, by a layer norm or a batch norm."""
    x, gamma = a.received, model.weights.get(f"{pair.name}.weight")
    if pair.kind not in ("layer norm", "batch norm") or x is None or gamma is None:
        return False
    if pair.kind == "layer norm":
        mean, variance = x.mean(-1, keepdims=True), x.var(-1, keepdims=True)
        shape = [len(gamma)]
    else:
        shape = [
            len(gamma) if axis == (x.ndim - 1 if x.shape[-1] == len(gamma) else 1) else 1 for axis in range(x.ndim)
        ]
        mean, variance = (model.weights[f"{pair.name}.running_{each}"].reshape(shape) for each in ("mean", "var"))
    beta = model.weights.get(f"{pair.name}.bias", np.zeros_like(gamma))
    epsilons = [float(each["epsilon"]) for each in pair.settings]
    normal = [(x - mean) / np.sqrt(variance + each) * gamma.reshape(shape) + beta.reshape(shape) for each in epsilons]
    return all(call.returned is not None and close(y, call.returned) for y, call in zip(normal, (a, b), strict=True))
