"""The data and the initial weights of a run that was made on another machine, in its directory or bundle.

A run that was unpacked from a bundle has the directories `inputs/data`, its data cache, and `inputs/weights`, its
initial weights. A run with `cache_dir=RUN_DIR/inputs` takes them in place of what the config names by paths, if its own
config names the same. It builds everything else as usual.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

from common.config.compose import load_config
from common.config.models import CustomModelSettings
from common.config.saved_config import CONFIG
from common.config.schema import Config
from common.data.atomic_directory import JsonObject, compute_fingerprint, verify_directory
from common.data.cache import Cache, reopen_cache
from common.errors import UserError
from common.models import custom
from common.models.initial_weights import WEIGHTS, InitialCheckpoint, reopen_initial_checkpoint
from common.records.bundle import INPUTS
from common.records.summary import Summary

DATA_DIRECTORY, WEIGHTS_DIRECTORY = "data", "weights"
TOKENIZER_KEYS = ("checkpoint", "revision", "max_vocabulary")  # keys of a model that decide the tokens of a text
LABELS = ("name", "allow_change")  # keys that decide neither data nor weights


def find_packed_inputs(config: Config) -> tuple[Cache | None, InitialCheckpoint | None]:
    """Return the packed data and the packed initial weights, each None if the config is not the one they belong to.

    Raises:
        UserError: One of them is damaged, or the weights name other code than the config.
    """
    packed = Path(config.cache_dir)
    if packed.name != INPUTS or not (packed / DATA_DIRECTORY).is_dir():
        return None, None
    packed_config = load_config(packed.parent / CONFIG)
    if _describe_data(config) != _describe_data(packed_config):
        return None, None
    with _report_damage(packed / DATA_DIRECTORY):
        cache = reopen_cache(config, packed / DATA_DIRECTORY)
    if _describe_weights(config) != _describe_weights(packed_config):
        return cache, None
    with _report_damage(packed / WEIGHTS_DIRECTORY):
        initial = reopen_initial_checkpoint(packed / WEIGHTS_DIRECTORY)
        if isinstance(config.model, CustomModelSettings):
            _check_code(config.model, initial)
            custom.check_strategy(config, initial.hf_config)
    return cache, initial


@contextmanager
def _report_damage(directory: Path) -> Iterator[None]:
    """Raise UserError if the body fails because a directory has other content than Lockstep writes."""
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
    """Raise UserError if the weights name code that the config does not name: the command trusts that of the config."""
    hf_config = initial.hf_config
    if hf_config.get("factories") != model.factories or hf_config.get("arguments") != dict(model.arguments):
        raise UserError(
            f"{initial.directory / 'config.json'}: names other code or arguments than the config; make the bundle again"
        )


def _describe_data(config: Config) -> dict[str, object]:
    """Return what decides the content of a run's data cache."""
    return {
        "data": _without_labels(asdict(config.data)),
        "tokenizer": {name: getattr(config.model, name, None) for name in TOKENIZER_KEYS},
        "max_length": config.train.max_length,
    }


def _describe_weights(config: Config) -> dict[str, object]:
    """Return what decides a run's initial weights besides its data."""
    is_custom = isinstance(config.model, CustomModelSettings)
    return {
        "model": _without_labels(asdict(config.model)),
        "seed": config.train.seed,
        "task": asdict(config.task),
        "batch": config.train.global_batch_size if is_custom else None,
    }


def _without_labels(values: dict[str, object]) -> dict[str, object]:
    return {name: value for name, value in values.items() if name not in LABELS}
