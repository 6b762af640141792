"""PyTorch's models of the zoo that read tokens: architectures of transformers, small and with random weights."""

from typing import Any

import torch
import transformers
from torch import Tensor, nn
from transformers import PreTrainedModel

from benchmarks.zoo.pairs import CLASSES

VOCABULARY, POSITIONS, WIDTH, LAYERS, HEADS, KEY_HEADS, INNER_WIDTH = 100, 64, 32, 2, 4, 2, 48
SIZES: dict[str, Any] = {  # as most configurations name them
    "vocab_size": VOCABULARY,
    "hidden_size": WIDTH,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "intermediate_size": INNER_WIDTH,
    "max_position_embeddings": POSITIONS,
}
NO_DROPOUT: dict[str, Any] = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
ENCODER: dict[str, Any] = {**SIZES, **NO_DROPOUT}


class Classifier(nn.Module):
    """A model of transformers with the mean over the tokens and a linear layer on top."""

    def __init__(self, model: PreTrainedModel, width: int = WIDTH) -> None:
        """Create the linear layer."""
        super().__init__()
        self.model = model
        self.head = nn.Linear(width, CLASSES)

    def forward(self, token_ids: Tensor) -> Tensor:
        """Return logits [n, CLASSES]."""
        hidden = self.model(input_ids=token_ids, attention_mask=torch.ones_like(token_ids)).last_hidden_state
        return self.head(hidden.mean(dim=1))


class PooledClassifier(Classifier):
    """A model of transformers with a linear layer on its own pooled output."""

    def forward(self, token_ids: Tensor) -> Tensor:
        """Return logits [n, CLASSES]."""
        return self.head(self.model(input_ids=token_ids).pooler_output)


class UnmaskedClassifier(Classifier):
    """The same for a model that takes no mask."""

    def forward(self, token_ids: Tensor) -> Tensor:
        """Return logits [n, CLASSES]."""
        return self.head(self.model(input_ids=token_ids).last_hidden_state.mean(dim=1))


def bert() -> nn.Module:
    """Return BERT with the tanh approximation of GELU."""
    config = transformers.BertConfig(**ENCODER, hidden_act="gelu_new")
    return Classifier(transformers.BertModel(config, add_pooling_layer=False))


def distilbert() -> nn.Module:
    """Return DistilBERT."""
    config = transformers.DistilBertConfig(
        vocab_size=VOCABULARY,
        dim=WIDTH,
        n_layers=LAYERS,
        n_heads=HEADS,
        hidden_dim=INNER_WIDTH,
        max_position_embeddings=POSITIONS,
        dropout=0.0,
        attention_dropout=0.0,
    )
    return Classifier(transformers.DistilBertModel(config))


def albert() -> nn.Module:
    """Return ALBERT, whose layers share their weights."""
    config = transformers.AlbertConfig(**ENCODER, embedding_size=16, hidden_act="gelu_new")
    return Classifier(transformers.AlbertModel(config, add_pooling_layer=False))


def electra(activation: str = "gelu_new") -> nn.Module:
    """Return ELECTRA with the tanh approximation of GELU."""
    config = transformers.ElectraConfig(**ENCODER, embedding_size=16, hidden_act=activation)
    return Classifier(transformers.ElectraModel(config))


def electra_exact() -> nn.Module:
    """Return ELECTRA with the exact GELU, as its authors published it."""
    return electra("gelu")


def roberta() -> nn.Module:
    """Return RoBERTa, whose positions begin at 2."""
    sizes: dict[str, Any] = {
        **ENCODER,
        "max_position_embeddings": POSITIONS + 2,
        "layer_norm_eps": 1e-5,
        "type_vocab_size": 1,
    }
    return Classifier(transformers.RobertaModel(transformers.RobertaConfig(**sizes), add_pooling_layer=False))


def xlm_roberta() -> nn.Module:
    """Return XLM-RoBERTa."""
    sizes: dict[str, Any] = {
        **ENCODER,
        "max_position_embeddings": POSITIONS + 2,
        "layer_norm_eps": 1e-5,
        "type_vocab_size": 1,
    }
    return Classifier(transformers.XLMRobertaModel(transformers.XLMRobertaConfig(**sizes), add_pooling_layer=False))


def deberta_v3() -> nn.Module:
    """Return DeBERTa-v3 with disentangled attention."""
    relative: dict[str, Any] = {"position_buckets": 8, "share_att_key": True, "norm_rel_ebd": "layer_norm"}
    config = transformers.DebertaV2Config(
        **ENCODER,
        **relative,
        relative_attention=True,
        pos_att_type=["p2c", "c2p"],
        position_biased_input=False,
        max_relative_positions=-1,
        type_vocab_size=0,
        layer_norm_eps=1e-7,
    )
    return Classifier(transformers.DebertaV2Model(config))


def fnet() -> nn.Module:
    """Return FNet, which mixes tokens by a Fourier transform."""
    sizes: dict[str, Any] = {key: value for key, value in SIZES.items() if key != "num_attention_heads"}
    config = transformers.FNetConfig(**sizes, hidden_dropout_prob=0.0, pad_token_id=3)
    return UnmaskedClassifier(transformers.FNetModel(config, add_pooling_layer=False))


def esm() -> nn.Module:
    """Return ESM-2 with rotary positions."""
    config = transformers.EsmConfig(
        **ENCODER,
        position_embedding_type="rotary",
        layer_norm_eps=1e-12,
        emb_layer_norm_before=False,
        token_dropout=False,
        pad_token_id=0,
        mask_token_id=1,
    )
    return Classifier(transformers.EsmModel(config, add_pooling_layer=False))


def clip_text() -> nn.Module:
    """Return the text encoder of CLIP."""
    config = transformers.CLIPTextConfig(**SIZES, attention_dropout=0.0, hidden_act="quick_gelu")
    return Classifier(transformers.CLIPTextModel(config))


def siglip_text() -> nn.Module:
    """Return the text encoder of SigLIP, which always reads 12 tokens."""
    config = transformers.SiglipTextConfig(**SIZES | {"max_position_embeddings": 12}, attention_dropout=0.0)
    return PooledClassifier(transformers.SiglipTextModel(config))


def metaclip2_text() -> nn.Module:
    """Return the text encoder of MetaCLIP 2."""
    config = transformers.MetaClip2TextConfig(**SIZES, attention_dropout=0.0, bos_token_id=1, eos_token_id=2)
    return Classifier(transformers.MetaClip2TextModel(config))
