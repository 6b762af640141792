"""Dropout and noise of a user's model: which layers can be aligned, and a model without them for common.map."""

from collections.abc import Mapping

import keras
import numpy as np
import tensorflow as tf

from common.map.description import RecordedCall
from common.map.keras_noise import find_numbers, is_dropping, is_noise_layer, may_have_noise, set_rates_to_zero
from common.map.keras_paths import SEED_STATE, layers_by_path
from common.map.noise import Noise
from common.map.recognized_noise import explain_input, has_noise, recognize_noise
from tf_impl.aligned_layers import find_dropout_layers
from tf_impl.keras_two import replace_class


def find_dropouts(model: keras.Layer) -> tuple[dict[str, Noise], list[str]]:
    """Return the noise of the layers that `align_dropout` replaces, by path, and the other layers that draw numbers.

    An attention does not count, because the dropout layer inside it does.
    """
    noises, others = find_dropout_layers(model), []
    for path, layer in layers_by_path(model).items():
        if path in noises:
            continue
        function = _LayerFunction(layer)
        noise = recognize_noise(function, function.numbers) if function.may_have_noise else None
        if noise is not None:
            noises[path] = noise
        elif is_dropping(layer) or (function.may_have_noise and has_noise(function)):
            others.append(f"{layer.path} ({type(layer).__name__})")
    return noises, others


def explain_inputs(layers: Mapping[str, keras.Layer], calls: Mapping[str, RecordedCall], examples: int) -> list[str]:
    """Return the layers whose inputs do not have the examples in their first axis, as "path (reason)".

    Args:
        layers: Layers with noise, by path.
        calls: Their calls in a pass, by path.
        examples: The number of examples in the pass.
    """
    reasons = {path: explain_input(calls[path].received, examples) for path in layers}
    return [f"{path} ({reason})" for path, reason in reasons.items() if reason]


def disable_dropout(model: keras.Layer, noises: Mapping[str, Noise]) -> None:
    """Set all dropout rates to 0, and remove the noise of other layers, because the two frameworks draw differently.

    A ForwardTrace disables dropout that is not a layer but a function.
    """
    for path, layer in layers_by_path(model).items():
        set_rates_to_zero(layer)
        if path in noises and not is_noise_layer(layer):
            replace_class(layer, _Silence)


def seed_generators(model: keras.Layer, seed: int) -> None:
    """Seed the global random generators and the generators of Keras's layers."""
    keras.utils.set_random_seed(seed)
    for variable in model.variables:
        if variable.name == SEED_STATE:
            variable.assign(np.full(variable.shape, seed))


class _Silence:
    """The call of a layer without its noise."""

    def call(self, inputs: tf.Tensor, training: bool = False) -> tf.Tensor:
        return inputs


class _LayerFunction:
    """A layer as a function that `recognize_noise` calls. A call leaves the layer as it was.

    Attributes:
        may_have_noise: Whether the layer is not Keras's own, and has one input, no weights and no layers in it.
        numbers: The numbers among the layer's attributes.
    """

    def __init__(self, layer: keras.Layer) -> None:
        """Examine a layer."""
        self._layer = layer
        self.may_have_noise = may_have_noise(layer)
        self.numbers = find_numbers(layer).values()

    def __call__(self, inputs: np.ndarray, training: bool, seed: int) -> tuple[np.ndarray, np.ndarray]:
        layer, x = self._layer, tf.convert_to_tensor(inputs)
        states = [(variable, variable.numpy()) for variable in layer.variables]
        attributes, numbers = {**vars(layer)}, find_numbers(layer)
        seed_generators(layer, seed)
        try:
            with tf.GradientTape() as tape:
                tape.watch(x)
                outputs = layer(x, training=training)
        finally:
            is_constant = find_numbers(layer) == numbers
            vars(layer).update({name: attributes[name] for name in numbers})
            for variable, state in states:
                variable.assign(state)
        if not is_constant:
            raise ValueError("the layer has a state")
        return outputs.numpy(), tape.gradient(outputs, x, unconnected_gradients=tf.UnconnectedGradients.ZERO).numpy()
