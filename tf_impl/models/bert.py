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


NAMES = {"input_ids": "token_ids", "token_type_ids": "segment_ids", "attention_mask": "padding_mask"}
ACTIVATIONS = {"gelu": _gelu, "gelu_new": _gelu_tanh, "gelu_pytorch_tanh": _gelu_tanh, "relu": tf.nn.relu}


class Bert(keras.Model):
    """Called with the inputs of a batch, padded or not; returns logits [n, classes]."""

    def __init__(self, backbone: BertBackbone, classes: int, dropout: float) -> None:
        super().__init__()
        self.backbone = backbone
        self.dropout = keras.layers.Dropout(dropout)
        self.classifier = keras.layers.Dense(classes)

    def call(self, inputs: dict[str, tf.Tensor], training: bool) -> tf.Tensor:
        if "places" in inputs:
            pooled = self._unpadded(**inputs, training=training)
        else:
            named = {name: inputs[key] for key, name in NAMES.items()}
            pooled = self.backbone(named, training=training)["pooled_output"]
        return self.classifier(self.dropout(pooled, training=training))

    def _unpadded(
        self,
        input_ids: tf.Tensor,
        token_type_ids: tf.Tensor,
        position_ids: tf.Tensor,
        attention_mask: tf.Tensor,
        first_tokens: tf.Tensor,
        places: tf.Tensor,
        training: bool,
    ) -> tf.Tensor:
        """All examples as one sequence, [t, hidden], which attention alone takes apart."""
        bert = self.backbone
        x = tf.gather(_value(bert.token_embedding.embeddings), input_ids)
        x += tf.gather(_value(bert.segment_embedding.embeddings), token_type_ids)
        x += tf.gather(_value(bert.position_embedding.position_embeddings), position_ids)
        x = bert.embeddings_dropout(_layer_norm(bert.embeddings_layer_norm, x), training=training)
        for layer in bert.transformer_layers:
            attended = _attention(layer._self_attention_layer, x, attention_mask, places, training)
            attended = layer._self_attention_dropout(attended, training=training)
            x = _layer_norm(layer._self_attention_layer_norm, x + attended)
            inner = layer._feedforward_intermediate_dense.activation(_dense(layer._feedforward_intermediate_dense, x))
            outer = layer._feedforward_dropout(_dense(layer._feedforward_output_dense, inner), training=training)
            x = _layer_norm(layer._feedforward_layer_norm, x + outer)
        return bert.pooled_dense(tf.gather(x, first_tokens))


def _attention(
    layer: keras.layers.MultiHeadAttention, x: tf.Tensor, mask: tf.Tensor, places: tf.Tensor, training: bool
) -> tf.Tensor:
    """Self-attention of tokens [t, hidden], padded to the shape of `mask` [n, width] and taken out of it again."""
    rows, width = tf.unstack(tf.shape(mask))
    heads, size = layer.query_dense.bias.shape

    def padded(dense: keras.Layer) -> tf.Tensor:
        room = tf.scatter_nd(places[:, None], _dense(dense, x), [rows * width, heads * size])
        return tf.transpose(tf.reshape(room, [rows, width, heads, size]), [0, 2, 1, 3])

    query = padded(layer.query_dense) * tf.constant(layer._inverse_sqrt_key_dim, x.dtype)
    scores = tf.matmul(query, padded(layer.key_dense), transpose_b=True)
    scores += tf.where(mask == 1, tf.zeros([], x.dtype), x.dtype.min)[:, None, None]
    weights = layer._dropout_layer(tf.nn.softmax(scores), training=training)
    out = tf.transpose(tf.matmul(weights, padded(layer.value_dense)), [0, 2, 1, 3])
    return _dense(layer.output_dense, tf.gather(tf.reshape(out, [rows * width, heads * size]), places))


def _dense(layer: keras.Layer, x: tf.Tensor) -> tf.Tensor:
    """A Dense or EinsumDense layer applied to x [t, inputs], as one product of matrices: [t, outputs]."""
    kernel, bias = _value(layer.kernel), _value(layer.bias)
    return tf.nn.bias_add(tf.matmul(x, tf.reshape(kernel, [x.shape[-1], -1])), tf.reshape(bias, [-1]))


def _layer_norm(layer: keras.layers.LayerNormalization, x: tf.Tensor) -> tf.Tensor:
    """A LayerNormalization applied to x [t, hidden]: in fewer operations than Keras has, and at least in float32."""
    wide = tf.cast(x, tf.float32) if x.dtype == tf.bfloat16 else x
    mean, variance = tf.nn.moments(wide, [-1], keepdims=True)
    normal = (wide - mean) * tf.math.rsqrt(variance + tf.constant(layer.epsilon, wide.dtype))
    return tf.cast(normal, x.dtype) * _value(layer.gamma) + _value(layer.beta)


def _value(variable: keras.Variable) -> tf.Tensor:
    """A variable in the dtype that its layer computes in."""
    return tf.convert_to_tensor(variable)


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
    model = Bert(backbone, len(hf_config["id2label"]), hf_config["classifier_dropout"])
    model({name: keras.KerasTensor([None, None], "int32") for name in NAMES}, training=False)
    shapes = parameter_shapes(hf_config)
    model.named_parameters = [
        Parameter(name, variable, shapes[name], shapes[name] if is_kernel else None)
        for name, variable, is_kernel in _named_variables(backbone, model.classifier)
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
