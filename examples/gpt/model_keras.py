"""A small GPT: a causal language model whose output layer uses the weights of the embedding (tied embeddings)."""

import keras
import tensorflow as tf
from keras import layers, ops


class Block(layers.Layer):
    """A transformer block: causal attention (a token sees itself and earlier tokens) and a perceptron."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads = heads
        self.norm1 = layers.LayerNormalization(epsilon=1e-5)  # Keras's default is 1e-3
        self.query, self.value = layers.Dense(width), layers.Dense(width)
        self.key = layers.Dense(width, use_bias=False)  # softmax ignores what a bias adds to all scores of a query
        self.attention_dropout = layers.Dropout(dropout)
        self.output_dense = layers.Dense(width)
        self.dropout1 = layers.Dropout(dropout)
        self.norm2 = layers.LayerNormalization(epsilon=1e-5)
        self.up, self.down = layers.Dense(4 * width), layers.Dense(width)
        self.dropout2 = layers.Dropout(dropout)

    def call(self, x: tf.Tensor, training: bool = False) -> tf.Tensor:
        x = x + self.dropout1(self.attend(self.norm1(x), training), training=training)
        y = ops.gelu(self.up(self.norm2(x)), approximate=False)  # Keras's default is the tanh approximation
        return x + self.dropout2(self.down(y), training=training)

    def attend(self, x: tf.Tensor, training: bool) -> tf.Tensor:
        n, tokens, width = ops.shape(x)[0], ops.shape(x)[1], x.shape[2]
        query, key, value = (
            ops.transpose(ops.reshape(layer(x), (n, tokens, self.heads, width // self.heads)), (0, 2, 1, 3))
            for layer in (self.query, self.key, self.value)
        )
        scores = query @ ops.transpose(key, (0, 1, 3, 2)) * (width // self.heads) ** -0.5
        is_later = ops.arange(tokens)[None, :] > ops.arange(tokens)[:, None]  # [queries, keys]
        weights = ops.softmax(ops.where(is_later, ops.cast(-float("inf"), scores.dtype), scores))
        weights = self.attention_dropout(weights, training=training)
        return self.output_dense(ops.reshape(ops.transpose(weights @ value, (0, 2, 1, 3)), (n, tokens, width)))


class GPT(keras.Model):
    """A language model that maps input_ids [n, tokens] to logits of the next token, [n, tokens, vocabulary]."""

    def __init__(self, vocabulary: int, length: int, width: int, heads: int, block_count: int, dropout: float) -> None:
        super().__init__()
        self.tokens = layers.Embedding(vocabulary, width)
        self.positions = self.add_weight(shape=(length, width), name="positions")
        self.dropout = layers.Dropout(dropout)
        self.blocks = [Block(width, heads, dropout) for _ in range(block_count)]
        self.norm = layers.LayerNormalization(epsilon=1e-5)

    def call(self, input_ids: tf.Tensor, training: bool = False) -> tf.Tensor:
        x = self.dropout(self.tokens(input_ids) + self.positions[: ops.shape(input_ids)[1]], training=training)
        for block in self.blocks:
            x = block(x, training=training)
        return self.norm(x) @ ops.transpose(self.tokens.embeddings)


def build(
    vocabulary: int = 256, length: int = 64, width: int = 32, heads: int = 2, layers: int = 2, dropout: float = 0.1
) -> keras.Model:
    return GPT(vocabulary, length, width, heads, layers, dropout)
