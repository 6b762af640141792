"""The initial checkpoint: the one file of weights that both sides load, under Hugging Face parameter names.

Random weights are drawn with numpy, never by a framework; a pretrained checkpoint gets its new head the same way.
"""

import json
import shutil
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import xxhash
from safetensors.numpy import load_file, save_file

from common.config.schema import Config, ConvNet
from common.data.atomic_directory import fingerprint, open_or_build
from common.data.text.token_cache import Cache, TokenCache
from common.models import bert, convnet
from common.models.pretrained import SourceCheckpoint

FORMAT = 1
WEIGHTS = "model.safetensors"
KINDS = {"bert": bert, "convnet": convnet}  # by config.json's model_type


@dataclass(frozen=True)
class InitialCheckpoint:
    """A directory in Hugging Face format: config.json, model.safetensors (float32) and a BERT's tokenizer.

    data_fingerprint: of the cache of the data that it is for. checkpoint: the fingerprint of the one that the run goes
    on from, whose weights take the place of these.
    """

    directory: Path
    fingerprint: str
    data_fingerprint: str
    checkpoint: str | None = None

    @property
    def hf_config(self) -> dict[str, Any]:
        hf_config: dict[str, Any] = json.loads((self.directory / "config.json").read_text())
        return hf_config

    def weights(self) -> dict[str, np.ndarray]:
        """Parameters by Hugging Face name, float32."""
        return load_file(self.directory / WEIGHTS)


def open_initial_checkpoint(config: Config, cache: Cache, source: SourceCheckpoint | None) -> InitialCheckpoint:
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
        kind = convnet if isinstance(config.model, ConvNet) else bert
        hf_config = kind.hf_config(config, cache, source)
        weights = _draw(hf_config, config.train.seed)
        if source is not None:
            weights.update(bert.pretrained(source, weights))
        (partial / "config.json").write_text(json.dumps(hf_config, indent=1))
        save_file(weights, partial / WEIGHTS, metadata={"format": "pt"})
        if isinstance(cache, TokenCache):
            shutil.copytree(cache.tokenizer_directory, partial, dirs_exist_ok=True)
        return {}

    manifest = open_or_build(directory, build)
    return InitialCheckpoint(directory, manifest["checksums"][WEIGHTS], cache.fingerprint)


def parameter_shapes(hf_config: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    """Shapes of a model's parameters by name, in PyTorch's layout."""
    return KINDS[hf_config["model_type"]].parameter_shapes(hf_config)


def _draw(hf_config: dict[str, Any], seed: int) -> dict[str, np.ndarray]:
    """Random weights, one stream for each parameter: its values do not depend on what else the model has."""
    weights = {}
    for name, shape in parameter_shapes(hf_config).items():
        stream = np.random.Generator(np.random.PCG64([seed, xxhash.xxh32_intdigest(name.encode())]))
        weights[name] = KINDS[hf_config["model_type"]].draw(hf_config, name, shape, stream)
    return weights
