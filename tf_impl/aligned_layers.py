"""Layers that draw the random numbers that common/data/dropout.py defines, which are equal on both sides."""

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from threading import local

import keras
import tensorflow as tf

from common.data.dropout import compute_normal_table, derive_site_key
from common.map.dropout_pairs import ChannelLayout
from common.map.keras_noise import get_keras_noise
from common.map.keras_paths import layers_by_path
from common.map.noise import ALPHA_VALUE, Noise
from tf_impl.dropout import apply_mask, compute_mask, compute_normal, hash_rows
from tf_impl.keras_two import replace_class

# `example_keys`, the keys of the examples, and `calls`, the number of calls of each layer by id. The attributes are
# thread-local, because TensorFlow traces each replica in its own thread.
_current = local()


def apply_noise(x: tf.Tensor, noise: Noise, draws: tf.Tensor) -> tf.Tensor:
    """Change the input of a layer with random numbers.

    Args:
        x: The input.
        noise: The operation, its unit and its strength.
        draws: Normal numbers, or booleans that are true for elements to keep, in a shape that broadcasts to x.
    """
    if noise.operation == "drop":
        return apply_mask(x, noise.factor, draws)
    wide = tf.cast(x, tf.float64 if x.dtype == tf.float64 else tf.float32)
    if noise.operation == "alpha":
        factor, term = noise.alpha_terms
        return tf.cast(tf.where(draws, wide, tf.constant(ALPHA_VALUE, wide.dtype)) * factor + term, x.dtype)
    deviations = draws * noise.strength
    return tf.cast(wide * (1 + deviations) if noise.operation == "multiply" else wide + deviations, x.dtype)


class AlignedLayer:
    """The call of a layer that draws from the examples' keys, which `use_dropout_keys` sets.

    Attributes:
        noise: The operation, its unit and its strength.
        site_key: The key of this layer.
        layout: The layout in which the counterpart in PyTorch's model receives the same elements; None: the same order.
    """

    noise: Noise
    site_key: int
    layout: ChannelLayout | None

    def call(self, inputs: tf.Tensor, training: bool = False) -> tf.Tensor:
        """Change the inputs in training."""
        return apply_noise(inputs, self.noise, self._draw(inputs)) if training else inputs

    def _draw(self, inputs: tf.Tensor) -> tf.Tensor:
        """Return the `draws` of `apply_noise` for the inputs."""
        if self.noise.unit == "element":
            return self._draw_elements(inputs)
        shape: list[tf.Tensor | int] = [-1] + [1] * (len(inputs.shape) - 1)
        if self.noise.unit == "channel":
            shape[-1] = tf.shape(inputs)[-1]
        return tf.reshape(self._draw_rows([], abs(shape[-1]), inputs.dtype), shape)

    def _draw_elements(self, inputs: tf.Tensor) -> tf.Tensor:
        shape, layout = tf.shape(inputs), self.layout
        if layout is None:
            return self._draw_rows(tf.unstack(shape[1:-1]), shape[-1], inputs.dtype)
        # Draw for PyTorch's input, and move its channels from the first place to the last. `received` is the shape of
        # one example as PyTorch's layer receives it, `channels_first` its shape before PyTorch flattened it.
        received, channels_first = layout.received, layout.channels_first
        if received == channels_first and len(inputs.shape) == len(received) + 1:
            received = channels_first = (shape[-1], *tf.unstack(shape[1:-1]))  # images of any size
        draws = self._draw_rows(received[:-1], received[-1], inputs.dtype)
        return tf.reshape(tf.experimental.numpy.moveaxis(tf.reshape(draws, [-1, *channels_first]), 1, -1), shape)

    def _draw_rows(self, shape: Sequence[tf.Tensor | int], features: tf.Tensor | int, dtype: tf.DType) -> tf.Tensor:
        """Return normal numbers, or whether to keep an element, for [n, *shape, features]."""
        assert _current.example_keys is not None, "the model must be called within use_dropout_keys"
        site_key = tf.constant(self.site_key, tf.int64) + _current.calls[id(self)]
        _current.calls[id(self)] += 1
        row_keys = hash_rows(_current.example_keys, site_key, shape)
        if not self.noise.is_normal:
            return compute_mask(row_keys, features, self.noise.strength)
        wide = tf.float64 if dtype == tf.float64 else tf.float32
        return compute_normal(row_keys, features, tf.constant(compute_normal_table(), wide))


def find_dropout_layers(model: keras.Layer) -> dict[str, Noise]:
    """Return the noise of Keras's own layers that can be aligned, by unique path. Layers with a rate of 0 have none."""
    noises = {path: get_keras_noise(layer) for path, layer in layers_by_path(model).items()}
    return {path: noise for path, noise in noises.items() if noise is not None}


def align_dropout(layer: keras.Layer, name: str, noise: Noise, layout: ChannelLayout | None) -> None:
    """Make a layer draw its random numbers from the examples' keys.

    Args:
        layer: A layer that receives one tensor.
        name: The name of its counterpart in PyTorch's model.
        noise: The operation, its unit and its strength.
        layout: The layout of the counterpart's input; None: the layout of the layer's own input.
    """
    replace_class(layer, AlignedLayer)
    layer.site_key, layer.noise, layer.layout = derive_site_key(name), noise, layout


@contextmanager
def use_dropout_keys(example_keys: tf.Tensor | None) -> Iterator[None]:
    """Set the keys, int64 [n], of the examples that a model computes within the context; may be None in evaluation."""
    _current.example_keys, _current.calls = example_keys, Counter()
    try:
        yield
    finally:
        _current.example_keys = None
