"""BERT for sentence-pair classification: KerasHub's."""

import math
from collections.abc import Iterator
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras_hub.models import BertBackbone

from common.models.bert import parameter_shapes
from common.models.initial_weights import InitialCheckpoint
from tf_impl.models.layout import Parameter


def _gelu(x: tf.Tensor) -> tf.Tensor:
    """x Phi(x). tf.nn.gelu's constants go through float32, which float64 would show."""
    return 0.5 * x * (1.0 + tf.math.erf(x / tf.constant(math.sqrt(2.0), x.dtype)))


def _gelu_tanh(x: tf.Tensor) -> tf.Tensor:
    """The tanh approximation of `_gelu`."""
    inner = tf.constant(math.sqrt(2.0 / math.pi), x.dtype) * (x + tf.constant(0.044715, x.dtype) * x**3)
    return 0.5 * x * (1.0 + tf.tanh(inner))


ACTIVATIONS = {"gelu": _gelu, "gelu_new": _gelu_tanh, "gelu_pytorch_tanh": _gelu_tanh, "relu": tf.nn.relu}


def build(initial: InitialCheckpoint) -> keras.Model:
    """The model, called with the inputs of a batch; returns logits [n, classes]."""
    hf_config = initial.hf_config
    backbone = BertBackbone(
        vocabulary_size=hf_config["vocab_size"],
        num_layers=hf_config["num_hidden_layers"],
        num_heads=hf_config["num_attention_heads"],
        hidden_dim=hf_config["hidden_size"],
        intermediate_dim=hf_config["intermediate_size"],
        dropout=hf_config["hidden_dropout_prob"],
        max_sequence_length=hf_config["max_position_embeddings"],
        num_segments=hf_config["type_vocab_size"],
    )
    _follow(backbone, hf_config)
    names = {"input_ids": "token_ids", "token_type_ids": "segment_ids", "attention_mask": "padding_mask"}
    inputs = {name: keras.Input([None], dtype="int32", name=name) for name in names}
    pooled = backbone({names[name]: tensor for name, tensor in inputs.items()})["pooled_output"]
    classifier = keras.layers.Dense(len(hf_config["id2label"]))
    model = keras.Model(inputs, classifier(keras.layers.Dropout(hf_config["classifier_dropout"])(pooled)))
    shapes = parameter_shapes(hf_config)
    model.named_parameters = [
        Parameter(name, variable, shapes[name], shapes[name] if is_kernel else None)
        for name, variable, is_kernel in _named_variables(backbone, classifier)
    ]
    return model


def _follow(backbone: BertBackbone, hf_config: dict[str, Any]) -> None:
    """Use the checkpoint's values where KerasHub fixes them, and float64 ones where Keras rounds to float32."""
    head_size = hf_config["hidden_size"] // hf_config["num_attention_heads"]
    backbone.embeddings_layer_norm.epsilon = hf_config["layer_norm_eps"]
    for layer in backbone.transformer_layers:
        layer._feedforward_intermediate_dense.activation = ACTIVATIONS[hf_config["hidden_act"]]
        layer._self_attention_layer._inverse_sqrt_key_dim = np.float64(1.0 / math.sqrt(head_size))
        layer._self_attention_layer_norm.epsilon = hf_config["layer_norm_eps"]
        layer._feedforward_layer_norm.epsilon = hf_config["layer_norm_eps"]


def _named_variables(
    backbone: BertBackbone, classifier: keras.layers.Dense
) -> Iterator[tuple[str, keras.Variable, bool]]:
    """Every parameter with its Hugging Face name, and whether it is a kernel."""

    def linear(name: str, layer: keras.Layer) -> Iterator[tuple[str, keras.Variable, bool]]:
        yield f"{name}.weight", layer.kernel, True
        yield f"{name}.bias", layer.bias, False

    def layer_norm(name: str, layer: keras.Layer) -> Iterator[tuple[str, keras.Variable, bool]]:
        yield f"{name}.LayerNorm.weight", layer.gamma, False
        yield f"{name}.LayerNorm.bias", layer.beta, False

    yield "bert.embeddings.word_embeddings.weight", backbone.token_embedding.embeddings, False
    yield "bert.embeddings.position_embeddings.weight", backbone.position_embedding.position_embeddings, False
    yield "bert.embeddings.token_type_embeddings.weight", backbone.segment_embedding.embeddings, False
    yield from layer_norm("bert.embeddings", backbone.embeddings_layer_norm)
    for index, layer in enumerate(backbone.transformer_layers):
        prefix, attention = f"bert.encoder.layer.{index}", layer._self_attention_layer
        yield from linear(f"{prefix}.attention.self.query", attention.query_dense)
        yield from linear(f"{prefix}.attention.self.key", attention.key_dense)
        yield from linear(f"{prefix}.attention.self.value", attention.value_dense)
        yield from linear(f"{prefix}.attention.output.dense", attention.output_dense)
        yield from layer_norm(f"{prefix}.attention.output", layer._self_attention_layer_norm)
        yield from linear(f"{prefix}.intermediate.dense", layer._feedforward_intermediate_dense)
        yield from linear(f"{prefix}.output.dense", layer._feedforward_output_dense)
        yield from layer_norm(f"{prefix}.output", layer._feedforward_layer_norm)
    yield from linear("bert.pooler.dense", backbone.pooled_dense)
    yield from linear("classifier", classifier)
