"""The check of a user's model in the environment that trains it.

The model is built, described and proven in the environment of the command, which draws the same initial weights for
every environment. Another version of a library may build other layers from the same code. So a process of the
environment that trains describes its model too, once for the same code and versions.
"""

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import numpy as np

from common.config.models import CustomModelSettings
from common.config.schema import Config
from common.config.strategies import PACKAGES
from common.data.arrays.array_cache import ArrayCache
from common.data.atomic_directory import compute_fingerprint
from common.data.cache import Cache
from common.errors import UserError
from common.map.description import ModelDescription
from common.map.pair_models import describe_models
from common.map.side import Side
from common.models.custom import PROOF_EXAMPLES, make_request
from common.models.hf_config import HfConfig
from common.models.initial_weights import InitialCheckpoint
from common.models.user_code import compute_checksums
from common.models.user_noise import check_noise


def check_in_environment(
    config: Config, framework: str, cache: Cache, initial: InitialCheckpoint, versions: Mapping[str, str]
) -> None:
    """Raise UserError if the environment of `config.python` builds a model that training cannot align.

    Args:
        config: The config, which names the interpreter.
        framework: The side that the environment trains.
        cache: The data.
        initial: The initial weights, and what is known of the model in the environment of this command.
        versions: The versions of the environment's packages.
    """
    settings = config.model
    assert isinstance(settings, CustomModelSettings) and isinstance(cache, ArrayCache) and config.python is not None
    python = str(Path(config.python).expanduser().absolute())
    facts = {"model": initial.hf_config, "framework": framework, "python": python, "versions": {**versions}}
    checked = Path(config.cache_dir) / f"environment-{compute_fingerprint(facts)}.json"
    if _has_same_files(checked):
        return
    ids = np.arange(min(PROOF_EXAMPLES, len(cache.train)))
    request = replace(make_request(config, cache, cache.train.gather(ids, ids)), is_one_factory=False)
    try:
        with Side(PACKAGES[framework], python=config.python, device=config.train.device) as side:
            description = describe_models({framework: side}, request)[framework]
            files = side.call("list_files")
        if description.unsupported:
            raise UserError(f"{settings.get_key(framework)}: {description.unsupported[0]}")
        check_noise({framework: description}, settings.has_aligned_dropout)
        _check_dropouts(framework, description, initial.hf_config)
    except UserError as error:
        if config.python in str(error):  # its process has not started, and the error names the interpreter
            raise
        raise UserError(f"python={config.python}: in that environment, {error}") from error
    with suppress(OSError):  # without a cache that can be written, every run checks the model
        checked.write_text(json.dumps(compute_checksums(files)))


def _has_same_files(checked: Path) -> bool:
    """Check whether the user's files are the same as in an earlier check. checked: the file with their checksums."""
    try:
        checksums = json.loads(checked.read_text())
        return bool(compute_checksums([*checksums]) == checksums)
    except (OSError, ValueError):
        return False


def _check_dropouts(framework: str, description: ModelDescription, hf_config: HfConfig) -> None:
    """Raise UserError unless the model has the dropout and noise layers that the other environment has found."""
    if hf_config["dropouts"] is None:
        return
    column = "torch" if framework == "torch" else "keras"
    expected = {pair[column]: pair["noise"] for pair in hf_config["dropouts"]}
    names = {layer.name for layer in description.dropouts.values()}
    if different := sorted(names ^ {*expected}):
        owner = "this environment's model has none" if different[0] in names else "only this environment's model has it"
        raise UserError(
            f"model.{framework}: the dropout layers differ: {different[0]}, and {owner}; run the command itself with "
            "that interpreter, and remove python"
        )
