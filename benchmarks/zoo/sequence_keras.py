"""Keras's models of the zoo with an encoder and a decoder: architectures of KerasHub."""

from typing import Any

import keras
from keras import ops
from keras_hub import models

from benchmarks.zoo.pairs import CLASSES
from benchmarks.zoo.text_keras import ENCODER, HEADS, POSITIONS, SIZES, WIDTH

MELS = 8


class SequenceClassifier(keras.Model):
    """A backbone of KerasHub with the mean over the decoder's tokens and a dense layer on top."""

    def __init__(self, backbone: keras.Model) -> None:
        """Create the dense layer."""
        super().__init__()
        self.backbone = backbone
        self.head = keras.layers.Dense(CLASSES)

    def call(self, encoder_ids: keras.KerasTensor, decoder_ids: keras.KerasTensor) -> keras.KerasTensor:
        """Return logits [n, CLASSES]."""
        outputs = self.backbone(
            {
                "encoder_token_ids": encoder_ids,
                "encoder_padding_mask": ops.ones_like(encoder_ids),
                "decoder_token_ids": decoder_ids,
                "decoder_padding_mask": ops.ones_like(decoder_ids),
            }
        )
        return self.head(ops.mean(outputs["decoder_sequence_output"], axis=1))


class AudioClassifier(SequenceClassifier):
    """The same for an encoder that reads a spectrogram [n, frames, MELS]."""

    def call(self, features: keras.KerasTensor, decoder_ids: keras.KerasTensor) -> keras.KerasTensor:
        """Return logits [n, CLASSES]."""
        outputs = self.backbone(
            {
                "encoder_features": features,
                "decoder_token_ids": decoder_ids,
                "decoder_padding_mask": ops.ones_like(decoder_ids),
            }
        )
        return self.head(ops.mean(outputs["decoder_sequence_output"], axis=1))


def bart() -> keras.Model:
    """Return BART."""
    return SequenceClassifier(models.BartBackbone(**ENCODER))


def t5() -> keras.Model:
    """Return T5 with relative position biases."""
    sizes: dict[str, Any] = {**SIZES, "num_heads": HEADS, "key_value_dim": WIDTH // HEADS, "dropout": 0.0}
    return SequenceClassifier(models.T5Backbone(**sizes, activation="relu", use_gated_activation=False))


def t5_gated() -> keras.Model:
    """Return T5 1.1 with gated feed-forward layers."""
    sizes: dict[str, Any] = {**SIZES, "num_heads": HEADS, "key_value_dim": WIDTH // HEADS, "dropout": 0.0}
    return SequenceClassifier(models.T5Backbone(**sizes, activation=_gelu_tanh, use_gated_activation=True))


def whisper() -> keras.Model:
    """Return Whisper."""
    backbone = models.WhisperBackbone(
        **SIZES,
        num_heads=HEADS,
        num_mels=MELS,
        dropout=0.0,
        max_encoder_sequence_length=32,
        max_decoder_sequence_length=POSITIONS,
    )
    return AudioClassifier(backbone)


def _gelu_tanh(inputs: keras.KerasTensor) -> keras.KerasTensor:
    return keras.activations.gelu(inputs, approximate=True)
