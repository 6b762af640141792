"""Pair a PyTorch module with a Keras model and prove that they compute the same.

With weights=FILE and convert=FILE, also convert a file of weights of one model to one of the other.

The exit code is 0 if they do, 1 if they do not or if a variable has no counterpart, and 2 for a mistake of the user.
"""

import sys
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from common.config.command_line import create_parser, report_user_errors
from common.config.strategies import PACKAGES
from common.errors import FAILURE, UserError
from common.interpreter import check_interpreter
from common.map.differing_settings import describe_settings
from common.map.input_specs import parse_input_spec
from common.map.map_file import write_map
from common.map.map_table import format_map_table
from common.map.options import DEFAULTS, MapModelOptions, load_options
from common.map.pair_models import PairedModels, PairingRequest, pair_models
from common.map.side import Side
from common.map.unmatched import MAX_LINES, describe_unmatched, summarize_unmatched
from common.models.conversion import Conversion, convert_weights
from common.models.conversion_paths import ConversionPaths, check_conversion
from common.training.stop import interrupt_on_signals


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
    paths = check_conversion(options.weights, options.convert)
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
    if not models.proven:
        if paths is not None:
            print(f"not converted: {paths.source}, because the models are not proven to be the same")
        return FAILURE
    if paths is not None:
        with interrupt_on_signals(), ExitStack() as stack:
            sides = {
                name: stack.enter_context(Side(PACKAGES[name], "stored_model", python))
                for name, python in pythons.items()
            }
            _print_conversion(paths, convert_weights(paths, models, request, sides))
    return 0


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


def _print_conversion(paths: ConversionPaths, conversion: Conversion) -> None:
    """Print what a conversion left out, and how far the outputs of the two models with their files differ."""
    for note in conversion.notes:
        print(f"note: {note}")
    rounding = ", ".join(f"{title} {difference:.1e}" for title, difference in conversion.outputs.rounding.items())
    print(f"outputs of both files in float64: largest relative difference {conversion.outputs.float64:.1e}")
    print(
        "outputs of both files in the models' own types: largest relative difference "
        f"{conversion.outputs.own_types:.1e}; to float64: {rounding}"
    )
    print(f"converted: {paths.source} to {paths.target}")


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


if __name__ == "__main__":
    sys.exit(main())
