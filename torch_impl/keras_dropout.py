"""Dropout and noise of Keras models on PyTorch: layers with the random numbers of the TensorFlow side, or with none."""

from collections.abc import Mapping
from typing import Any

import keras
import numpy as np
import torch
from typing_extensions import override

from common.data.dropout import compute_normal_table, derive_site_key
from common.map.keras_noise import (
    find_numbers,
    get_keras_noise,
    is_dropping,
    is_noise_layer,
    may_have_noise,
    set_rates_to_zero,
)
from common.map.noise import Noise
from common.map.recognized_noise import has_noise, recognize_noise
from torch_impl.aligned_layers import KeyedLayer, apply_noise
from torch_impl.dropout import compute_mask, compute_normal, hash_rows
from torch_impl.keras_module import KerasModule, seed_layers


class AlignedKerasLayer(KeyedLayer, keras.Layer):
    """A layer of Keras that draws from the examples' keys. Its channels are in the last axis, as on TensorFlow."""

    @override
    def call(self, inputs: torch.Tensor, training: bool = False) -> torch.Tensor:
        return apply_noise(inputs, self.noise, self._draw(inputs)) if training else inputs

    def _draw(self, inputs: torch.Tensor) -> torch.Tensor:
        """Return the `draws` of `apply_noise` for the inputs."""
        assert self.example_keys is not None, "the model must call use_dropout_keys in its forward pass"
        is_elementwise = self.noise.unit == "element"
        features = 1 if self.noise.unit == "example" else inputs.shape[-1]
        shape = inputs.shape[1:-1] if is_elementwise else torch.Size()
        row_keys = hash_rows(self.example_keys, self.site_key.to(inputs.device) + self._count_call(), shape)
        if self.noise.is_normal:
            wide = torch.promote_types(inputs.dtype, torch.float32)
            draws = compute_normal(row_keys, features, self.normal_table.to(inputs.device, wide))
        else:
            draws = compute_mask(row_keys, features, self.noise.strength)
        return draws if is_elementwise else draws.reshape(len(inputs), *[1] * (inputs.dim() - 2), features)


class _SilentLayer(keras.Layer):
    """A layer without its noise."""

    @override
    def call(self, inputs: torch.Tensor, training: bool = False) -> torch.Tensor:
        return inputs


def align_keras_dropout(model: KerasModule, noises: Mapping[str, Noise]) -> None:
    """Make layers of a model draw their random numbers from the examples' keys. noises: their noise by path."""
    layers = model.layers()
    for name, noise in noises.items():
        layer = layers[name]
        layer.__class__ = AlignedKerasLayer
        layer.noise, layer.example_keys, layer.calls = noise, None, 0
        layer.site_key = torch.tensor(derive_site_key(name))
        if noise.is_normal:
            layer.normal_table = torch.from_numpy(compute_normal_table())


def find_keras_dropouts(model: KerasModule) -> tuple[dict[str, Noise], list[str]]:
    """Return the noise of the layers that `align_keras_dropout` replaces, by path, and the other layers that draw.

    An attention is not in the result, but the dropout layer inside it is.
    """
    noises: dict[str, Noise] = {}
    others: list[str] = []
    for path, layer in model.layers().items():
        noise = get_keras_noise(layer)
        if noise is None:
            function = _LayerFunction(layer)
            noise = recognize_noise(function, function.numbers) if function.may_have_noise else None
            if noise is None and (is_dropping(layer) or (function.may_have_noise and has_noise(function))):
                others.append(f"{path or 'model'} ({type(layer).__name__})")
        if noise is not None:
            noises[path or "model"] = noise
    return noises, others


def disable_keras_dropout(model: KerasModule, noises: Mapping[str, Noise]) -> None:
    """Set all dropout rates to 0, and remove the noise of other layers, because the two frameworks draw differently."""
    for path, layer in model.layers().items():
        set_rates_to_zero(layer)
        if path in noises and not is_noise_layer(layer):
            layer.__class__ = _SilentLayer


class _LayerFunction:
    """A layer as a function that `recognize_noise` calls. A call leaves the layer as it was.

    Attributes:
        may_have_noise: Whether the layer is not Keras's own, and has one input, no weights and no layers in it.
        numbers: The numbers among the layer's attributes.
    """

    def __init__(self, layer: Any) -> None:  # noqa: ANN401  a keras.Layer
        """Examine a layer."""
        self._layer = layer
        self.may_have_noise = may_have_noise(layer)
        self.numbers = find_numbers(layer).values()

    def __call__(self, inputs: np.ndarray, training: bool, seed: int) -> tuple[np.ndarray, np.ndarray]:
        layer, x = self._layer, torch.from_numpy(inputs).requires_grad_()
        states = [(variable, variable.numpy().copy()) for variable in layer.variables]
        attributes, numbers = {**vars(layer)}, find_numbers(layer)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            seed_layers(layer, seed)
            try:
                outputs = layer(x, training=training)
            finally:
                is_constant = find_numbers(layer) == numbers
                vars(layer).update({name: attributes[name] for name in numbers})
                for variable, state in states:
                    variable.assign(state)
        if not is_constant:
            raise ValueError("the layer has a state")
        (gradients,) = torch.autograd.grad(outputs.sum(), x, materialize_grads=True)
        return outputs.detach().numpy(), gradients.numpy()
