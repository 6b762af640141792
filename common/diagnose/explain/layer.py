"""Reasons why a layer of B returns another array than its counterpart in A for the same input.

A is the reference run of a diagnosis, and B the run that is compared with it. Both layers have the same weights.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from common.diagnose.explain.activation_difference import NO_ACTIVATION, find_activation
from common.diagnose.explain.gates import find_gate_order
from common.diagnose.explain.low_precision import STORED_BITS, Product, find_product_type
from common.diagnose.explain.normalization import epsilons_explain, find_epsilon
from common.diagnose.explain.padding import explain_cropping, explain_padding
from common.diagnose.explain.time_axis import compare_time_axes
from common.diagnose.explain.whole_attention import explain_whole_attention
from common.diagnose.explain.window_starts import have_same_windows
from common.diagnose.findings import Explanation
from common.diagnose.layer_match import LayerMatch
from common.diagnose.rounding import find_narrowest_type, is_close
from common.map.array_differences import has_strides, list_different_settings, relative_difference
from common.map.comparable_layers import ATTENTION
from common.map.description import RecordedCall

Weights = Mapping[str, np.ndarray]
PADDING = "padding"  # name of the setting that says how many zeros surround an input
SIZE_SETTINGS = {"stride", "dilation"}  # settings that decide the size of an output
HALF_PRECISION_ERROR = {"bfloat16": 2.0**-7, "float16": 2.0**-10}  # largest relative error of rounding to the type


@dataclass(frozen=True)
class LayerArrays:
    """Input, weights and outputs of a pair of layers.

    Attributes:
        x: Input of both layers.
        a: Output of A's layer.
        b: Output of B's layer.
        weight: The parameter "weight" of both layers; None for layers without it.
        bias: The parameter "bias" of both layers; None for layers without it.
    """

    x: np.ndarray
    a: np.ndarray
    b: np.ndarray
    weight: np.ndarray | None
    bias: np.ndarray | None


def explain_numbers(tensor: str, a: np.ndarray, b: np.ndarray) -> Explanation | None:
    """Check whether only A or only B has NaN or infinite numbers, or numbers that are rounded to fewer digits."""
    for side, array, other in (("b", b, a), ("a", a, b)):
        name = side.upper()
        if count := int((~np.isfinite(array) & np.isfinite(other)).sum()):
            kind = "NaN" if np.isnan(array[np.isfinite(other)]).any() else "infinite"
            sentence = f"{tensor} is {kind} in {name} in {count} of {array.size} places, and finite on the other side"
            return Explanation("not_finite", sentence, side=side)
        narrow, wide = find_narrowest_type(array), find_narrowest_type(other)
        if (
            narrow in HALF_PRECISION_ERROR
            and narrow != wide
            and relative_difference(a, b) < HALF_PRECISION_ERROR[narrow]
        ):
            sentence = f"{tensor} is rounded to {narrow} in {name}, to {wide} on the other side"
            return Explanation("lower_precision", sentence, side=side)
    return None


def explain_layer(
    layer: LayerMatch,
    a: RecordedCall,
    b: RecordedCall,
    weights: Weights,
    masks: Weights,
    memories: Sequence[np.ndarray] = (),
) -> Explanation:
    """Explain why B's layer returns another array for the same input.

    Args:
        layer: The pair of layers.
        a: The input and the output of A's layer, in B's layout.
        b: The output of B's layer for A's input.
        weights: Weights of both models, by parameter name.
        masks: Masks [n, tokens] of the batch, by name.
        memories: Arrays to which an attention of both sides may attend, besides its first input.
    """
    if a.returned is not None and b.returned is not None:
        numbers = explain_numbers(layer.title, a.returned, b.returned)
        if numbers is not None:
            return numbers
    has_same_padding = a.received is not None and have_same_windows(
        layer, a.received, weights.get(f"{layer.name}.weight")
    )
    of_settings = _explain_settings(layer, a, b, weights, has_same_padding)
    if of_settings is not None and of_settings.cause == PADDING:  # the outputs may show which elements are padded
        of_output = _explain_output(layer, a, b, weights)
        of_settings = of_output if of_output is not None and of_output.confirmed else of_settings
    explanation = (
        of_settings
        or _explain_attention(layer, a, b, weights, masks, memories)
        or _explain_output(layer, a, b, weights)
        or _guess(layer, has_same_padding)
    )
    return Explanation(explanation.cause, f"{layer.title}: {explanation.sentence}", explanation.confirmed)


def _explain_settings(
    layer: LayerMatch, a: RecordedCall, b: RecordedCall, weights: Weights, has_same_padding: bool
) -> Explanation | None:
    """Check whether the layers have different settings. Only a different epsilon can be confirmed."""
    settings = list_different_settings(layer.settings_a, layer.settings_b)
    settings = [setting for setting in settings if not (has_same_padding and setting[0] == PADDING)]
    if not settings:
        return None
    name, value_a, value_b = settings[0]
    confirmed = name == "epsilon" and epsilons_explain(layer, a, b, weights)
    return Explanation(name, f"{name} is {value_a} in A and {value_b} in B", confirmed)


def find_setting_of_size(
    layer: LayerMatch, call_a: RecordedCall, call_b: RecordedCall
) -> tuple[str, object, object] | None:
    """Return a setting that makes the sizes of the outputs differ for inputs of one size, and its values in A and B."""
    arrays = [call_a.received, call_b.received, call_a.returned, call_b.returned]
    sizes = [None if array is None else array.size for array in arrays]
    if None in sizes or sizes[0] != sizes[1] or sizes[2] == sizes[3]:
        return None
    settings = list_different_settings(layer.settings_a, layer.settings_b)
    return next((setting for setting in settings if setting[0] in SIZE_SETTINGS), None)


def _explain_attention(
    layer: LayerMatch,
    a: RecordedCall,
    b: RecordedCall,
    weights: Weights,
    masks: Weights,
    memories: Sequence[np.ndarray],
) -> Explanation | None:
    if layer.kind != ATTENTION or a.received is None or a.returned is None or b.returned is None:
        return None
    return explain_whole_attention(layer, a.received, (a.returned, b.returned), weights, masks, memories)


def _explain_output(layer: LayerMatch, a: RecordedCall, b: RecordedCall, weights: Weights) -> Explanation | None:
    """Look for a formula that reproduces B's output."""
    if a.received is None or a.returned is None or b.returned is None:
        return None
    weight, bias = (weights.get(f"{layer.name}.{name}") for name in ("weight", "bias"))
    arrays = LayerArrays(a.received, a.returned, b.returned, weight, bias)
    for explain in (_explain_linear, _explain_padding, _explain_precision, _explain_activation, _explain_epsilon):
        if explanation := explain(layer, arrays):
            return explanation
    return _explain_gates(layer, arrays, weights)


def _explain_linear(layer: LayerMatch, arrays: LayerArrays) -> Explanation | None:
    x, weight, bias = arrays.x, arrays.weight, arrays.bias
    if layer.kind != "linear" or weight is None or x.ndim != 2:
        return None
    if weight.shape[0] == weight.shape[1] and is_close(x @ weight + (0 if bias is None else bias), arrays.b):
        return Explanation("transposed_kernel", "B multiplies by the transposed kernel")
    if bias is not None and bias.any() and is_close(x @ weight.T, arrays.b):
        return Explanation("bias_ignored", "B does not add the bias")
    return None


def _explain_padding(layer: LayerMatch, arrays: LayerArrays) -> Explanation | None:
    if layer.kind == "transposed convolution":
        return explain_cropping(arrays.a, arrays.b)
    if layer.kind != "convolution" or arrays.weight is None:
        return None
    bias = np.zeros(len(arrays.weight)) if arrays.bias is None else arrays.bias
    settings = layer.settings_a, layer.settings_b
    return explain_padding(settings, arrays.x, (arrays.a, arrays.b), arrays.weight, bias)


def _explain_precision(layer: LayerMatch, arrays: LayerArrays) -> Explanation | None:
    """Check whether B's layer multiplies in a lower precision."""
    weight = arrays.weight
    if weight is None or arrays.a.shape != arrays.b.shape:
        return None
    bias = np.zeros(len(weight)) if arrays.bias is None else arrays.bias
    stride = int(np.max(np.asarray(layer.settings_a.get("stride", 1))))
    name = find_product_type(Product(arrays.x, weight, bias, stride), arrays.a, arrays.b)
    if name is None:
        return None
    reason = "its output equals products in float32"
    if name in STORED_BITS:
        reason = f"its output equals that of inputs and weights rounded to {STORED_BITS[name]} bits of mantissa"
    return Explanation(f"computed_in_{name}", f"B multiplies in {name}: {reason}")


def _explain_activation(layer: LayerMatch, arrays: LayerArrays) -> Explanation | None:
    activation = find_activation(arrays.a, arrays.b)
    if activation in (None, NO_ACTIVATION):
        return None
    return Explanation("activation", f"B applies {activation} after it, A does not")


def _explain_epsilon(layer: LayerMatch, arrays: LayerArrays) -> Explanation | None:
    """Check whether both layers are layer norms with different epsilons."""
    if arrays.weight is None or arrays.bias is None:
        return None
    epsilon_a, epsilon_b = (
        find_epsilon(arrays.x, arrays.weight, arrays.bias, output) for output in (arrays.a, arrays.b)
    )
    if epsilon_a is None or epsilon_b is None:
        return None
    return Explanation("epsilon", f"epsilon is {epsilon_a:.3g} in A and {epsilon_b:.3g} in B")


def _explain_gates(layer: LayerMatch, arrays: LayerArrays, weights: Weights) -> Explanation | None:
    if explanation := compare_time_axes(layer.name, weights, arrays.x, (arrays.a, arrays.b)):
        return explanation
    order_a, order_b = (find_gate_order(layer.name, weights, arrays.x, output) for output in (arrays.a, arrays.b))
    if not order_a or not order_b or order_a == order_b:
        return None
    return Explanation("gate_order", f"the gates are {order_a} in A and {order_b} in B")


def _guess(layer: LayerMatch, has_same_padding: bool) -> Explanation:
    """Return the most likely reason if no computation confirms one."""
    has_stride = any(map(has_strides, (layer.settings_a, layer.settings_b)))
    if layer.kind == "convolution" and has_stride and not has_same_padding:
        sentence = "padding='same' at strides pads more at the end than at the start, PyTorch pads equally at both ends"
        return Explanation("same_padding_at_strides", sentence, confirmed=False)
    if layer.kind in ("LSTM", "GRU", "RNN"):
        sentence = (
            "the outputs differ for the same input: compare the initial state, the order of gates, reset_after, and "
            "activations"
        )
        return Explanation("recurrent_layer", sentence, confirmed=False)
    return Explanation(
        "layer", f"this {layer.kind or 'layer'} returns another output in B for the same input", confirmed=False
    )
