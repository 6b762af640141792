"""Composition of conf/train.yaml with overrides, in less time than Hydra takes on a command line."""

import copy
from functools import cache

from hydra import compose, initialize_config_dir
from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import DictConfig, OmegaConf

from common.config.compose import CONF, parse_config
from common.config.schema import Config

# The keys without a dot whose value is not the choice of a file.
VALUE_KEYS = ("run_dir=", "resume=", "run_name=", "cache_dir=", "extensions=", "metrics=")
OVERRIDES = OverridesParser.create()


@cache
def compose_train(*overrides: str) -> DictConfig:
    """Compose conf/train.yaml with overrides, as the command line does, but only once: it takes 0.1 seconds."""
    with initialize_config_dir(CONF, version_base="1.3"):
        return compose("train", list(overrides))


def compose_quickly(*overrides: str) -> DictConfig:
    """Compose conf/train.yaml with overrides. Hydra composes only the choices of files.

    The values are set afterwards, as Hydra sets them.
    """
    choices = [text for text in overrides if "." not in text.partition("=")[0] and not text.startswith(VALUE_KEYS)]
    values = copy.deepcopy(compose_train(*choices))
    for override in OVERRIDES.parse_overrides([text for text in overrides if text not in choices]):
        is_new = override.is_add() or override.is_force_add()
        OmegaConf.update(values, override.key_or_group, override.value(), force_add=is_new)
    return values


@cache
def parse_quickly(*overrides: str) -> Config:
    """Return the config with overrides. It is parsed once per process, so the caller must not change its values."""
    return parse_config(compose_quickly(*overrides))
