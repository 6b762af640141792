"""The model of translation_torch.py in Keras."""

import keras
from keras import layers, ops

from tests.parity.translation_data import SOURCE, TARGET, WORDS


def build() -> keras.Model:
    """Return the model with random weights."""
    input_ids, attention_mask = (
        keras.Input((SOURCE,), name=name, dtype="int32") for name in ("input_ids", "attention_mask")
    )
    decoder_input_ids = keras.Input((TARGET,), name="decoder_input_ids", dtype="int32")
    encoded = layers.Embedding(WORDS, 8, name="source")(input_ids)
    encoded = layers.Dense(8, activation="tanh", name="encoder")(encoded)
    target = layers.Embedding(WORDS, 8, name="target")(decoder_input_ids)
    hidden = 1e9 * (1 - ops.cast(attention_mask[:, None], target.dtype))
    shares = ops.softmax(ops.matmul(target, ops.transpose(encoded, (0, 2, 1))) - hidden)
    states = layers.Concatenate()([target, ops.matmul(shares, encoded)])
    states = layers.Dense(8, activation="tanh", name="decoder")(states)
    inputs = {"input_ids": input_ids, "attention_mask": attention_mask, "decoder_input_ids": decoder_input_ids}
    return keras.Model(inputs, {"logits": layers.Dense(WORDS, name="head")(states)})
