"""Small models with faults that a port may have: each fault is one that users met; "a+b" is two of them."""

import keras
import tensorflow as tf
from keras import layers, ops

WIDTH = 16


class Text(keras.Model):
    """tokens [n, t] and real [n, t] to logits [n, 3]: one layer of an encoder and the mean over real tokens."""

    def __init__(self, faults: list[str], dropout: float) -> None:
        super().__init__()
        self.faults = faults
        self.embedding = layers.Embedding(20, WIDTH)
        self.query, self.key, self.value, self.out = (layers.Dense(WIDTH) for _ in range(4))
        self.norm = layers.LayerNormalization(epsilon=1e-3 if "epsilon" in faults else 1e-5)
        self.inner, self.outer = layers.Dense(2 * WIDTH), layers.Dense(WIDTH)
        self.last_norm = layers.LayerNormalization(epsilon=1e-5)
        self.dropout = layers.Dropout(dropout)
        self.classifier = layers.Dense(3)
        if "frozen" in faults:
            self.embedding.trainable = False

    def call(self, tokens: tf.Tensor, real: tf.Tensor, training: bool = False) -> tf.Tensor:
        x = self.embedding(tokens)
        x = self.norm(x + self.dropout(self.out(self.attend(x, real)), training=training))
        x = self.last_norm(x + self.outer(self.activate(self.inner(x))))
        if "first_token" in self.faults:
            pooled = x[:, 0]
        elif "mean_of_padding" in self.faults:
            pooled = ops.mean(x, 1)
        else:
            keep = ops.cast(real, x.dtype)[..., None]
            pooled = ops.sum(x * keep, 1) / ops.sum(keep, 1)
        if "detached" in self.faults:
            pooled = ops.stop_gradient(pooled)
        logits = self.classifier(pooled)
        return ops.softmax(logits) if "double_softmax" in self.faults else logits

    def activate(self, x: tf.Tensor) -> tf.Tensor:
        if "relu" in self.faults:
            return ops.relu(x)
        return ops.gelu(x, approximate="gelu_tanh" in self.faults)

    def attend(self, x: tf.Tensor, real: tf.Tensor) -> tf.Tensor:
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
        if "mask_ignored" not in self.faults:
            scores = ops.where(keep, scores, scores.dtype.min)
        return ops.matmul(ops.softmax(scores), v)


class Images(keras.Model):
    """images [n, 8, 8, 3] to logits [n, 3]."""

    def __init__(self, faults: list[str]) -> None:
        super().__init__()
        self.faults = faults
        same = "same_padding" in faults
        self.pad = layers.Identity() if same else layers.ZeroPadding2D(1)
        self.first = layers.Conv2D(6, 3, 2, padding="same" if same else "valid", use_bias=False)
        self.norm = layers.BatchNormalization(
            epsilon=1e-3 if "bn_epsilon" in faults else 1e-5, momentum=0.99 if "bn_momentum" in faults else 0.9
        )
        self.second = layers.Conv2D(6, 3, padding="same")
        self.square = layers.Dense(6)
        self.classifier = layers.Dense(3)

    def call(self, images: tf.Tensor, training: bool = False) -> tf.Tensor:
        x = self.norm(self.first(self.pad(images)), training=training)
        x = ops.leaky_relu(x, 0.2) if "leaky" in self.faults else ops.relu(x)
        x = ops.relu(self.second(x))
        x = ops.max(x, (1, 2)) if "max_pool" in self.faults else ops.mean(x, (1, 2))
        x = self.square(x)
        if "scaled" in self.faults:
            x = x * 2
        return self.classifier(ops.tanh(x))


def text(torch_fault: str = "", tf_fault: str = "", dropout: float = 0.0) -> keras.Model:
    return Text(tf_fault.split("+"), dropout)


def images(torch_fault: str = "", tf_fault: str = "") -> keras.Model:
    return Images(tf_fault.split("+"))
