"""The options of the command common.map: the keys of conf/map.yaml."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from common.config.command_line import compose_options
from common.config.compose import CONF
from common.config.overrides import quote_text
from common.errors import UserError

DEFAULTS = Path(CONF, "map.yaml")
FREE_SECTIONS = ("inputs", "model.arguments")  # sections of the config whose keys the user chooses
PATHS = ("torch.python", "tf.python")  # keys whose values Hydra may refuse, such as ~/venv/bin/python


@dataclass
class MapModelOptions:
    """The section `model` of conf/map.yaml.

    Attributes:
        torch: The function that builds PyTorch's model, as module:function.
        tf: The function that builds Keras's model, as module:function.
        keras: The function that builds the Keras model of both sides, instead of the two.
        map: The path of a map file with transformations that take precedence; None if there is none.
        arguments: The keyword arguments of both functions.
    """

    torch: str | None
    tf: str | None
    keras: str | None
    map: str | None
    arguments: dict[str, Any] = field(default_factory=dict)


@dataclass
class MapSideOptions:
    """The sections `torch` and `tf` of conf/map.yaml.

    Attributes:
        python: The interpreter of the environment in which the side computes; None for this command's interpreter.
    """

    python: str | None


@dataclass
class MapOptions:
    """The keys of conf/map.yaml.

    Attributes:
        model: The two models.
        torch: The environment of PyTorch's model.
        tf: The environment of Keras's model.
        inputs: The inputs by name, as text such as float32[8,16].
        seed: The seed of the weights and the inputs.
        write: The path of the map file to create; None creates none.
        all: Whether to print a line for every variable without a counterpart instead of a summary.
        weights: The path of the weights of one of the models to convert; None converts none.
        convert: The path of the file of the other model to create.
    """

    model: MapModelOptions
    torch: MapSideOptions
    tf: MapSideOptions
    inputs: dict[str, str]
    seed: int
    write: str | None
    all: bool
    weights: str | None
    convert: str | None


def load_options(overrides: Sequence[str]) -> MapOptions:
    """Compose conf/map.yaml with Hydra overrides. Raise UserError for unknown keys and values of the wrong type."""
    keys = (
        "the keys are model.torch, model.tf, model.keras, model.arguments, model.map, torch.python, tf.python, inputs, "
        "seed, write, all, weights, convert"
    )
    options = compose_options(MapOptions, "map", [_quote_override(override) for override in overrides], keys)
    if not options.inputs:
        raise UserError("inputs: is empty; set the inputs of the models, such as 'inputs={x: float32[8,16]}'")
    if not 0 <= options.seed < 2**32:
        raise UserError(f"seed={options.seed}: must be at least 0 and less than {2**32}")
    return options


def _quote_override(override: str) -> str:
    """Return an override as Hydra needs it.

    Paths and the descriptions of inputs, such as float32[8,16], are quoted. Keys that the user chooses get
    ++, since they are new.
    """
    if override.startswith(PATHS):
        return quote_text(override)
    if override.startswith("inputs"):
        override = re.sub(r"(?<![\w'\"])(\w+\[[^\]{}'\"]*\](?:\s*[<>]\s*\d+)*)", r"'\1'", override)
    return f"++{override}" if override.startswith(FREE_SECTIONS) else override
