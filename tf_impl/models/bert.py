"""BERT for sentence-pair classification, from KerasHub.

A padded batch has n rows of equal width. An unpadded batch has the t real tokens of all n examples in one row; only
attention needs the padded form, [n, width]. The place of a token is its index in the flattened padded form.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras_hub.layers import TransformerEncoder
from keras_hub.models import BertBackbone
from typing_extensions import override

from common.models.bert import get_parameter_shapes
from common.models.initial_weights import InitialCheckpoint
from tf_impl import forward_trace
from tf_impl.dropout import TokenPositions
from tf_impl.models.bert_operations import (
    ACTIVATIONS,
    apply_dense,
    apply_dropout_layer,
    apply_layer_norm,
    make_seed,
)
from tf_impl.models.layout import NamedParameter


class Bert(keras.Model):
    """A model that takes the inputs of a batch, padded or unpadded, and returns logits [n, classes]."""

    def __init__(self, backbone: BertBackbone, classes: int, dropout: float) -> None:
        """Add a classifier to a backbone."""
        super().__init__(dtype=keras.config.dtype_policy().variable_dtype)  # each layer casts what it multiplies
        self.backbone = backbone
        self.dropout = keras.layers.Dropout(dropout)
        self.classifier = keras.layers.Dense(classes)
        self.classifier.build([None, backbone.hidden_dim])
        first = backbone.transformer_layers[0]
        self.encode = tf.function(partial(_encode, first, _find_sublayers(first)), autograph=False)
        self.built = True  # a call that builds the model would take a second

    @override
    def call(self, inputs: dict[str, tf.Tensor], training: bool) -> tf.Tensor:
        if "places" not in inputs:
            inputs = _unpad(**inputs)
        pooled = self._pool_unpadded(**inputs, training=training)
        keys = inputs.get("dropout_keys")
        if keys is not None:
            keys = keys[: tf.shape(pooled)[0]]  # a compiled model gets more: one for each row of `attention_mask`
        seed = make_seed(self.dropout, "dropout", keys, training)
        return self.classifier(apply_dropout_layer(self.dropout, pooled, seed, keys))

    def _pool_unpadded(  # noqa: PLR0913  the arrays of a batch by name
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
        """Compute all examples as one sequence [t, hidden], which only attention separates, and pool it to [n, hidden].

        Args:
            input_ids: The tokens of all examples, [t].
            token_type_ids: The segment of each token, [t].
            position_ids: The position of each token in its example, [t].
            attention_mask: [n, width], 1 for a token and 0 for padding.
            first_tokens: The index of the first token of each example, [n].
            places: The place of each token, [t].
            training: Whether to drop.
            dropout_keys: The keys of the examples, int64 [n], if dropout is aligned: its masks are equal on both sides.
        """
        bert = self.backbone
        x = _embed(bert.token_embedding, bert.token_embedding.embeddings, input_ids)
        x += _embed(bert.segment_embedding, bert.segment_embedding.embeddings, token_type_ids)
        x += _embed(bert.position_embedding, bert.position_embedding.position_embeddings, position_ids)
        norm = bert.embeddings_layer_norm
        x = forward_trace.apply_layer(norm, partial(apply_layer_norm, norm, _read_weights(norm)), x)
        tokens = (places // tf.shape(attention_mask)[-1], position_ids)
        seed = make_seed(bert.embeddings_dropout, "bert.embeddings.dropout", dropout_keys, training)
        x = apply_dropout_layer(bert.embeddings_dropout, x, seed, dropout_keys, tokens)
        for index, layer in enumerate(bert.transformer_layers):
            sublayers = _find_sublayers(layer)
            weights = {name: _read_weights(sublayer) for name, sublayer in sublayers.items()}
            seeds = _make_seeds(layer, f"bert.encoder.layer.{index}", dropout_keys, training)
            encode = self.encode
            if forward_trace.is_tracing:
                encode = partial(_encode, bert.transformer_layers[0], sublayers)
            with tf.name_scope(f"layer_{index}"):  # the name appears in profiles
                x = encode(x, attention_mask, places, weights, seeds, dropout_keys, tokens)
        return bert.pooled_dense(tf.gather(x, first_tokens))


def _unpad(
    input_ids: tf.Tensor, token_type_ids: tf.Tensor, attention_mask: tf.Tensor, **dropout_keys: tf.Tensor
) -> dict[str, tf.Tensor]:
    """Convert padded inputs [n, width] to the form of unpadded inputs, with the padding as tokens."""
    rows, width = tf.unstack(tf.shape(input_ids))
    return {
        "input_ids": tf.reshape(input_ids, [-1]),
        "token_type_ids": tf.reshape(token_type_ids, [-1]),
        "position_ids": tf.tile(tf.range(width), [rows]),
        "attention_mask": attention_mask,
        "first_tokens": tf.range(rows) * width,
        "places": tf.range(rows * width),
        **dropout_keys,
    }


def _embed(layer: keras.Layer, table: keras.Variable, ids: tf.Tensor) -> tf.Tensor:
    """Apply an embedding layer to ids [t]: [t, hidden]. A parameter server then sends only these rows of the table."""
    return forward_trace.apply_layer(layer, lambda ids: tf.nn.embedding_lookup(table.value, ids), ids)


def _encode(  # noqa: PLR0913  what differs between layers must be arguments of the tf.function
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
    """Apply one layer of the encoder. TensorFlow traces this function once for all layers, which pass their weights.

    Args:
        layer: Any layer of the encoder, which gives the settings; all layers have the same.
        sublayers: The sublayers that a ForwardTrace records for this call.
        x: The tokens of all examples, [t, hidden].
        mask: [n, width], 1 for a token and 0 for padding.
        places: The place of each token, [t].
        weights: The weights of each sublayer.
        seeds: The seed of each dropout, from `_make_seeds`.
        keys: The keys of the examples, int64 [n], if dropout is aligned.
        tokens: The example and position of each token.
    """
    settings = _find_sublayers(layer)  # only their settings are used, not their weights

    def apply(name: str, x: tf.Tensor) -> tf.Tensor:
        compute = apply_layer_norm if name.endswith("LayerNorm") else apply_dense
        return forward_trace.apply_layer(sublayers[name], partial(compute, settings[name], weights[name]), x)

    probabilities_seed, attention_seed, output_seed = seeds
    attended = _compute_attention(layer._self_attention_layer, apply, x, mask, places, probabilities_seed, keys)
    x = x + apply_dropout_layer(layer._self_attention_dropout, attended, attention_seed, keys, tokens)
    x = apply("attention.output.LayerNorm", x)
    inner = layer._feedforward_intermediate_dense.activation(apply("intermediate.dense", x))
    x = x + apply_dropout_layer(layer._feedforward_dropout, apply("output.dense", inner), output_seed, keys, tokens)
    return apply("output.LayerNorm", x)


def _find_sublayers(layer: TransformerEncoder) -> dict[str, keras.Layer]:
    """Return the sublayers with weights of an encoder layer, by their Hugging Face names."""
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


def _find_variables(layer: keras.Layer) -> list[keras.Variable]:
    """Return the kernel and bias of a linear layer, or gamma and beta of a normalization."""
    if isinstance(layer, keras.layers.LayerNormalization):
        return [layer.gamma, layer.beta]
    return [layer.kernel, layer.bias]


def _read_weights(layer: keras.Layer) -> list[tf.Tensor]:
    return [tf.convert_to_tensor(variable) for variable in _find_variables(layer)]


def _make_seeds(layer: TransformerEncoder, name: str, keys: tf.Tensor | None, training: bool) -> list[tf.Tensor | None]:
    """Return the seed of each dropout in an encoder layer. name: the layer's name in Hugging Face's model."""
    dropouts = {
        "attention.self.dropout": layer._self_attention_layer._dropout_layer,
        "attention.output.dropout": layer._self_attention_dropout,
        "output.dropout": layer._feedforward_dropout,
    }
    return [make_seed(dropout, f"{name}.{part}", keys, training) for part, dropout in dropouts.items()]


def _compute_attention(
    layer: keras.layers.MultiHeadAttention,
    apply: Callable[[str, tf.Tensor], tf.Tensor],
    x: tf.Tensor,
    mask: tf.Tensor,
    places: tf.Tensor,
    seed: tf.Tensor | None,
    keys: tf.Tensor | None,
) -> tf.Tensor:
    """Apply self-attention to tokens [t, hidden]. Its products need them padded to the shape of `mask`, [n, width]."""
    rows, width = tf.unstack(tf.shape(mask))
    heads, size = layer.query_dense.bias.shape

    def pad(name: str) -> tf.Tensor:
        padded = tf.scatter_nd(places[:, None], apply(f"attention.self.{name}", x), [rows * width, heads * size])
        return tf.transpose(tf.reshape(padded, [rows, width, heads, size]), [0, 2, 1, 3])

    query = pad("query") * tf.constant(layer._inverse_sqrt_key_dim, x.dtype)
    scores = tf.matmul(query, pad("key"), transpose_b=True)
    scores += tf.where(mask == 1, tf.zeros([], x.dtype), x.dtype.min)[:, None, None]
    probabilities = apply_dropout_layer(layer._dropout_layer, tf.nn.softmax(scores), seed, keys)
    out = tf.transpose(tf.matmul(probabilities, pad("value")), [0, 2, 1, 3])
    out = tf.gather(tf.reshape(out, [rows * width, heads * size]), places)
    return apply("attention.output.dense", out)


def build(initial: InitialCheckpoint) -> keras.Model:
    """Build the model; the caller loads the initial weights."""
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
    _use_checkpoint_settings(backbone, hf_config)
    model = Bert(backbone, len(hf_config["id2label"]), hf_config["classifier_dropout"])
    shapes = get_parameter_shapes(hf_config)
    model.named_parameters = [
        NamedParameter(name, variable, shapes[name], shapes[name] if is_kernel else None)
        for name, variable, is_kernel in _name_variables(backbone, model.classifier)
    ]
    return model


def _use_checkpoint_settings(backbone: BertBackbone, hf_config: Mapping[str, Any]) -> None:
    """Set the settings that KerasHub fixes to the checkpoint's values, and the attention scale to a float64 value."""
    head_size = hf_config["hidden_size"] // hf_config["num_attention_heads"]
    backbone.embeddings_layer_norm.epsilon = hf_config["layer_norm_eps"]
    for layer in backbone.transformer_layers:
        layer._feedforward_intermediate_dense.activation = ACTIVATIONS[hf_config["hidden_act"]]
        layer._self_attention_layer._inverse_sqrt_key_dim = np.float64(1.0 / math.sqrt(head_size))
        layer._self_attention_layer_norm.epsilon = hf_config["layer_norm_eps"]
        layer._feedforward_layer_norm.epsilon = hf_config["layer_norm_eps"]


def _name_variables(
    backbone: BertBackbone, classifier: keras.layers.Dense
) -> Iterator[tuple[str, keras.Variable, bool]]:
    """Yield the Hugging Face name of every parameter, its variable, and whether the variable is a kernel."""
    named = {"bert.embeddings.LayerNorm": backbone.embeddings_layer_norm}
    for index, layer in enumerate(backbone.transformer_layers):
        named |= {f"bert.encoder.layer.{index}.{name}": sublayer for name, sublayer in _find_sublayers(layer).items()}
    named |= {"bert.pooler.dense": backbone.pooled_dense, "classifier": classifier}

    yield "bert.embeddings.word_embeddings.weight", backbone.token_embedding.embeddings, False
    yield "bert.embeddings.position_embeddings.weight", backbone.position_embedding.position_embeddings, False
    yield "bert.embeddings.token_type_embeddings.weight", backbone.segment_embedding.embeddings, False
    for name, layer in named.items():
        weight, bias = _find_variables(layer)
        yield f"{name}.weight", weight, not isinstance(layer, keras.layers.LayerNormalization)
        yield f"{name}.bias", bias, False
