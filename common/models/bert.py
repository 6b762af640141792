"""BERT's initial weights: its config.json, the shapes of its parameters, how they are drawn or taken over."""

import re
from collections.abc import Mapping
from typing import Any

import numpy as np
from safetensors.numpy import load_file

from common.config.models import BertSettings, RandomBertSettings
from common.config.schema import Config
from common.data.cache import Cache
from common.data.text.token_cache import TokenCache
from common.errors import UserError
from common.models.pretrained import SourceCheckpoint, weight_files


def build_hf_config(config: Config, cache: Cache, source: SourceCheckpoint | None) -> dict[str, Any]:
    """The model's config.json. Raises UserError for a checkpoint whose tokenizer does not fit it."""
    assert isinstance(config.model, BertSettings) and isinstance(cache, TokenCache)
    if isinstance(config.model, RandomBertSettings):
        made: dict[str, Any] = {
            "model_type": "bert",
            "vocab_size": cache.vocabulary,
            "hidden_size": config.model.hidden_size,
            "num_hidden_layers": config.model.layers,
            "num_attention_heads": config.model.heads,
            "intermediate_size": config.model.intermediate_size,
            "hidden_act": config.model.hidden_act,
            "max_position_embeddings": config.model.max_positions,
            "type_vocab_size": 2,
            "initializer_range": 0.02,
            "layer_norm_eps": 1e-12,
            "pad_token_id": cache.train.pad_id,
        }
    else:
        assert source is not None
        made = {"hidden_act": "gelu", "initializer_range": 0.02, "layer_norm_eps": 1e-12, **source.config}
        made.pop("torch_dtype", None)
        made.pop("dtype", None)
        if cache.vocabulary > made["vocab_size"]:
            raise UserError(
                f"model.checkpoint: its tokenizer has {cache.vocabulary} tokens, "
                f"its embeddings {made['vocab_size']}; give a checkpoint whose tokenizer fits"
            )
    return {
        **made,
        "architectures": ["BertForSequenceClassification"],
        "hidden_dropout_prob": config.model.dropout,
        "attention_probs_dropout_prob": config.model.dropout,
        "classifier_dropout": config.model.dropout,
        "id2label": dict(enumerate(cache.classes)),
        "label2id": {name: index for index, name in enumerate(cache.classes)},
    }


def get_parameter_shapes(hf_config: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    """Shapes of BertForSequenceClassification's parameters by name, in PyTorch's layout (out, in)."""
    hidden, inner = hf_config["hidden_size"], hf_config["intermediate_size"]
    shapes: dict[str, tuple[int, ...]] = {
        "bert.embeddings.word_embeddings.weight": (hf_config["vocab_size"], hidden),
        "bert.embeddings.position_embeddings.weight": (hf_config["max_position_embeddings"], hidden),
        "bert.embeddings.token_type_embeddings.weight": (hf_config["type_vocab_size"], hidden),
    }

    def layer_norm(name: str) -> None:
        shapes[f"{name}.weight"] = shapes[f"{name}.bias"] = (hidden,)

    def linear(name: str, inputs: int, outputs: int) -> None:
        shapes[f"{name}.weight"], shapes[f"{name}.bias"] = (outputs, inputs), (outputs,)

    layer_norm("bert.embeddings.LayerNorm")
    for index in range(hf_config["num_hidden_layers"]):
        layer = f"bert.encoder.layer.{index}"
        for part in ("self.query", "self.key", "self.value", "output.dense"):
            linear(f"{layer}.attention.{part}", hidden, hidden)
        layer_norm(f"{layer}.attention.output.LayerNorm")
        linear(f"{layer}.intermediate.dense", hidden, inner)
        linear(f"{layer}.output.dense", inner, hidden)
        layer_norm(f"{layer}.output.LayerNorm")
    linear("bert.pooler.dense", hidden, hidden)
    linear("classifier", hidden, len(hf_config["id2label"]))
    return shapes


def count_useful_flops(hf_config: Mapping[str, Any], lengths: np.ndarray) -> np.ndarray:
    """Floating-point operations of training on examples of these lengths, float64 [n]. lengths: real tokens, [n].

    Those of the matrix products, two for each multiplication with its addition: forward multiplies every token with the
    weights of the encoder's linear layers, every query with every key and every probability with every value, and the
    first token with the pooler's and the classifier's weights. Backward computes two products for each of forward's.
    Padding is not counted. After Narayanan et al., "Efficient Large-Scale Language Model Training on GPU Clusters Using
    Megatron-LM" (2021), appendix.
    """
    hidden, inner, layers = (hf_config[key] for key in ("hidden_size", "intermediate_size", "num_hidden_layers"))
    tokens = lengths.astype(np.float64)
    linear = 2 * layers * (4 * hidden**2 + 2 * hidden * inner) * tokens
    attention = 4 * layers * hidden * tokens**2
    head = 2 * hidden * (hidden + len(hf_config["id2label"]))
    forward: np.ndarray = linear + attention + head
    return 3 * forward


def draw_parameter(
    hf_config: Mapping[str, Any], name: str, shape: tuple[int, ...], stream: np.random.Generator
) -> np.ndarray:
    """As BERT's: normal(0, initializer_range); biases 0, LayerNorm 1 and 0, the padding embedding 0."""
    if name.endswith("LayerNorm.weight"):
        return np.ones(shape, np.float32)
    if name.endswith(".bias"):
        return np.zeros(shape, np.float32)
    parameter = (stream.standard_normal(shape) * hf_config["initializer_range"]).astype(np.float32)
    if name == "bert.embeddings.word_embeddings.weight":
        parameter[hf_config.get("pad_token_id") or 0] = 0
    return parameter


def read_pretrained(source: SourceCheckpoint, drawn: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The checkpoint's tensors under their present names; a head or pooler that it lacks stays drawn."""
    found = {}
    for path in weight_files(source.directory):
        for name, tensor in load_file(path).items():
            name = name.removeprefix("bert.").replace("LayerNorm.gamma", "LayerNorm.weight")
            name = name.replace("LayerNorm.beta", "LayerNorm.bias")
            name = name if name.startswith("classifier.") else f"bert.{name}"
            if name in drawn:
                found[name] = np.ascontiguousarray(tensor, np.float32)
    for name, expected in drawn.items():
        if name not in found and not re.match(r"(classifier|bert\.pooler)\.", name):
            raise UserError(f"model.checkpoint: {source.directory} has no weights for {name}; is it a complete BERT?")
        if name in found and found[name].shape != expected.shape:
            raise UserError(
                f"model.checkpoint: {name} is {found[name].shape}, not {expected.shape} as its config.json says; "
                "fetch it again"
            )
    return found
