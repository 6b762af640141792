"""DistilBERT of KerasHub with a classifier, for the data of examples.lstm."""

import keras
import keras_hub
from keras import layers


def build(vocabulary: int = 20, classes: int = 2, width: int = 32) -> keras.Model:
    """Build a model that maps tokens and tokens_mask (0 for padding), both [n, length], to logits [n, classes]."""
    tokens = keras.Input((None,), name="tokens", dtype="int32")
    tokens_mask = keras.Input((None,), name="tokens_mask", dtype="int32")
    encoder = keras_hub.models.DistilBertBackbone(
        vocabulary_size=vocabulary,
        num_layers=2,
        num_heads=2,
        hidden_dim=width,
        intermediate_dim=4 * width,
        dropout=0.0,
        max_sequence_length=32,
    )
    states = encoder({"token_ids": tokens, "padding_mask": tokens_mask})
    return keras.Model({"tokens": tokens, "tokens_mask": tokens_mask}, layers.Dense(classes)(states[:, 0, :]))
