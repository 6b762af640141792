"""The initial checkpoint: the one file of weights that both sides load, under Hugging Face parameter names.

Random weights are drawn with numpy, never by a framework; a pretrained checkpoint gets its new head the same way.
"""

import json
import re
import shutil
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import xxhash
from safetensors.numpy import load_file, save_file

from common.config import Bert, Config
from common.data.cache import TokenCache
from common.errors import UserError
from common.pretrained import SourceCheckpoint, weight_files
from common.store import fingerprint, open_or_build

FORMAT = 1
WEIGHTS = "model.safetensors"


@dataclass(frozen=True)
class InitialCheckpoint:
    """A directory in Hugging Face format: config.json, model.safetensors (float32) and the tokenizer."""

    directory: Path
    fingerprint: str

    @property
    def hf_config(self) -> dict[str, Any]:
        hf_config: dict[str, Any] = json.loads((self.directory / "config.json").read_text())
        return hf_config

    def weights(self) -> dict[str, np.ndarray]:
        """Parameters by Hugging Face name, float32."""
        return load_file(self.directory / WEIGHTS)


def open_initial_checkpoint(config: Config, cache: TokenCache, source: SourceCheckpoint | None) -> InitialCheckpoint:
    """Open the initial checkpoint of a config, made first where it is missing or damaged. Raises UserError."""
    key = fingerprint(
        {
            "format": FORMAT,
            "tokens": cache.fingerprint,
            "model": asdict(config.model),
            "seed": config.train.seed,
            "source": source.weights_identity() if source else None,
        }
    )
    directory = Path(config.cache_dir) / f"weights-{key}"

    def build(partial: Path) -> dict[str, Any]:
        hf_config = _hf_config(config, cache, source)
        weights = _draw(hf_config, config.train.seed)
        if source is not None:
            weights.update(_pretrained(source, weights))
        (partial / "config.json").write_text(json.dumps(hf_config, indent=1))
        save_file(weights, partial / WEIGHTS, metadata={"format": "pt"})
        shutil.copytree(cache.tokenizer_directory, partial, dirs_exist_ok=True)
        return {}

    manifest = open_or_build(directory, build)
    return InitialCheckpoint(directory, manifest["checksums"][WEIGHTS])


def _hf_config(config: Config, cache: TokenCache, source: SourceCheckpoint | None) -> dict[str, Any]:
    if isinstance(config.model, Bert):
        hf_config: dict[str, Any] = {
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
        hf_config = {"hidden_act": "gelu", "initializer_range": 0.02, "layer_norm_eps": 1e-12, **source.config}
        hf_config.pop("torch_dtype", None)
        hf_config.pop("dtype", None)
        if cache.vocabulary > hf_config["vocab_size"]:
            raise UserError(
                f"model.checkpoint: its tokenizer has {cache.vocabulary} tokens, "
                f"its embeddings {hf_config['vocab_size']}; give a checkpoint whose tokenizer fits"
            )
    return {
        **hf_config,
        "architectures": ["BertForSequenceClassification"],
        "hidden_dropout_prob": config.model.dropout,
        "attention_probs_dropout_prob": config.model.dropout,
        "classifier_dropout": config.model.dropout,
        "id2label": dict(enumerate(cache.classes)),
        "label2id": {name: index for index, name in enumerate(cache.classes)},
    }


def parameter_shapes(hf_config: dict[str, Any]) -> dict[str, tuple[int, ...]]:
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


def _draw(hf_config: dict[str, Any], seed: int) -> dict[str, np.ndarray]:
    """Random weights as BERT's: normal(0, initializer_range); biases 0, LayerNorm 1 and 0, the padding embedding 0."""
    weights = {}
    for name, shape in parameter_shapes(hf_config).items():
        if name.endswith("LayerNorm.weight"):
            weights[name] = np.ones(shape, np.float32)
        elif name.endswith(".bias"):
            weights[name] = np.zeros(shape, np.float32)
        else:  # one stream for each parameter: its values do not depend on what else the model has
            stream = np.random.Generator(np.random.PCG64([seed, xxhash.xxh32_intdigest(name.encode())]))
            weights[name] = (stream.standard_normal(shape) * hf_config["initializer_range"]).astype(np.float32)
    weights["bert.embeddings.word_embeddings.weight"][hf_config.get("pad_token_id") or 0] = 0
    return weights


def _pretrained(source: SourceCheckpoint, drawn: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
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
            raise UserError(f"model.checkpoint: {source.directory} has no weights for {name}; is it a whole BERT?")
        if name in found and found[name].shape != expected.shape:
            raise UserError(
                f"model.checkpoint: {name} is {found[name].shape}, not {expected.shape} as its config.json says"
            )
    return found
