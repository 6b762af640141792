"""The first layer in which a PyTorch and a Keras model differ, as a sentence."""

from collections.abc import Sequence

from common.map.activations import explain_activations
from common.map.array_differences import has_strides, list_different_settings, smallest_difference
from common.map.description import ComputedPass, RecordedCall
from common.map.reshaped_features import has_moved
from common.map.sublayers import LayerPair, Sublayer


def explain_first_difference(
    layer_pairs: Sequence[LayerPair], torch_pass: ComputedPass, keras_pass: ComputedPass, tolerance: float
) -> str:
    """Return a sentence that names the first pair of layers whose outputs differ, and what explains the difference.

    Args:
        layer_pairs: The pairs of layers in the order of execution.
        torch_pass: A forward pass of PyTorch's model.
        keras_pass: A forward pass of Keras's model on the same inputs and weights.
        tolerance: The largest relative difference of outputs that count as equal.
    """
    last_equal = None
    uncompared: list[LayerPair] = []  # the pairs after `last_equal` whose outputs cannot be compared
    parameters = [pair for pair in layer_pairs if _is_parameter(pair)]  # it is not known which code uses them
    for pair in layer_pairs:
        torch_call = torch_pass.calls.get(pair.torch.output or "")
        keras_call = keras_pass.calls.get(pair.keras.output or "")
        if torch_call is None or keras_call is None or _is_parameter(pair):
            uncompared.append(pair)  # a layer of its own class may compute other things than its counterpart
            continue
        unflattened_shape = pair.torch.unflattened_shape
        if unflattened_shape == pair.keras.unflattened_shape:
            unflattened_shape = None
        output_shape = unflattened_shape
        if pair.torch.kind == "linear":  # mixes all features; the model may divide them afterwards
            torch_shape, keras_shape = pair.torch.reshaped_shape, pair.keras.reshaped_shape
            output_shape = torch_shape if torch_shape != keras_shape and has_moved(torch_shape, keras_shape) else None
        output_gap = smallest_difference(torch_call.returned, keras_call.returned, output_shape)
        if output_gap is None:
            uncompared.append(pair)
            continue
        if output_gap <= tolerance:
            last_equal, uncompared = pair, []
            continue
        sentence = f"the first layer whose output differs is {pair}, by {output_gap:.1e} of its norm"
        input_gap = None
        if pair.torch.path == pair.torch.output:  # the sublayer is a whole layer, so that its input is recorded
            input_gap = smallest_difference(torch_call.received, keras_call.received, unflattened_shape)
        if input_gap is not None and input_gap > tolerance:
            place = f"after {last_equal}, before that layer" if last_equal else "before that layer"
            activations = _explain_between(last_equal, pair, torch_pass, keras_pass)
            advice = f"{activations} {place}" if activations else _advise(place, uncompared or parameters)
            return f"{sentence}; its input differs already, by {input_gap:.1e}: {advice}"
        return "; ".join([sentence, *_explain_settings(pair)])
    activations = None if uncompared else _explain_end(last_equal, torch_pass, keras_pass)
    if activations:
        return f"no output of a layer differs: {activations} after {last_equal}"
    advice = _advise(f"after {last_equal}" if last_equal else "", uncompared or parameters)
    return f"no compared output of a layer differs: {advice}"


def _advise(place: str, layer_pairs: Sequence[LayerPair]) -> str:
    """Return the advice to look at a place in the models, first at layers whose outputs are not compared."""
    if not layer_pairs:
        return f"look {place or 'at the layers without parameters'}"
    (torch, *_), (keras, *_) = (sublayer.variable_names for sublayer in layer_pairs[0])
    more = f" and {len(layer_pairs) - 1} more" if len(layer_pairs) > 1 else ""
    start = f"look {place}, first" if place else "look"
    return f"{start} at {torch} (PyTorch) and {keras} (Keras){more}, whose outputs are not compared"


def _is_parameter(pair: LayerPair) -> bool:
    return "parameter" in (pair.torch.kind, pair.keras.kind)


def _explain_between(
    before: LayerPair | None, after: LayerPair, torch_pass: ComputedPass, keras_pass: ComputedPass
) -> str | None:
    """Name the activations between two pairs of layers if they differ; None for equal or unknown activations."""
    if before is None:
        return None
    calls = [_get_call(torch_pass, pair.torch) for pair in (before, after)]
    calls += [_get_call(keras_pass, pair.keras) for pair in (before, after)]
    present = [call for call in calls if call is not None]
    return explain_activations(*present) if len(present) == len(calls) else None


def _get_call(computed: ComputedPass, sublayer: Sublayer) -> RecordedCall | None:
    """Return the call of the layer that returns the output of a sublayer; None if there is none."""
    return None if sublayer.output is None else computed.calls.get(sublayer.output)


def _explain_end(last: LayerPair | None, torch_pass: ComputedPass, keras_pass: ComputedPass) -> str | None:
    """Name the activations between the last pair of layers and the outputs if they differ; None if unknown."""
    if last is None or len(torch_pass.outputs) != 1 or len(keras_pass.outputs) != 1:
        return None
    torch_call, keras_call = _get_call(torch_pass, last.torch), _get_call(keras_pass, last.keras)
    if torch_call is None or keras_call is None:
        return None
    torch_end, keras_end = (
        RecordedCall(received=output, returned=None)
        for computed in (torch_pass, keras_pass)
        for output in computed.outputs.values()
    )
    return explain_activations(torch_call, torch_end, keras_call, keras_end)


def _explain_settings(pair: LayerPair) -> list[str]:
    """Describe the settings that explain why two layers compute different outputs from the same input."""
    explanations = [
        f"{name} is {torch_value} in PyTorch and {keras_value} in Keras"
        for name, torch_value, keras_value in list_different_settings(pair.torch.settings, pair.keras.settings)
    ]
    if pair.keras.settings.get("padding") == "same" and has_strides(pair.keras.settings):
        if pair.keras.kind == "transposed convolution":
            explanations.append(
                "Keras crops the output of padding='same' at other places than PyTorch does; use padding='valid' and "
                "Cropping with PyTorch's padding at the start and padding - output_padding at the end"
            )
        else:
            explanations.append("Keras pads more at the end than at the start for padding='same' with strides")
    return explanations
