"""A Keras model with attention layers and dropout, from tokens and tokens_mask [n, width] to logits [n, 2].

The loss does not depend on the auxiliary output [n, 3], so the parameters of its layer get no gradient.
"""

import keras
from keras import layers


def build(dropout: float) -> keras.Model:
    tokens = keras.Input((None,), name="tokens", dtype="int32")
    tokens_mask = keras.Input((None,), name="tokens_mask", dtype="int32")
    is_token = keras.ops.cast(tokens_mask, "bool")[:, None]
    x = layers.Embedding(20, 16)(tokens)
    attended = layers.MultiHeadAttention(2, 8, dropout=dropout)(x, x, attention_mask=is_token)
    x = layers.LayerNormalization(epsilon=1e-5)(x + layers.Dropout(dropout)(attended))
    inner = layers.Dropout(dropout)(layers.Dense(32, activation="gelu")(x))
    x = layers.LayerNormalization(epsilon=1e-5)(x + layers.Dropout(dropout)(layers.Dense(16)(inner)))
    pooled = layers.MultiHeadAttention(2, 8, dropout=dropout)(x[:, :1], x, attention_mask=is_token)
    outputs = {"logits": layers.Dense(2)(pooled[:, 0]), "auxiliary": layers.Dense(3)(pooled[:, 0])}
    return keras.Model({"tokens": tokens, "tokens_mask": tokens_mask}, outputs)
