"""Keras's models of the zoo that read tokens: architectures of KerasHub, small and with random weights."""

from typing import Any

import keras
from keras import ops
from keras_hub import models
from keras_hub.src.models.metaclip_2.metaclip_2_text_encoder import MetaCLIP2TextEncoder

from benchmarks.zoo.pairs import CLASSES

VOCABULARY, POSITIONS, WIDTH, LAYERS, HEADS, KEY_HEADS, INNER_WIDTH = 100, 64, 32, 2, 4, 2, 48
SIZES: dict[str, Any] = {
    "vocabulary_size": VOCABULARY,
    "num_layers": LAYERS,
    "hidden_dim": WIDTH,
    "intermediate_dim": INNER_WIDTH,
}
ENCODER: dict[str, Any] = {**SIZES, "num_heads": HEADS, "dropout": 0.0, "max_sequence_length": POSITIONS}


class Classifier(keras.Model):
    """A backbone of KerasHub with the mean over the tokens and a dense layer on top.

    A backbone that returns no tokens has its own pooled output.
    """

    def __init__(self, backbone: keras.Model, output: str | None = None) -> None:
        """Create the dense layer. `output` names the backbone's output if it has several."""
        super().__init__()
        self.backbone = backbone
        self.output_name = output
        self.head = keras.layers.Dense(CLASSES)

    def call(self, token_ids: keras.KerasTensor) -> keras.KerasTensor:
        """Return logits [n, CLASSES]."""
        arguments = {
            "token_ids": token_ids,
            "padding_mask": ops.ones_like(token_ids),
            "segment_ids": ops.zeros_like(token_ids),
        }
        hidden = self.backbone({tensor.name: arguments[tensor.name] for tensor in self.backbone.inputs})
        hidden = hidden[self.output_name] if self.output_name else hidden
        return self.head(hidden if len(hidden.shape) == 2 else ops.mean(hidden, axis=1))


def bert() -> keras.Model:
    """Return BERT."""
    return Classifier(models.BertBackbone(**ENCODER), "sequence_output")


def distilbert() -> keras.Model:
    """Return DistilBERT."""
    return Classifier(models.DistilBertBackbone(**ENCODER))


def albert() -> keras.Model:
    """Return ALBERT, whose layers share their weights."""
    return Classifier(models.AlbertBackbone(**ENCODER, embedding_dim=16), "sequence_output")


def electra() -> keras.Model:
    """Return ELECTRA."""
    sizes: dict[str, Any] = {key: value for key, value in ENCODER.items() if key != "vocabulary_size"}
    return Classifier(models.ElectraBackbone(**sizes, vocab_size=VOCABULARY, embedding_dim=16), "sequence_output")


def electra_exact() -> keras.Model:
    """Return ELECTRA, whose GELU is always the tanh approximation in KerasHub."""
    return electra()


def roberta() -> keras.Model:
    """Return RoBERTa."""
    return Classifier(models.RobertaBackbone(**ENCODER))


def xlm_roberta() -> keras.Model:
    """Return XLM-RoBERTa."""
    return Classifier(models.XLMRobertaBackbone(**ENCODER))


def deberta_v3() -> keras.Model:
    """Return DeBERTa-v3 with disentangled attention."""
    return Classifier(models.DebertaV3Backbone(**ENCODER, bucket_size=8))


def fnet() -> keras.Model:
    """Return FNet, which mixes tokens by a Fourier transform."""
    sizes: dict[str, Any] = {key: value for key, value in ENCODER.items() if key != "num_heads"}
    return Classifier(models.FNetBackbone(**sizes), "sequence_output")


def esm() -> keras.Model:
    """Return ESM-2 with rotary positions."""
    return Classifier(models.ESMBackbone(**ENCODER, use_pre_layer_norm=False))


def clip_text() -> keras.Model:
    """Return the text encoder of CLIP."""
    sizes: dict[str, Any] = {key: value for key, value in ENCODER.items() if key != "dropout"}
    encoder = models.CLIPTextEncoder(**sizes, embedding_dim=WIDTH)
    return Classifier(encoder)


def siglip_text() -> keras.Model:
    """Return the text encoder of SigLIP, which always reads 12 tokens."""
    sizes: dict[str, Any] = {key: value for key, value in ENCODER.items() if key != "dropout"} | {
        "max_sequence_length": 12
    }
    return Classifier(models.SigLIPTextEncoder(**sizes, embedding_dim=WIDTH))


def metaclip2_text() -> keras.Model:
    """Return the text encoder of MetaCLIP 2."""
    sizes: dict[str, Any] = {key: value for key, value in ENCODER.items() if key != "dropout"}
    return Classifier(MetaCLIP2TextEncoder(**sizes, embedding_dim=WIDTH))
