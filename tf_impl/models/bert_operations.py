"""The operations of KerasHub's BERT, computed on the tokens of all examples as one sequence."""

import math

import keras
import tensorflow as tf

from common.data.dropout import derive_site_key
from tf_impl.dropout import TokenPositions, apply_dropout, hash_rows, hash_token_rows


def gelu(x: tf.Tensor) -> tf.Tensor:
    """Return x Phi(x). The constants of tf.nn.gelu are rounded to float32, which is too coarse for float64."""
    return 0.5 * x * (1.0 + tf.math.erf(x / tf.constant(math.sqrt(2.0), x.dtype)))


def gelu_tanh(x: tf.Tensor) -> tf.Tensor:
    """Return the tanh approximation of `gelu`."""
    inner = tf.constant(math.sqrt(2.0 / math.pi), x.dtype) * (x + tf.constant(0.044715, x.dtype) * x**3)
    return 0.5 * x * (1.0 + tf.tanh(inner))


ACTIVATIONS = {"gelu": gelu, "gelu_new": gelu_tanh, "gelu_pytorch_tanh": gelu_tanh, "relu": tf.nn.relu}


def make_seed(layer: keras.layers.Dropout, name: str, keys: tf.Tensor | None, training: bool) -> tf.Tensor | None:
    """Return the seed of a dropout layer; None: the layer drops nothing.

    If dropout is aligned, masks are drawn from the examples' keys and the seed, which is the key of the layer.
    Otherwise `keys` is None, and masks are drawn from the seed alone, which Keras's generator makes.
    """
    if not training or layer.rate == 0:
        return None
    return (
        tf.cast(layer.seed_generator.next(), tf.int32) if keys is None else tf.constant(derive_site_key(name), tf.int64)
    )


def apply_dense(layer: keras.Layer, weights: list[tf.Tensor], x: tf.Tensor) -> tf.Tensor:
    """Apply a Dense or EinsumDense layer to x [t, inputs] as one product: [t, outputs].

    With mixed precision only the product is computed in bfloat16. Most processors lack bfloat16 instructions for other
    operations, which TensorFlow would compute in float32 anyway.
    """
    kernel, bias = weights
    matrix = tf.reshape(tf.cast(kernel, layer.compute_dtype), [x.shape[-1], -1])
    product = tf.matmul(tf.cast(x, layer.compute_dtype), matrix)
    return tf.nn.bias_add(tf.cast(product, x.dtype), tf.reshape(bias, [-1]))


def apply_dropout_layer(
    layer: keras.layers.Dropout,
    x: tf.Tensor,
    seed: tf.Tensor | None,
    keys: tf.Tensor | None,
    tokens: TokenPositions | None = None,
) -> tf.Tensor:
    """Apply a Dropout layer to x [n, ..., features], or to tokens [t, features]."""
    if seed is None:
        return x
    if keys is None:
        return tf.nn.experimental.stateless_dropout(x, layer.rate, seed)
    if tokens is not None:
        return apply_dropout(x, layer.rate, hash_token_rows(keys, seed, tokens))
    return apply_dropout(x, layer.rate, hash_rows(keys, seed, tf.unstack(tf.shape(x))[1:-1]))


def apply_layer_norm(layer: keras.layers.LayerNormalization, weights: list[tf.Tensor], x: tf.Tensor) -> tf.Tensor:
    """Apply a LayerNormalization to x [t, hidden]: the formula of Keras in fewer operations."""
    gamma, beta = weights
    mean, variance = tf.nn.moments(x, [-1], keepdims=True)
    return (x - mean) * tf.math.rsqrt(variance + tf.constant(layer.epsilon, x.dtype)) * gamma + beta
