"""BERT for sentence-pair classification: KerasHub's."""

import math
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras_hub.layers import TransformerEncoder
from keras_hub.models import BertBackbone

from common.data.dropout import derive_site_key
from common.models.bert import get_parameter_shapes
from common.models.initial_weights import InitialCheckpoint
from tf_impl import forward_trace
from tf_impl.dropout import TokenPositions, apply_dropout, hash_rows, hash_token_rows
from tf_impl.models.layout import NamedParameter


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
        first = backbone.transformer_layers[0]
        self.encode = tf.function(partial(_encode, first, _sublayers(first)), autograph=False)
        self.built = True  # without a call, which takes a second

    def call(self, inputs: dict[str, tf.Tensor], training: bool) -> tf.Tensor:
        if "places" not in inputs:
            inputs = _as_unpadded(**inputs)
        pooled = self._unpadded(**inputs, training=training)
        keys = inputs.get("dropout_keys")
        if keys is not None:
            keys = keys[: tf.shape(pooled)[0]]  # a compiled model's are rounded up with the rows of attention
        seed = _seed(self.dropout, "dropout", keys, training)
        return self.classifier(_dropout(self.dropout, pooled, seed, keys))

    def _unpadded(
        self,
        input_ids: tf.Tensor,
        token_type_ids: tf.Tensor,
        position_ids: tf.Tensor,
        attention_mask: tf.Tensor,
        first_tokens: tf.Tensor,
        places: tf.Tensor,
        training: bool,
        dropout_keys: tf.Tensor | None = None,
    ) -> tf.Tensor:
        """All examples as one sequence, [t, hidden], which attention alone takes apart."""
        bert = self.backbone
        x = _embed(bert.token_embedding, bert.token_embedding.embeddings, input_ids)
        x += _embed(bert.segment_embedding, bert.segment_embedding.embeddings, token_type_ids)
        x += _embed(bert.position_embedding, bert.position_embedding.position_embeddings, position_ids)
        norm = bert.embeddings_layer_norm
        x = forward_trace.apply_layer(norm, partial(_layer_norm, norm, _values(norm)), x)
        tokens = (places // tf.shape(attention_mask)[-1], position_ids)
        seed = _seed(bert.embeddings_dropout, "bert.embeddings.dropout", dropout_keys, training)
        x = _dropout(bert.embeddings_dropout, x, seed, dropout_keys, tokens)
        for index, layer in enumerate(bert.transformer_layers):
            sublayers = _sublayers(layer)
            weights = {name: _values(sublayer) for name, sublayer in sublayers.items()}
            seeds = _seeds(layer, f"bert.encoder.layer.{index}", dropout_keys, training)
            encode = self.encode
            if forward_trace.is_tracing:
                encode = partial(_encode, bert.transformer_layers[0], sublayers)
            with tf.name_scope(f"layer_{index}"):  # a profile says it
                x = encode(x, attention_mask, places, weights, seeds, dropout_keys, tokens)
        return bert.pooled_dense(tf.gather(x, first_tokens))


def _as_unpadded(
    input_ids: tf.Tensor, token_type_ids: tf.Tensor, attention_mask: tf.Tensor, **keys: tf.Tensor
) -> dict[str, tf.Tensor]:
    """Padded inputs [n, width] as unpadded ones, whose tokens include the padding."""
    rows, width = tf.unstack(tf.shape(input_ids))
    return {
        "input_ids": tf.reshape(input_ids, [-1]),
        "token_type_ids": tf.reshape(token_type_ids, [-1]),
        "position_ids": tf.tile(tf.range(width), [rows]),
        "attention_mask": attention_mask,
        "first_tokens": tf.range(rows) * width,
        "places": tf.range(rows * width),
        **keys,
    }


def _embed(layer: keras.Layer, table: keras.Variable, ids: tf.Tensor) -> tf.Tensor:
    """An embedding layer applied to ids [t]: [t, hidden]. Of a table on a parameter server only these rows are sent."""
    return forward_trace.apply_layer(layer, lambda ids: tf.nn.embedding_lookup(table.value, ids), ids)


def _encode(
    layer: TransformerEncoder,
    sublayers: dict[str, keras.Layer],
    x: tf.Tensor,
    mask: tf.Tensor,
    places: tf.Tensor,
    weights: dict[str, list[tf.Tensor]],
    seeds: list[tf.Tensor | None],
    keys: tf.Tensor | None,
    tokens: TokenPositions,
) -> tf.Tensor:
    """One layer of the encoder. It is traced once for all of them, and gets their weights.

    layer: any of them, for all that they have in common. sublayers: of the one that a Trace follows. seeds: of the
    dropouts. keys: see `_seed`.
    """
    alike = _sublayers(layer)

    def apply(name: str, x: tf.Tensor) -> tf.Tensor:
        compute = _layer_norm if name.endswith("LayerNorm") else _dense
        return forward_trace.apply_layer(sublayers[name], partial(compute, alike[name], weights[name]), x)

    of_attention, of_attended, of_output = seeds
    attended = _attention(layer._self_attention_layer, apply, x, mask, places, of_attention, keys)
    x = x + _dropout(layer._self_attention_dropout, attended, of_attended, keys, tokens)
    x = apply("attention.output.LayerNorm", x)
    inner = layer._feedforward_intermediate_dense.activation(apply("intermediate.dense", x))
    x = x + _dropout(layer._feedforward_dropout, apply("output.dense", inner), of_output, keys, tokens)
    return apply("output.LayerNorm", x)


def _sublayers(layer: TransformerEncoder) -> dict[str, keras.Layer]:
    """Those of an encoder's layer that have weights, by their Hugging Face names."""
    attention = layer._self_attention_layer
    return {
        "attention.self.query": attention.query_dense,
        "attention.self.key": attention.key_dense,
        "attention.self.value": attention.value_dense,
        "attention.output.dense": attention.output_dense,
        "attention.output.LayerNorm": layer._self_attention_layer_norm,
        "intermediate.dense": layer._feedforward_intermediate_dense,
        "output.dense": layer._feedforward_output_dense,
        "output.LayerNorm": layer._feedforward_layer_norm,
    }


def _variables(layer: keras.Layer) -> list[keras.Variable]:
    """Kernel and bias of a linear layer, gamma and beta of a normalization."""
    if isinstance(layer, keras.layers.LayerNormalization):
        return [layer.gamma, layer.beta]
    return [layer.kernel, layer.bias]


def _values(layer: keras.Layer) -> list[tf.Tensor]:
    return [tf.convert_to_tensor(variable) for variable in _variables(layer)]


def _seeds(layer: TransformerEncoder, name: str, keys: tf.Tensor | None, training: bool) -> list[tf.Tensor | None]:
    """Those of its dropouts. name: the layer's in Hugging Face's model."""
    dropouts = {
        "attention.self.dropout": layer._self_attention_layer._dropout_layer,
        "attention.output.dropout": layer._self_attention_dropout,
        "output.dropout": layer._feedforward_dropout,
    }
    return [_seed(dropout, f"{name}.{part}", keys, training) for part, dropout in dropouts.items()]


def _seed(layer: keras.layers.Dropout, name: str, keys: tf.Tensor | None, training: bool) -> tf.Tensor | None:
    """What its masks are drawn from besides the examples' keys, or alone without them; None where it drops nothing."""
    if not training or layer.rate == 0:
        return None
    return (
        tf.cast(layer.seed_generator.next(), tf.int32) if keys is None else tf.constant(derive_site_key(name), tf.int64)
    )


def _attention(
    layer: keras.layers.MultiHeadAttention,
    apply: Callable[[str, tf.Tensor], tf.Tensor],
    x: tf.Tensor,
    mask: tf.Tensor,
    places: tf.Tensor,
    seed: tf.Tensor | None,
    keys: tf.Tensor | None,
) -> tf.Tensor:
    """Self-attention of tokens [t, hidden], padded to the shape of `mask` [n, width] and taken out of it again."""
    rows, width = tf.unstack(tf.shape(mask))
    heads, size = layer.query_dense.bias.shape

    def padded(name: str) -> tf.Tensor:
        room = tf.scatter_nd(places[:, None], apply(f"attention.self.{name}", x), [rows * width, heads * size])
        return tf.transpose(tf.reshape(room, [rows, width, heads, size]), [0, 2, 1, 3])

    query = padded("query") * tf.constant(layer._inverse_sqrt_key_dim, x.dtype)
    scores = tf.matmul(query, padded("key"), transpose_b=True)
    scores += tf.where(mask == 1, tf.zeros([], x.dtype), x.dtype.min)[:, None, None]
    probabilities = _dropout(layer._dropout_layer, tf.nn.softmax(scores), seed, keys)
    out = tf.transpose(tf.matmul(probabilities, padded("value")), [0, 2, 1, 3])
    out = tf.gather(tf.reshape(out, [rows * width, heads * size]), places)
    return apply("attention.output.dense", out)


def _dense(layer: keras.Layer, weights: list[tf.Tensor], x: tf.Tensor) -> tf.Tensor:
    """A Dense or EinsumDense layer applied to x [t, inputs], as one product: [t, outputs].

    In bfloat16 the product is all that is computed: without instructions for the rest TensorFlow computes it in
    float32 anyway.
    """
    kernel, bias = weights
    matrix = tf.reshape(tf.cast(kernel, layer.compute_dtype), [x.shape[-1], -1])
    product = tf.matmul(tf.cast(x, layer.compute_dtype), matrix)
    return tf.nn.bias_add(tf.cast(product, x.dtype), tf.reshape(bias, [-1]))


def _dropout(
    layer: keras.layers.Dropout,
    x: tf.Tensor,
    seed: tf.Tensor | None,
    keys: tf.Tensor | None,
    tokens: TokenPositions | None = None,
) -> tf.Tensor:
    """A Dropout layer applied to x [n, ..., features], or to tokens [t, features]."""
    if seed is None:
        return x
    if keys is None:
        return tf.nn.experimental.stateless_dropout(x, layer.rate, seed)
    if tokens is not None:
        return apply_dropout(x, layer.rate, hash_token_rows(keys, seed, tokens))
    return apply_dropout(x, layer.rate, hash_rows(keys, seed, tf.unstack(tf.shape(x))[1:-1]))


def _layer_norm(layer: keras.layers.LayerNormalization, weights: list[tf.Tensor], x: tf.Tensor) -> tf.Tensor:
    """A LayerNormalization applied to x [t, hidden]: the same formula, in fewer operations than Keras has."""
    gamma, beta = weights
    mean, variance = tf.nn.moments(x, [-1], keepdims=True)
    return (x - mean) * tf.math.rsqrt(variance + tf.constant(layer.epsilon, x.dtype)) * gamma + beta


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
    shapes = get_parameter_shapes(hf_config)
    model.named_parameters = [
        NamedParameter(name, variable, shapes[name], shapes[name] if is_kernel else None)
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
    named = {"bert.embeddings.LayerNorm": backbone.embeddings_layer_norm}
    for index, layer in enumerate(backbone.transformer_layers):
        named |= {f"bert.encoder.layer.{index}.{name}": sublayer for name, sublayer in _sublayers(layer).items()}
    named |= {"bert.pooler.dense": backbone.pooled_dense, "classifier": classifier}

    yield "bert.embeddings.word_embeddings.weight", backbone.token_embedding.embeddings, False
    yield "bert.embeddings.position_embeddings.weight", backbone.position_embedding.position_embeddings, False
    yield "bert.embeddings.token_type_embeddings.weight", backbone.segment_embedding.embeddings, False
    for name, layer in named.items():
        weight, bias = _variables(layer)
        yield f"{name}.weight", weight, not isinstance(layer, keras.layers.LayerNormalization)
        yield f"{name}.bias", bias, False
