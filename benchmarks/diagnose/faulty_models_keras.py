"""Small models with faults that users met in ports of a model to another framework.

`faults` names the faults of a model; "a+b" in the config stands for two of them. The input `real` is 1 for a token and
0 for padding. model_plants.py lists the cause that a diagnosis must name for each fault.
"""

import keras
import tensorflow as tf
from keras import layers, ops
from typing_extensions import override

WIDTH = 16


class Text(keras.Model):
    """A layer of an encoder and the mean over real tokens: tokens [n, t] and real [n, t] to logits [n, 3]."""

    def __init__(self, faults: list[str], dropout: float) -> None:
        super().__init__()
        self.faults = faults
        self.embedding = layers.Embedding(20, WIDTH)
        self.query, self.key, self.value, self.out = (layers.Dense(WIDTH) for _ in range(4))
        self.norm = layers.LayerNormalization(epsilon=1e-3 if "epsilon" in faults else 1e-5)
        self.inner, self.outer = Dense(2 * WIDTH, faults), layers.Dense(WIDTH)
        self.last_norm = layers.LayerNormalization(epsilon=1e-5)
        self.dropout = layers.Dropout(dropout)
        self.classifier = layers.Dense(3)
        if "frozen" in faults:
            self.embedding.trainable = False

    @override
    def call(self, tokens: tf.Tensor, real: tf.Tensor, training: bool = False) -> tf.Tensor:
        x = self.embedding(tokens)
        x = self.norm(x + self.dropout(self.out(self.attend(x, real)), training=training))
        x = self.last_norm(x + self.outer(self.activate(self.inner(x))))
        if "unit_norm" in self.faults:
            x = x * ops.cast(real, x.dtype)[..., None]
            epsilon = 1e-60 if "tiny_epsilon" in self.faults else 1e-12
            x = x / ops.sqrt(ops.sum(ops.square(x), -1, keepdims=True) + epsilon)
        if "first_token" in self.faults:
            pooled = x[:, 0]
        elif "mean_of_padding" in self.faults:
            pooled = ops.mean(x, 1)
        else:
            keep = ops.cast(real, x.dtype)[..., None]
            pooled = ops.sum(x * keep, 1) / ops.sum(keep, 1)
        if "pooled_in_bfloat16" in self.faults:
            pooled = ops.cast(ops.cast(pooled, "bfloat16"), x.dtype)
        if "detached" in self.faults:
            pooled = ops.stop_gradient(pooled)
        logits = self.classifier(pooled)
        return ops.softmax(logits) if "double_softmax" in self.faults else logits

    def activate(self, x: tf.Tensor) -> tf.Tensor:
        """Apply the activation of the feed-forward layer."""
        if "relu" in self.faults:
            return ops.relu(x)
        return ops.gelu(x, approximate="gelu_tanh" in self.faults)

    def attend(self, x: tf.Tensor, real: tf.Tensor) -> tf.Tensor:
        """Attend to the real tokens [n, t, features]."""
        q, k, v = self.query(x), self.key(x), self.value(x)
        if "query_key" in self.faults:
            q, k = k, q
        scores = ops.matmul(q, ops.transpose(k, (0, 2, 1))) * (1.0 if "scale" in self.faults else WIDTH**-0.5)
        keep = real[:, None, :] > 0
        if "mask_inverted" in self.faults:
            keep = ops.logical_not(keep)
        if "causal" in self.faults:
            size = tf.shape(x)[1]
            keep = ops.logical_and(keep, tf.linalg.band_part(tf.ones([size, size]), -1, 0) > 0)
        if "mask_overflows" in self.faults:
            scores = scores + (1 - ops.cast(keep, scores.dtype)) * -1e300
        elif "mask_ignored" not in self.faults:
            scores = ops.where(keep, scores, scores.dtype.min)
        return ops.matmul(ops.softmax(scores), v)


class Images(keras.Model):
    """A convolutional network: images [n, 8, 8, 3] to logits [n, 3]."""

    def __init__(self, faults: list[str]) -> None:
        super().__init__()
        self.faults = faults
        same = "same_padding" in faults
        self.pad = layers.Identity() if same else layers.ZeroPadding2D(1)
        self.first = layers.Conv2D(6, 3, 2, padding="same" if same else "valid", use_bias=False)
        self.norm = layers.BatchNormalization(
            epsilon=1e-3 if "bn_epsilon" in faults else 1e-5, momentum=0.99 if "bn_momentum" in faults else 0.9
        )
        self.second = Conv(6, 3, faults)
        self.square = layers.Dense(6)
        self.classifier = layers.Dense(3)

    @override
    def call(self, images: tf.Tensor, training: bool = False) -> tf.Tensor:
        x = self.norm(self.first(self.pad(images)), training=training)
        x = ops.leaky_relu(x, 0.2) if "leaky" in self.faults else ops.relu(x)
        x = ops.relu(self.second(x))
        x = ops.max(x, (1, 2)) if "max_pool" in self.faults else ops.mean(x, (1, 2))
        x = self.square(x)
        if "scaled" in self.faults:
            x = x * 2
        return self.classifier(ops.tanh(x))


def round_operand(x: tf.Tensor, faults: list[str]) -> tf.Tensor:
    """Round an operand of a matrix product to the low precision that `faults` names, if any."""
    x = tf.convert_to_tensor(x)
    if "tf32" in faults:
        bits = tf.bitwise.bitwise_and(tf.bitcast(tf.cast(x, tf.float32), tf.int32) + 0x1000, ~0x1FFF)
        return x + tf.stop_gradient(tf.cast(tf.bitcast(bits, tf.float32), x.dtype) - x)
    name = next((name for name in ("bfloat16", "float16", "float32") if name in faults), x.dtype)
    return tf.cast(x, name)


class Dense(layers.Dense):
    """A linear layer that may multiply in low precision."""

    def __init__(self, units: int, faults: list[str]) -> None:
        super().__init__(units)
        self.faults = faults

    @override
    def call(self, x: tf.Tensor, training: bool | None = None) -> tf.Tensor:
        x, kernel = round_operand(x, self.faults), round_operand(self.kernel, self.faults)
        return tf.cast(ops.matmul(x, kernel) + tf.cast(self.bias, x.dtype), self.compute_dtype)


class Conv(layers.Conv2D):
    """A convolution that may multiply in low precision."""

    def __init__(self, filters: int, size: int, faults: list[str]) -> None:
        super().__init__(filters, size, padding="same")
        self.faults = faults

    @override
    def call(self, x: tf.Tensor) -> tf.Tensor:
        x, kernel = round_operand(x, self.faults), round_operand(self.kernel, self.faults)
        return tf.cast(ops.conv(x, kernel, padding="same") + tf.cast(self.bias, x.dtype), self.compute_dtype)


class OtherGates(layers.LSTMCell):
    """An LSTM cell whose third gate is the output gate, and whose last is the candidate."""

    @override
    def _compute_carry_and_output_fused(self, z: list[tf.Tensor], c_tm1: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        carry_and_output: tuple[tf.Tensor, tf.Tensor] = super()._compute_carry_and_output_fused(
            (z[0], z[1], z[3], z[2]), c_tm1
        )
        return carry_and_output


class Sequences(keras.Model):
    """A recurrent layer, and an output tied to the embedding: tokens [n, t] and real [n, t] to logits [n, 3]."""

    def __init__(self, faults: list[str], cell: str) -> None:
        super().__init__()
        self.embedding = layers.Embedding(20, WIDTH)
        kind = {"LSTM": layers.LSTM, "GRU": layers.GRU}[cell]
        self.recurrent = kind(WIDTH, return_sequences=True, use_cudnn=False, implementation=2)
        if "gates" in faults:
            self.recurrent.cell.__class__ = OtherGates
        self.output_dense = layers.Dense(20, use_bias=False) if "untied" in faults else None

    @override
    def call(self, tokens: tf.Tensor, real: tf.Tensor, training: bool = False) -> tf.Tensor:
        x = self.embedding(tokens)
        states = self.recurrent(x * ops.cast(real, x.dtype)[..., None])
        if self.output_dense is not None:
            return self.output_dense(states)[:, -1, :3]
        return (states @ ops.transpose(self.embedding.embeddings))[:, -1, :3]


def build_sequences(torch_fault: str = "", tf_fault: str = "", cell: str = "LSTM") -> keras.Model:
    """Build the model. Faults of this side are joined by "+"."""
    return Sequences(tf_fault.split("+"), cell)


def build_text(torch_fault: str = "", tf_fault: str = "", dropout: float = 0.0) -> keras.Model:
    """Build the model. Faults of this side are joined by "+"."""
    return Text(tf_fault.split("+"), dropout)


def build_images(torch_fault: str = "", tf_fault: str = "") -> keras.Model:
    """Build the model. Faults of this side are joined by "+"."""
    return Images(tf_fault.split("+"))
