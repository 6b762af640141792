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


class Bert(keras.Model):
    """Called with the inputs of a batch, padded or not; returns logits [n, classes]."""

    def __init__(self, backbone: BertBackbone, classes: int, dropout: float) -> None:
        super().__init__(dtype=keras.config.dtype_policy().variable_dtype)  # layers cast what they multiply
        self.backbone = backbone
        self.dropout = keras.layers.Dropout(dropout)
        self.classifier = keras.layers.Dense(classes)
        self.classifier.build([None, backbone.hidden_dim])
        self.built = True  # without a call, which takes a second

    def call(self, inputs: dict[str, tf.Tensor], training: bool) -> tf.Tensor:
        if "places" not in inputs:
            inputs = _as_unpadded(**inputs)
        pooled = self._unpadded(**inputs, training=training)
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
        x = tf.gather(bert.token_embedding.embeddings, input_ids)
        x += tf.gather(bert.segment_embedding.embeddings, token_type_ids)
        x += tf.gather(bert.position_embedding.position_embeddings, position_ids)
        x = _dropout(bert.embeddings_dropout, _layer_norm(bert.embeddings_layer_norm, x), training)
        for layer in bert.transformer_layers:
            attended = _attention(layer._self_attention_layer, x, attention_mask, places, training)
            x = _layer_norm(
                layer._self_attention_layer_norm, x + _dropout(layer._self_attention_dropout, attended, training)
            )
            inner = layer._feedforward_intermediate_dense.activation(_dense(layer._feedforward_intermediate_dense, x))
            outer = _dense(layer._feedforward_output_dense, inner)
            x = _layer_norm(layer._feedforward_layer_norm, x + _dropout(layer._feedforward_dropout, outer, training))
        return bert.pooled_dense(tf.gather(x, first_tokens))


def _as_unpadded(input_ids: tf.Tensor, token_type_ids: tf.Tensor, attention_mask: tf.Tensor) -> dict[str, tf.Tensor]:
    """Padded inputs [n, width] as unpadded ones, whose tokens include the padding."""
    rows, width = tf.unstack(tf.shape(input_ids))
    return {
        "input_ids": tf.reshape(input_ids, [-1]),
        "token_type_ids": tf.reshape(token_type_ids, [-1]),
        "position_ids": tf.tile(tf.range(width), [rows]),
        "attention_mask": attention_mask,
        "first_tokens": tf.range(rows) * width,
        "places": tf.range(rows * width),
    }


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
    weights = _dropout(layer._dropout_layer, tf.nn.softmax(scores), training)
    out = tf.transpose(tf.matmul(weights, padded(layer.value_dense)), [0, 2, 1, 3])
    return _dense(layer.output_dense, tf.gather(tf.reshape(out, [rows * width, heads * size]), places))


def _dense(layer: keras.Layer, x: tf.Tensor) -> tf.Tensor:
    """A Dense or EinsumDense layer applied to x [t, inputs], as one product of matrices: [t, outputs].

    In bfloat16 only the matrices are: without instructions for the rest TensorFlow computes it in float32 anyway.
    """
    kernel = tf.reshape(tf.cast(layer.kernel, layer.compute_dtype), [x.shape[-1], -1])
    product = tf.matmul(tf.cast(x, layer.compute_dtype), kernel)
    return tf.nn.bias_add(tf.cast(product, x.dtype), tf.reshape(layer.bias, [-1]))


def _dropout(layer: keras.layers.Dropout, x: tf.Tensor, training: bool) -> tf.Tensor:
    """A Dropout layer applied to x, which keeps its dtype."""
    return tf.cast(layer(x, training=True), x.dtype) if training and layer.rate > 0 else x


def _layer_norm(layer: keras.layers.LayerNormalization, x: tf.Tensor) -> tf.Tensor:
    """A LayerNormalization applied to x [t, hidden]: the same formula, in fewer operations than Keras has."""
    mean, variance = tf.nn.moments(x, [-1], keepdims=True)
    normal = (x - mean) * tf.math.rsqrt(variance + tf.constant(layer.epsilon, x.dtype))
    return normal * layer.gamma + layer.beta


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
