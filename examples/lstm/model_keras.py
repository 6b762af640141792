"""A bidirectional LSTM that classifies texts of any length."""

import keras
from keras import layers, ops


def build(vocabulary: int = 20, classes: int = 2, width: int = 16) -> keras.Model:
    """Build a model that maps tokens and tokens_mask (0 for padding), both [n, length], to logits [n, classes]."""
    tokens = keras.Input((None,), name="tokens", dtype="int32")
    tokens_mask = keras.Input((None,), name="tokens_mask", dtype="int32")
    is_real = ops.cast(tokens_mask, "bool")
    # Without zero_output_for_mask, the layer repeats its last state at the padding. PyTorch returns zeros there.
    lstm = layers.Bidirectional(layers.LSTM(width, return_sequences=True, zero_output_for_mask=True, use_cudnn=False))
    states = lstm(layers.Embedding(vocabulary, width)(tokens), mask=is_real)
    lengths = ops.sum(ops.cast(tokens_mask, states.dtype), axis=1, keepdims=True)
    mean = ops.sum(states, axis=1) / lengths
    return keras.Model({"tokens": tokens, "tokens_mask": tokens_mask}, layers.Dense(classes)(mean))
