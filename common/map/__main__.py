"""Pair a PyTorch module with a Keras model and prove that they compute the same.

The exit code is 0 if they do, 1 if they do not or if a variable has no counterpart, and 2 for a mistake of the user.
"""

import re
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from common.config.command_line import compose_options, create_parser, report_user_errors
from common.config.compose import CONF
from common.config.strategies import PACKAGES
from common.errors import FAILURE, UserError
from common.interpreter import check_interpreter
from common.map.differing_settings import describe_settings
from common.map.input_specs import parse_input_spec
from common.map.map_file import write_map
from common.map.map_table import format_map_table
from common.map.pair_models import PairedModels, PairingRequest, pair_models
from common.map.side import Side
from common.map.unmatched import MAX_LINES, describe_unmatched, summarize_unmatched
from common.training.stop import interrupt_on_signals

DEFAULTS = Path(CONF, "map.yaml")
FREE_SECTIONS = ("inputs", "model.arguments")  # sections of the config whose keys the user chooses


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
        python: The interpreter of the environment in which the side computes; None for that of this command.
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
    """

    model: MapModelOptions
    torch: MapSideOptions
    tf: MapSideOptions
    inputs: dict[str, str]
    seed: int
    write: str | None
    all: bool


def load_options(overrides: Sequence[str]) -> MapOptions:
    """Compose conf/map.yaml with Hydra overrides. Raise UserError for unknown keys and values of the wrong type."""
    keys = (
        "the keys are model.torch, model.tf, model.keras, model.arguments, model.map, torch.python, tf.python, inputs, "
        "seed, write, all"
    )
    options = compose_options(MapOptions, "map", [_quote_override(override) for override in overrides], keys)
    if not options.inputs:
        raise UserError("inputs: is empty; set the inputs of the models, such as 'inputs={x: float32[8,16]}'")
    if not 0 <= options.seed < 2**32:
        raise UserError(f"seed={options.seed}: must be at least 0 and less than {2**32}")
    return options


@report_user_errors(())
def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command, and return its exit code."""
    parser = create_parser("common.map", __doc__, DEFAULTS)
    parser.add_argument("overrides", nargs="*", metavar="key=value")
    options = load_options(parser.parse_intermixed_args(arguments).overrides)
    model = options.model
    inputs = {name: parse_input_spec(name, text) for name, text in options.inputs.items()}
    map_path = Path(model.map) if model.map else None
    factories = _select_factories(model)
    request = PairingRequest(
        *factories, inputs, model.arguments, map_path, options.seed, is_one_factory=model.keras is not None
    )
    output_path = Path(options.write) if options.write is not None else None
    if output_path is not None:
        _check_output_path(output_path)
    pythons = {"torch": options.torch.python, "tf": options.tf.python}
    for framework, python in pythons.items():
        if python is not None:
            check_interpreter(f"{framework}.python", python, framework)
    with interrupt_on_signals(), ExitStack() as stack:
        sides = {name: stack.enter_context(Side(PACKAGES[name], python=python)) for name, python in pythons.items()}
        models = pair_models(sides["torch"], sides["tf"], request)
    described_map = models.parameter_map, models.torch_description, models.keras_description
    print(format_map_table(*described_map))
    for line in (describe_unmatched if options.all else summarize_unmatched)(*described_map):
        print(line)
    if output_path is not None:
        write_map(output_path, *described_map)
        print(output_path)
    print_proof(models)
    return 0 if models.proven else FAILURE


def print_proof(models: PairedModels) -> None:
    """Print whether the models compute the same, and which parts of them training refuses."""
    for title, description in (("PyTorch", models.torch_description), ("Keras", models.keras_description)):
        for sentence in description.unsupported:
            print(f"note: {title}'s model cannot be trained: {sentence}")
    if not models.proven:
        _print_differences(models)
    if models.proof is None:
        print("not proven: match every variable in a map file (write=map.yaml creates one; pass it as model.map)")
        return
    for note in models.proof.notes:
        print(f"note: {note}")
    for name, difference in models.proof.measured.items():
        print(f"{name}: largest relative difference {difference:.1e}")
    for error in models.proof.errors:
        print(f"not the same: {error}")
    if models.proven:
        print("proven: both models compute the same")


def _print_differences(models: PairedModels) -> None:
    """Print what is different in models that are not proven to be the same."""
    for sentence in describe_settings(models.parameter_map)[:MAX_LINES]:
        print(f"different: {sentence}")
    if models.agree_without_unmatched:
        print("different: only the variables without a counterpart; with zeros there, the outputs are the same")


def _select_factories(model: MapModelOptions) -> tuple[str, str]:
    """Return the functions that build the models of both sides. Raise UserError if one is missing or superfluous."""
    if model.keras is not None:
        for side, factory in (("torch", model.torch), ("tf", model.tf)):
            if factory is not None:
                raise UserError(f"model.keras={model.keras}: builds both models; remove it or model.{side}={factory}")
        return model.keras, model.keras
    if model.torch is None or model.tf is None:
        missing = "torch" if model.torch is None else "tf"
        raise UserError(f"model.{missing}: has no value; set it to module:function, or set model.keras alone")
    return model.torch, model.tf


def _check_output_path(path: Path) -> None:
    """Raise UserError if a map file cannot be created at a path, before the slow work begins."""
    if path.exists():
        raise UserError(f"write={path}: already exists; choose another name")
    if not path.parent.is_dir():
        raise UserError(f"write={path}: there is no directory {path.parent}; create it or choose another path")


def _quote_override(override: str) -> str:
    """Return an override as Hydra needs it.

    The descriptions of inputs, such as float32[8,16], are quoted. Keys that the user chooses get ++, since they are
    new.
    """
    if override.startswith("inputs"):
        override = re.sub(r"(?<![\w'\"])(\w+\[[^\]{}'\"]*\](?:\s*[<>]\s*\d+)*)", r"'\1'", override)
    return f"++{override}" if override.startswith(FREE_SECTIONS) else override


if __name__ == "__main__":
    sys.exit(main())
