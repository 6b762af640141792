"""The data and the initial weights of a run that was made on another machine, in its directory or bundle.

A run that was unpacked from a bundle has the directories `inputs/data`, its data cache, and `inputs/weights`, its
initial weights. A new run with `cache_dir=RUN_DIR/inputs` uses them if its config names the same data and weights as
the unpacked run's config, whose paths need not exist here. It builds everything else as usual.
"""

import os
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from importlib import import_module
from pathlib import Path

from common.config.compose import collect_values, read_complete_values
from common.config.data import DATA
from common.config.models import CustomModelSettings
from common.config.saved_config import CONFIG, Section
from common.config.schema import Config
from common.data.atomic_directory import JsonObject, compute_fingerprint, verify_directory
from common.data.cache import Cache, reopen_transformed_cache
from common.errors import UserError
from common.models import custom, initial_weights
from common.models.initial_weights import WEIGHTS, InitialCheckpoint, reopen_initial_checkpoint
from common.records.bundle import FACTS, INPUTS
from common.records.files import read_json_object
from common.records.summary import Summary

DATA_DIRECTORY, WEIGHTS_DIRECTORY = "data", "weights"
TOKENIZER_KEYS = ("checkpoint", "revision", "max_vocabulary")  # keys of a model that decide the tokens of a text
MODEL_PATH_KEYS = ("model.checkpoint", "model.map")
PATH_KEYS = ("data.train", "data.validation", "data.directory", "data.path", "data.tokenizer", *MODEL_PATH_KEYS)
NAME_KEYS = ("data.path", "data.tokenizer", "model.checkpoint")  # keys that may have the name of a hub, and not a path
HUB_NAME = re.compile(r"\w[\w.-]*(/\w[\w.-]*)?", re.ASCII)
INERT_KEYS = ("name", "allow_change")  # keys of sections that decide neither data nor weights
TRANSFORM_KEYS = ("transforms", "transform_evaluation")  # keys of the data that do not decide its cache


def find_packed_inputs(config: Config) -> tuple[Cache | None, InitialCheckpoint | None]:
    """Return the packed data and the packed initial weights; None for what the config does not describe.

    Raises:
        UserError: One of them is damaged, or the weights are of other code than the config names. Or data or weights
            must be built again, but the config names a path of the other machine for them.
    """
    packed = Path(config.cache_dir)
    if packed.name != INPUTS or not (packed / DATA_DIRECTORY).is_dir():
        return None, None
    values = read_complete_values(packed.parent / CONFIG)
    if _describe_data(asdict(config)) != _describe_data(values):
        _check_paths(config, values, PATH_KEYS, "data")
        return None, None
    check_formats(packed.parent, asdict(config))
    with _report_damage(packed / DATA_DIRECTORY):
        cache = reopen_transformed_cache(config, packed / DATA_DIRECTORY)
    if _describe_weights(asdict(config)) != _describe_weights(values):
        _check_paths(config, values, MODEL_PATH_KEYS, "initial weights")
        return cache, None
    with _report_damage(packed / WEIGHTS_DIRECTORY):
        initial = reopen_initial_checkpoint(packed / WEIGHTS_DIRECTORY)
        if isinstance(config.model, CustomModelSettings):
            _check_code(config.model, initial)
            custom.check_model(config, initial.hf_config)
    return cache, initial


def list_formats(values: Section) -> dict[str, int]:
    """Return the formats in which this version writes the data and the initial weights of a config, by module."""
    kind = _get_section(values, "data").get("kind")
    names = [DATA[kind].cache] if isinstance(kind, str) and kind in DATA else []  # not the kind of an extension
    names += [initial_weights.__name__]
    names += [custom.__name__] if _get_section(values, "model").get("kind") == "custom" else []
    return {name: import_module(name).FORMAT for name in names if name.startswith("common.")}


def check_formats(run_dir: Path, values: Section) -> None:
    """Raise UserError unless a run from a bundle has the data and the weights in the formats of this version.

    Args:
        run_dir: The directory of the run.
        values: The sections of its config.
    """
    formats = read_json_object(run_dir / FACTS).get("formats")
    for name, version in list_formats(values).items():
        if not isinstance(formats, dict) or formats.get(name, version) != version:
            raise UserError(
                f"{run_dir / INPUTS}: made by another version of Lockstep, with another format of {name}; make the "
                "bundle again with this version, or use that version here"
            )


def _check_paths(config: Config, packed: Section, keys: Iterable[str], part: str) -> None:
    """Raise UserError if a config has the same path as the packed config, because the path is of another machine.

    Args:
        config: The config of the run.
        packed: The sections of the packed config.
        keys: The keys to check.
        part: Name of the part that is built from the paths.
    """
    values, paths = collect_values(config), []
    for key in keys:
        group, _, name = key.partition(".")
        value = values.get(key)
        if isinstance(value, str) and value == _get_section(packed, group).get(name) and not _is_name(key, value):
            paths.append(f"{key}={value}")
    if paths:
        raise UserError(
            f"{', '.join(paths)}: of the machine that made the bundle, and not read here; remove the keys of the "
            f"command that change the {part}, or give the path here, too, in full or as ./PATH"
        )


def _is_name(key: str, value: str) -> bool:
    """Check whether a value is a name, such as a checkpoint of a hub, and not a path on this machine."""
    return key in NAME_KEYS and HUB_NAME.fullmatch(value) is not None and not os.path.lexists(value)


@contextmanager
def _report_damage(directory: Path) -> Iterator[None]:
    """Raise UserError if the body fails because a directory has content that Lockstep has not written."""
    try:
        yield
    except UserError:
        raise
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        raise UserError(f"{directory}: damaged: {type(error).__name__}; make the bundle again") from error


def verify_inputs(data: Path, weights: Path, summary: Summary) -> None:
    """Raise UserError unless two directories hold the data and the initial weights of a run, undamaged.

    summary: the summary of the run, which has the fingerprints of both.
    """
    manifests: dict[str, tuple[Path, JsonObject]] = {}
    for name, directory in (("token_cache", data), ("initial_weights", weights)):
        if directory.is_symlink() or directory.parent.is_symlink():
            raise UserError(f"{directory}: a symbolic link, which is not followed; make the bundle again")
        manifest, problem = verify_directory(directory)
        if manifest is None:
            problem = problem or "is not on this machine"
            raise UserError(f"{directory}: {problem}; start the run's command again to build it")
        manifests[name] = directory, manifest
    fingerprints = {
        "token_cache": compute_fingerprint(manifests["token_cache"][1]["checksums"]),
        "initial_weights": manifests["initial_weights"][1]["checksums"].get(WEIGHTS),
    }
    for name, fingerprint in fingerprints.items():
        if fingerprint != summary.get("fingerprints", {}).get(name):
            raise UserError(f"{manifests[name][0]}: has other content than the run used, by the run's summary.json")


def _check_code(model: CustomModelSettings, initial: InitialCheckpoint) -> None:
    """Raise UserError if the weights name other code than the config: the command runs only the config's code."""
    hf_config = initial.hf_config
    if hf_config.get("factories") != model.factories or hf_config.get("arguments") != dict(model.arguments):
        raise UserError(
            f"{initial.directory / 'config.json'}: names other code or arguments than the config; make the bundle again"
        )


def _describe_data(values: Section) -> dict[str, object]:
    """Return the values that a run's data cache depends on. values: the sections of the run's config."""
    model, train = _get_section(values, "model"), _get_section(values, "train")
    data = _drop_inert_keys(_get_section(values, "data"))
    return {
        "data": {name: value for name, value in data.items() if name not in TRANSFORM_KEYS},
        "tokenizer": {name: model.get(name) for name in TOKENIZER_KEYS},
        "max_length": train.get("max_length"),
        "outputs": _get_section(values, "task").get("outputs"),  # they name the labels
    }


def _describe_weights(values: Section) -> dict[str, object]:
    """Return the values that initial weights depend on, besides the data. values: the sections of the config."""
    model, train = _get_section(values, "model"), _get_section(values, "train")
    is_custom = model.get("kind") == "custom"
    return {
        "model": _drop_inert_keys(model),
        "seed": train.get("seed"),
        "task": _get_section(values, "task") if is_custom else None,
        "batch": train.get("global_batch_size") if is_custom else None,
        "transforms": _get_section(values, "data").get("transforms") or [],  # they may resize the inputs of a model
    }


def _get_section(values: Section, name: str) -> Section:
    section = values.get(name)
    return section if isinstance(section, dict) else {}


def _drop_inert_keys(values: Section) -> dict[str, object]:
    return {name: value for name, value in values.items() if name not in INERT_KEYS}
