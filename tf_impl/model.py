"""BERT for sentence-pair classification: KerasHub's, from the initial checkpoint."""

import math
from collections.abc import Iterator
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras_hub.models import BertBackbone

from common.config import Config
from common.weights import InitialCheckpoint


def _gelu(x: tf.Tensor) -> tf.Tensor:
    """x Phi(x). tf.nn.gelu's constants go through float32, which float64 would show."""
    return 0.5 * x * (1.0 + tf.math.erf(x / tf.constant(math.sqrt(2.0), x.dtype)))


def _gelu_tanh(x: tf.Tensor) -> tf.Tensor:
    """The tanh approximation of `_gelu`."""
    inner = tf.constant(math.sqrt(2.0 / math.pi), x.dtype) * (x + tf.constant(0.044715, x.dtype) * x**3)
    return 0.5 * x * (1.0 + tf.tanh(inner))


ACTIVATIONS = {"gelu": _gelu, "gelu_new": _gelu_tanh, "gelu_pytorch_tanh": _gelu_tanh, "relu": tf.nn.relu}


def build_model(config: Config, initial: InitialCheckpoint) -> keras.Model:
    """The model with the initial weights, float64 for precision=float64, else float32 (bfloat16 is for computing)."""
    keras.utils.set_random_seed(config.train.seed)  # of dropout
    keras.config.set_dtype_policy("mixed_bfloat16" if config.train.precision == "bfloat16" else config.train.precision)
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
    pooled = keras.layers.Dropout(hf_config["classifier_dropout"])(backbone.output["pooled_output"])
    model = keras.Model(backbone.input, keras.layers.Dense(len(hf_config["id2label"]), name="classifier")(pooled))
    model.backbone = backbone
    weights = initial.weights()
    for name, variable in _named_variables(model):
        variable.assign(_to_keras(name, weights[name]).reshape(variable.shape))
    return model


def _follow(backbone: BertBackbone, hf_config: dict[str, Any]) -> None:
    """Do as the checkpoint's config says where KerasHub fixes a value, and in float64 where Keras rounds to float32."""
    head_size = hf_config["hidden_size"] // hf_config["num_attention_heads"]
    backbone.embeddings_layer_norm.epsilon = hf_config["layer_norm_eps"]
    for layer in backbone.transformer_layers:
        layer._feedforward_intermediate_dense.activation = ACTIVATIONS[hf_config["hidden_act"]]
        layer._self_attention_layer._inverse_sqrt_key_dim = np.float64(1.0 / math.sqrt(head_size))
        layer._self_attention_layer_norm.epsilon = hf_config["layer_norm_eps"]
        layer._feedforward_layer_norm.epsilon = hf_config["layer_norm_eps"]


def compute_logits(model: keras.Model, batch: dict[str, tf.Tensor], training: bool) -> tf.Tensor:
    """Logits [n, classes], at least float32; the model's dtype policy computes them in bfloat16."""
    logits = model(
        {
            "token_ids": batch["input_ids"],
            "segment_ids": batch["token_type_ids"],
            "padding_mask": batch["attention_mask"],
        },
        training=training,
    )
    return logits if logits.dtype == tf.float64 else tf.cast(logits, tf.float32)


def summed_loss(logits: tf.Tensor, batch: dict[str, tf.Tensor]) -> tf.Tensor:
    """Cross-entropy summed over the examples, each times its weight; a scalar."""
    losses = tf.nn.sparse_softmax_cross_entropy_with_logits(batch["labels"], logits)
    return tf.reduce_sum(losses * tf.cast(batch["weights"], logits.dtype))


def evaluation_sums(logits: tf.Tensor, batch: dict[str, tf.Tensor]) -> tf.Tensor:
    """Summed loss and number of right answers, float64 [2]."""
    right = tf.cast(tf.argmax(logits, -1, tf.int32) == batch["labels"], tf.float64) * batch["weights"]
    return tf.stack([summed_loss(tf.cast(logits, tf.float64), batch), tf.reduce_sum(right)])


def parameters_by_name(model: keras.Model) -> dict[str, np.ndarray]:
    """The parameters under their Hugging Face names, in PyTorch's layout (out, in)."""
    return {name: _from_keras(name, np.array(variable)) for name, variable in _named_variables(model)}


def _named_variables(model: keras.Model) -> Iterator[tuple[str, keras.Variable]]:
    """Every parameter with its Hugging Face name."""
    backbone = model.backbone

    def linear(name: str, layer: keras.Layer) -> Iterator[tuple[str, keras.Variable]]:
        yield f"{name}.weight", layer.kernel
        yield f"{name}.bias", layer.bias

    def layer_norm(name: str, layer: keras.Layer) -> Iterator[tuple[str, keras.Variable]]:
        yield f"{name}.LayerNorm.weight", layer.gamma
        yield f"{name}.LayerNorm.bias", layer.beta

    yield "bert.embeddings.word_embeddings.weight", backbone.token_embedding.embeddings
    yield "bert.embeddings.position_embeddings.weight", backbone.position_embedding.position_embeddings
    yield "bert.embeddings.token_type_embeddings.weight", backbone.segment_embedding.embeddings
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
    yield from linear("classifier", model.get_layer("classifier"))


def _is_kernel(name: str) -> bool:
    return name.endswith(".weight") and "embeddings" not in name and "LayerNorm" not in name


def _to_keras(name: str, parameter: np.ndarray) -> np.ndarray:
    """PyTorch's (out, in) as Keras's (in, out); heads are a reshape of either."""
    return parameter.T if _is_kernel(name) else parameter


def _from_keras(name: str, variable: np.ndarray) -> np.ndarray:
    """Keras's kernels (in, out), whose attention layers split one axis into heads, as PyTorch's (out, in)."""
    if ".attention.self." in name:  # kernel (in, heads, head size), bias (heads, head size)
        variable = variable.reshape(variable.shape[0], -1) if _is_kernel(name) else variable.reshape(-1)
    elif ".attention.output.dense.weight" in name:  # (heads, head size, out)
        variable = variable.reshape(-1, variable.shape[-1])
    return np.ascontiguousarray(variable.T) if _is_kernel(name) else variable
