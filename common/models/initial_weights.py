"""The initial checkpoint: the one file of weights that both sides load, under Hugging Face parameter names.

Random weights are drawn with numpy, never by a framework; a pretrained checkpoint gets its new head the same way.
"""

import json
import shutil
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import xxhash
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

from common.config.models import CustomModelSettings
from common.config.schema import Config
from common.data.arrays.array_cache import ArrayCache
from common.data.atomic_directory import compute_fingerprint, open_or_build, read_manifest
from common.data.cache import Cache
from common.models import bert, custom
from common.models.outputs import check_labels
from common.models.pretrained import SourceCheckpoint
from common.models.spec import ModelSpec, load_spec

FORMAT = 1
WEIGHTS = "model.safetensors"


@dataclass(frozen=True)
class InitialCheckpoint:
    """A directory in Hugging Face format: config.json, model.safetensors (float32) and a text model's tokenizer."""

    directory: Path
    fingerprint: str

    @property
    def hf_config(self) -> dict[str, Any]:
        """config.json."""
        hf_config: dict[str, Any] = json.loads((self.directory / "config.json").read_text())
        return hf_config

    @property
    def has_batch_norm(self) -> bool:
        """Whether the model has moving statistics, which BatchNorm layers have."""
        with safe_open(self.directory / WEIGHTS, "numpy") as file:
            return any(name.endswith(("running_mean", "moving_mean")) for name in file.keys())  # noqa: SIM118

    def weights(self) -> dict[str, np.ndarray]:
        """Parameters by Hugging Face name, float32."""
        return load_file(self.directory / WEIGHTS)


def open_initial_checkpoint(config: Config, cache: Cache, source: SourceCheckpoint | None) -> InitialCheckpoint:
    """Open the initial checkpoint of a config, built first where it is missing or damaged. Raises UserError."""
    described = {
        "format": FORMAT,
        "data": cache.fingerprint,
        "model": asdict(config.model),
        "seed": config.train.seed,
        "source": source.weights_identity() if source else None,
    }
    if isinstance(config.model, CustomModelSettings):
        return _open_custom(config, cache, described)
    directory = Path(config.cache_dir) / f"weights-{compute_fingerprint(described)}"

    def build(partial: Path) -> dict[str, Any]:
        spec = load_spec(config.model)
        hf_config = spec.build_hf_config(config, cache, source)
        weights = _draw(spec, hf_config, config.train.seed)
        if source is not None:
            weights.update(bert.read_pretrained(source, weights))
        (partial / "config.json").write_text(json.dumps(hf_config, indent=1))
        save_file(weights, partial / WEIGHTS, metadata={"format": "pt"})
        if (cache.directory / "tokenizer").is_dir():
            shutil.copytree(cache.directory / "tokenizer", partial, dirs_exist_ok=True)
        return {}

    manifest = open_or_build(directory, build)
    return InitialCheckpoint(directory, manifest["checksums"][WEIGHTS])


def _open_custom(config: Config, cache: Cache, described: dict[str, Any]) -> InitialCheckpoint:
    """That of a user's model: built again whenever one of the user's files has changed since."""
    assert isinstance(cache, ArrayCache)
    check_labels(config, cache)
    described |= custom.identity(config, cache)
    index = Path(config.cache_dir) / f"custom-{compute_fingerprint(described)}.json"
    files, built = custom.files_before(index), None
    if files is None:
        built = custom.build(config, cache)
        files = built.files
        custom.remember_files(index, files)
    directory = (
        Path(config.cache_dir) / f"weights-{compute_fingerprint({**described, 'code': custom.checksums(files)})}"
    )

    def build(partial: Path) -> dict[str, Any]:
        model = built or custom.build(config, cache)
        custom.remember_files(index, model.files)
        (partial / "config.json").write_text(json.dumps(model.hf_config, indent=1))
        save_file(model.weights, partial / WEIGHTS, metadata={"format": "pt"})
        return {}

    manifest = open_or_build(directory, build)
    initial = InitialCheckpoint(directory, manifest["checksums"][WEIGHTS])
    custom.check_strategy(config, initial.hf_config)
    return initial


def reopen_initial_checkpoint(directory: Path) -> InitialCheckpoint:
    """Open one that has been verified."""
    return InitialCheckpoint(directory, read_manifest(directory)["checksums"][WEIGHTS])


def _draw(spec: ModelSpec, hf_config: Mapping[str, Any], seed: int) -> dict[str, np.ndarray]:
    """Random weights, one stream for each parameter: its values do not depend on what else the model has."""
    weights = {}
    for name, shape in spec.get_parameter_shapes(hf_config).items():
        stream = np.random.Generator(np.random.PCG64([seed, xxhash.xxh32_intdigest(name.encode())]))
        weights[name] = spec.draw_parameter(hf_config, name, shape, stream)
    return weights
