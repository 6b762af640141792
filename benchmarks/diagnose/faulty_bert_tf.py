"""KerasHub's BERT with faults that a port from another framework may have.

All layers of the encoder share one attention function, so a fault of attention is in every layer.
"""

from collections.abc import Callable

import keras
import tensorflow as tf

from common.models.initial_weights import InitialCheckpoint
from tf_impl.models import bert

Projection = Callable[[str, tf.Tensor], tf.Tensor]  # applies a layer to a tensor, by the layer's name
Attention = Callable[..., tf.Tensor]
SWAPPED = {"attention.self.query": "attention.self.key", "attention.self.key": "attention.self.query"}

correct_attention = bert._compute_attention


def build(initial: InitialCheckpoint) -> keras.Model:
    """Build the model, with the fault of its config.json."""
    model, fault = bert.build(initial), initial.hf_config["fault"]
    for layer in model.backbone.transformer_layers:
        if fault == "gelu_tanh":
            layer._feedforward_intermediate_dense.activation = bert.ACTIVATIONS["gelu_new"]
        if fault == "scale":
            layer._self_attention_layer._inverse_sqrt_key_dim = 1.0
    if fault == "epsilon":
        model.backbone.embeddings_layer_norm.epsilon = 1e-5
    if fault in ATTENTIONS:
        bert._compute_attention = ATTENTIONS[fault]
    return model


def _ignore_mask(
    layer: keras.layers.MultiHeadAttention, apply: Projection, x: tf.Tensor, mask: tf.Tensor, *arguments: tf.Tensor
) -> tf.Tensor:
    return correct_attention(layer, apply, x, tf.ones_like(mask), *arguments)


def _swap_query_and_key(layer: keras.layers.MultiHeadAttention, apply: Projection, *arguments: tf.Tensor) -> tf.Tensor:
    return correct_attention(layer, lambda name, x: apply(SWAPPED.get(name, name), x), *arguments)


ATTENTIONS: dict[str, Attention] = {"mask_ignored": _ignore_mask, "query_key": _swap_query_and_key}
