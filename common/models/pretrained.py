"""A pretrained BERT checkpoint in Hugging Face format. It is checked before anything is built from it."""

import json
from dataclasses import dataclass
from pathlib import Path

from common.config.models import ACTIVATIONS, PretrainedBertSettings, check_max_length
from common.config.schema import Config
from common.data.hub import download_checkpoint
from common.data.identity import identify_file
from common.data.tokenizer_source import TokenizerSource
from common.errors import UserError
from common.models.hf_config import HfConfig

REQUIRED_SIZES = (  # of config.json
    "vocab_size",
    "hidden_size",
    "num_hidden_layers",
    "num_attention_heads",
    "intermediate_size",
    "max_position_embeddings",
    "type_vocab_size",
)


@dataclass(frozen=True)
class SourceCheckpoint(TokenizerSource):
    """A pretrained checkpoint that a run starts from: a directory with its config, weights and tokenizer."""

    config: HfConfig  # its config.json

    def identify_weights(self) -> dict[str, object]:
        """Return the identities of the weights' files by name. They change when the weights change."""
        files = (self.directory / "config.json", *list_weight_files(self.directory))
        return {path.name: identify_file(path) for path in files}


def list_weight_files(directory: Path) -> list[Path]:
    """Return the safetensors files of a checkpoint."""
    return sorted(directory.glob("*.safetensors"))


def find_source(config: Config) -> SourceCheckpoint | None:
    """Return the pretrained checkpoint of a config, or None if its weights are random. Raises UserError."""
    if not isinstance(config.model, PretrainedBertSettings):
        return None
    directory = Path(config.model.checkpoint).expanduser()
    if not directory.is_dir():
        if directory.is_absolute() or directory.exists() or config.model.checkpoint.count("/") != 1:
            raise UserError(
                f"model.checkpoint={config.model.checkpoint}: neither a directory nor a hub id (owner/name); give one"
            )
        directory = download_checkpoint(config.model.checkpoint, config.model.revision)
    return open_source(directory, config)


def open_source(directory: Path, config: Config) -> SourceCheckpoint:
    """Open a directory in Hugging Face format. Raise UserError if Lockstep cannot train its model."""
    if not (directory / "config.json").exists():
        raise UserError(f"model.checkpoint: {directory} has no config.json; give a directory in Hugging Face format")
    if not list_weight_files(directory):
        raise UserError(
            f"model.checkpoint: {directory} has no weights (*.safetensors; pickled weights are not loaded); "
            "save it with save_pretrained"
        )
    hf_config = _read_config(directory)
    if hf_config.get("model_type") != "bert":
        raise UserError(f"model.checkpoint: {directory} is a {hf_config.get('model_type')} model; Lockstep trains bert")
    if hf_config.get("hidden_act", "gelu") not in ACTIVATIONS:
        raise UserError(
            f"model.checkpoint: hidden_act {hf_config['hidden_act']} is not one of {', '.join(ACTIVATIONS)}; give "
            "another"
        )
    if missing := [size for size in REQUIRED_SIZES if not isinstance(hf_config.get(size), int)]:
        raise UserError(
            f"model.checkpoint: {directory / 'config.json'} has no {', '.join(missing)}; is it a complete BERT?"
        )
    check_max_length(config.train.max_length, hf_config["max_position_embeddings"])
    return SourceCheckpoint(directory, _read_classes(directory, hf_config), hf_config)


def _read_config(directory: Path) -> HfConfig:
    path = directory / "config.json"
    try:
        hf_config = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise UserError(f"model.checkpoint: {path} cannot be read ({error}); fetch it again") from error
    if not isinstance(hf_config, dict):
        raise UserError(f"model.checkpoint: {path} is not an object; give a directory in Hugging Face format")
    return hf_config


def _read_classes(directory: Path, hf_config: HfConfig) -> list[str] | None:
    """Return the names of the classifier's outputs, or None if the checkpoint has no classifier."""
    from safetensors import SafetensorError, safe_open

    for path in list_weight_files(directory):
        try:
            with safe_open(path, "np") as weights:
                if "classifier.weight" in set(weights.keys()):
                    count = weights.get_slice("classifier.weight").get_shape()[0]
                    names = hf_config.get("id2label") or {}
                    return [str(names.get(str(index), index)) for index in range(count)]
        except (OSError, SafetensorError) as error:
            raise UserError(f"model.checkpoint: {path} cannot be read ({error}); fetch or save it again") from error
    return None
