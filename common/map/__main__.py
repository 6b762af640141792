"""Pair a PyTorch module with a Keras model and prove that they compute the same.

Exits with 0 where they do, with 1 where they do not or where something is not matched, with 2 for a mistake to fix.
"""

import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from common.config.command_line import compose_options, create_parser, report_user_errors
from common.config.compose import CONF
from common.errors import FAILURE, UserError
from common.map.input_specs import parse_input_spec
from common.map.map_file import describe_unmatched, write_map
from common.map.map_table import format_map_table
from common.map.pair_models import PairingRequest, pair_models
from common.map.side import Side
from common.training.stop import interrupt_on_signals

DEFAULTS = Path(CONF, "map.yaml")
FREE = ("inputs", "model.arguments")  # the keys below these are the user's


@dataclass
class MapModelOptions:
    """The factories of the two models."""

    torch: str
    tf: str
    map: str | None
    arguments: dict[str, Any] = field(default_factory=dict)


@dataclass
class MapOptions:
    """The keys of conf/map.yaml."""

    model: MapModelOptions
    inputs: dict[str, str]
    seed: int
    write: str | None


def load_options(overrides: Sequence[str]) -> MapOptions:
    """conf/map.yaml with Hydra overrides. Raises UserError for unknown keys and for values of the wrong type."""
    keys = "the keys are model.torch, model.tf, model.arguments, model.map, inputs, seed, write"
    settings = compose_options(MapOptions, "map", [_quoted(each) for each in overrides], keys)
    if not settings.inputs:
        raise UserError("inputs: is empty; give the inputs of the models, such as 'inputs={x: float32[8,16]}'")
    if not 0 <= settings.seed < 2**32:
        raise UserError(f"seed={settings.seed}: must be at least 0 and less than {2**32}")
    return settings


@report_user_errors(())
def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit code."""
    parser = create_parser("common.map", __doc__, DEFAULTS)
    parser.add_argument("overrides", nargs="*", metavar="key=value")
    settings = load_options(parser.parse_intermixed_args(arguments).overrides)
    model = settings.model
    inputs = {name: parse_input_spec(name, text) for name, text in settings.inputs.items()}
    job = PairingRequest(
        model.torch, model.tf, inputs, model.arguments, Path(model.map) if model.map else None, settings.seed
    )
    if settings.write is not None:
        _check_place(Path(settings.write))
    with interrupt_on_signals(), Side("torch_impl") as torch, Side("tf_impl") as keras:
        found = pair_models(torch, keras, job)
    print(format_map_table(found.parameter_map, found.torch_description, found.keras_description))
    for line in describe_unmatched(found.parameter_map, found.torch_description, found.keras_description):
        print(line)
    if settings.write is not None:
        write_map(Path(settings.write), found.parameter_map, found.torch_description, found.keras_description)
        print(settings.write)
    if found.proof is None:
        print("not proven: match every variable in a map file (write=map.yaml writes a start; give it as model.map)")
        return FAILURE
    for note in found.proof.notes:
        print(f"note: {note}")
    for name, difference in found.proof.measured.items():
        print(f"{name}: largest relative difference {difference:.1e}")
    for error in found.proof.errors:
        print(f"not the same: {error}")
    if found.proven:
        print("proven: both models compute the same")
    return 0 if found.proven else FAILURE


def _check_place(path: Path) -> None:
    """Before the work: whether a map file can be written there. Raises UserError."""
    if path.exists():
        raise UserError(f"write={path}: is there already; choose another name")
    if not path.parent.is_dir():
        raise UserError(f"write={path}: there is no directory {path.parent}; make it or choose another place")


def _quoted(override: str) -> str:
    """An override as Hydra takes it: descriptions of inputs in quotes, and names that the defaults do not have."""
    if override.startswith("inputs"):
        override = re.sub(r"(?<![\w'\"])(\w+\[[^\]{}'\"]*\](?:\s*[<>]\s*\d+)*)", r"'\1'", override)
    return f"++{override}" if override.startswith(FREE) else override


if __name__ == "__main__":
    sys.exit(main())
