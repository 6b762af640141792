"""KerasHub's BERT with faults that a port may have. Its encoder's layers share one function, and so its faults."""

from typing import Any

import keras
import tensorflow as tf

from common.models.initial_weights import InitialCheckpoint
from tf_impl.models import bert

attention = bert._compute_attention


def build(initial: InitialCheckpoint) -> keras.Model:
    """The model, with the fault of its config.json."""
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


def _mask_ignored(layer: Any, apply: Any, x: tf.Tensor, mask: tf.Tensor, *rest: Any) -> tf.Tensor:
    return attention(layer, apply, x, tf.ones_like(mask), *rest)


def _query_key(layer: Any, apply: Any, *rest: Any) -> tf.Tensor:
    swapped = {"attention.self.query": "attention.self.key", "attention.self.key": "attention.self.query"}
    return attention(layer, lambda name, x: apply(swapped.get(name, name), x), *rest)


ATTENTIONS: dict[str, Any] = {"mask_ignored": _mask_ignored, "query_key": _query_key}
