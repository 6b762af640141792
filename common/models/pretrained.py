"""A pretrained BERT checkpoint in Hugging Face format, which is checked before it is used."""

import json
import logging
from dataclasses import dataclass
from pathlib import Path

from common.config.models import PretrainedBertSettings, check_max_length
from common.config.schema import Config
from common.data.hub import download_checkpoint
from common.data.identity import identify_file
from common.data.tokenizer_source import TokenizerSource
from common.errors import UserError
from common.models.bert_settings import select_settings
from common.models.checkpoint_kinds import describe_checkpoint
from common.models.hf_config import HfConfig
from common.models.weight_files import list_weight_files

log = logging.getLogger("lockstep")

REMEDY = "give a directory in Hugging Face format, with config.json, model.safetensors and a tokenizer"


@dataclass(frozen=True)
class SourceCheckpoint(TokenizerSource):
    """A pretrained checkpoint that a run starts from: a directory with its config, weights and tokenizer."""

    config: HfConfig  # the settings of its config.json that Lockstep computes

    def identify_weights(self) -> dict[str, object]:
        """Return the identities of the weights' files by name. They change when the weights change."""
        files = (self.directory / "config.json", *list_weight_files(self.directory))
        return {path.name: identify_file(path) for path in files}


def find_source(config: Config) -> SourceCheckpoint | None:
    """Return the pretrained checkpoint of a config, or None for random initial weights. Raise UserError."""
    if not isinstance(config.model, PretrainedBertSettings):
        return None
    directory = Path(config.model.checkpoint).expanduser()
    if not directory.is_dir():
        if kind := describe_checkpoint(directory):
            raise UserError(f"model.checkpoint: {directory} {kind}; {REMEDY}")
        if directory.is_absolute() or config.model.checkpoint.count("/") != 1:
            raise UserError(
                f"model.checkpoint={config.model.checkpoint}: neither a directory nor a hub id (owner/name); give one"
            )
        directory = download_checkpoint(config.model.checkpoint, config.model.revision)
    return open_source(directory, config)


def open_source(directory: Path, config: Config) -> SourceCheckpoint:
    """Open a directory in Hugging Face format. Raise UserError if Lockstep cannot train its model."""
    if not (directory / "config.json").exists():
        kind = describe_checkpoint(directory) or "has no config.json"
        raise UserError(f"model.checkpoint: {directory} {kind}; {REMEDY}")
    if not list_weight_files(directory):
        raise UserError(
            f"model.checkpoint: {directory} has no weights (*.safetensors; pickled weights are not loaded); "
            "save it with save_pretrained"
        )
    hf_config = _read_config(directory)
    if hf_config.get("model_type") != "bert":
        raise UserError(f"model.checkpoint: {directory} is a {hf_config.get('model_type')} model; Lockstep trains bert")
    settings = select_settings(hf_config, directory / "config.json")
    check_max_length(config.train.max_length, settings["max_position_embeddings"])
    return SourceCheckpoint(directory, _read_classes(directory, hf_config), settings)


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
    """Return the names of the classifier's outputs, or None if the checkpoint has no classifier of one label."""
    from safetensors import SafetensorError, safe_open

    for path in list_weight_files(directory):
        try:
            with safe_open(path, "np") as weights:
                if "classifier.weight" not in set(weights.keys()):
                    continue
                count = weights.get_slice("classifier.weight").get_shape()[0]
        except (OSError, SafetensorError) as error:
            raise UserError(f"model.checkpoint: {path} cannot be read ({error}); fetch or save it again") from error
        if (problem := hf_config.get("problem_type")) not in (None, "single_label_classification"):
            log.warning("model.checkpoint: its head is for problem_type=%s; a new head is drawn", problem)
            return None
        names = hf_config.get("id2label")
        names = names if isinstance(names, dict) else {}
        return [str(names.get(str(index), index)) for index in range(count)]
    return None
