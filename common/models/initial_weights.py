"""The initial checkpoint: the directory with the weights that both sides load before the first step.

The weights of Lockstep's own models are drawn with NumPy, never by a framework. If they are pretrained, only a
classifier or a pooler that the pretrained checkpoint lacks is drawn. A user's model draws its weights itself.
"""

import json
import logging
import shutil
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import cast

import numpy as np
import xxhash
from safetensors.numpy import save_file

from common.config.models import CustomModelSettings
from common.config.schema import Config
from common.data.abbreviation import abbreviate
from common.data.arrays.array_cache import ArrayCache
from common.data.atomic_directory import Manifest, compute_fingerprint, lock_path, open_or_build, read_manifest
from common.data.cache import Cache
from common.data.transforms.transformed_split import TransformedSplit
from common.models import bert, custom
from common.models.hf_config import HfConfig
from common.models.pretrained import SourceCheckpoint
from common.models.spec import ModelSpec, load_spec
from common.models.stored_tensors import StoredTensors
from common.models.user_code import compute_checksums, read_file_list, write_file_list
from common.records.files import read_json_object

log = logging.getLogger("lockstep")

FORMAT = 2  # raise it whenever the form of the files changes, so that checkpoints of the old format are built again
WEIGHTS = "model.safetensors"


@dataclass(frozen=True)
class InitialCheckpoint:
    """A directory in Hugging Face format: config.json, model.safetensors (float32) and a text model's tokenizer."""

    directory: Path
    fingerprint: str  # the checksum of the weights
    is_deferred: bool = False  # whether the strategy loads the weights itself, into parts of the parameters

    @property
    def hf_config(self) -> HfConfig:
        """The contents of config.json."""
        return cast(HfConfig, read_json_object(self.directory / "config.json"))

    @property
    def has_batch_norm(self) -> bool:
        """Return whether the model has moving statistics of BatchNorm layers."""
        return any(name.endswith(("running_mean", "moving_mean")) for name in self.weights())

    def weights(self) -> StoredTensors:
        """Return the parameters by PyTorch's names, float32. A user's model in Keras alone has Keras's paths."""
        return StoredTensors(self.directory / WEIGHTS)


def open_initial_checkpoint(config: Config, cache: Cache, source: SourceCheckpoint | None) -> InitialCheckpoint:
    """Open the initial checkpoint of a config. Build it first if it is missing or damaged. Raise UserError.

    Args:
        config: The config of the run.
        cache: The data, which decides the sizes of the model's input and output.
        source: The pretrained checkpoint; None for a model whose weights are drawn.
    """
    description: dict[str, object] = {
        "format": FORMAT,
        "data": cache.fingerprint,
        "model": asdict(config.model),
        "seed": config.train.seed,
        "source": source.identify_weights() if source else None,
    }
    if isinstance(cache.train, TransformedSplit):  # transforms may resize the inputs of the model
        description["shapes"] = {name: [*shape] for name, shape in cache.train.example_shapes.items()}
    if isinstance(config.model, CustomModelSettings):
        return _open_custom(config, cache, description)
    directory = Path(config.cache_dir) / f"weights-{compute_fingerprint(description)}"
    keeps_head = source is not None and source.classes == cache.classes
    if source is not None and source.classes is not None and not keeps_head:
        log.warning(
            "model.checkpoint: its head has the classes %s, the data has %s; a new head is drawn",
            *map(abbreviate, (source.classes, cache.classes)),
        )

    def build(partial: Path) -> Manifest:
        spec = load_spec(config.model)
        hf_config = spec.build_hf_config(config, cache, source)
        weights = _draw_weights(spec, hf_config, config.train.seed)
        if source is not None:
            weights.update(bert.read_pretrained(source, weights, keeps_head))
        (partial / "config.json").write_text(json.dumps(hf_config, indent=1))
        save_file(weights, partial / WEIGHTS, metadata={"format": "pt"})
        if (cache.directory / "tokenizer").is_dir():
            shutil.copytree(cache.directory / "tokenizer", partial, dirs_exist_ok=True)
        return {}

    manifest = open_or_build(directory, build)
    return InitialCheckpoint(directory, manifest["checksums"][WEIGHTS])


def _open_custom(config: Config, cache: Cache, description: dict[str, object]) -> InitialCheckpoint:
    """Open the initial checkpoint of a user's model. Build it again if one of the user's files has changed.

    Two fingerprints name two paths. The fingerprint of `description` names the list of the user's files, which is known
    after a build. The fingerprint of `description` and of the contents of these files names the checkpoint. If several
    processes find no list, one of them builds the model under a file lock.
    """
    assert isinstance(cache, ArrayCache)
    description |= custom.identify(config, cache)
    list_path = Path(config.cache_dir) / f"custom-{compute_fingerprint(description)}.json"
    with nullcontext() if read_file_list(list_path) else lock_path(list_path):
        files, built_model = read_file_list(list_path), None
        if files is None:
            built_model = custom.build(config, cache)
            files = built_model.files
            write_file_list(list_path, files)
        code = compute_checksums(files)
        directory = Path(config.cache_dir) / f"weights-{compute_fingerprint({**description, 'code': code})}"

        def build(partial: Path) -> Manifest:
            model = built_model or custom.build(config, cache)
            write_file_list(list_path, model.files)
            (partial / "config.json").write_text(json.dumps(model.hf_config, indent=1))
            save_file(model.weights, partial / WEIGHTS, metadata={"format": "pt"})
            return {}

        manifest = open_or_build(directory, build)
    initial = InitialCheckpoint(directory, manifest["checksums"][WEIGHTS])
    custom.check_model(config, initial.hf_config)
    return initial


def reopen_initial_checkpoint(directory: Path) -> InitialCheckpoint:
    """Open an initial checkpoint that the command which started this process has verified."""
    return InitialCheckpoint(directory, read_manifest(directory)["checksums"][WEIGHTS])


def _draw_weights(spec: ModelSpec, hf_config: HfConfig, seed: int) -> dict[str, np.ndarray]:
    """Return random weights.

    Each parameter has a random stream of its own, so its values do not depend on the other parameters of the model.
    """
    weights = {}
    for name, shape in spec.get_parameter_shapes(hf_config).items():
        stream = np.random.Generator(np.random.PCG64([seed, xxhash.xxh32_intdigest(name.encode())]))
        weights[name] = spec.draw_parameter(hf_config, name, shape, stream)
    return weights
