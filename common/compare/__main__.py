"""Compare runs: tables and a verdict on the terminal, report.html, report.md and report.json in a directory."""

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from functools import partial
from pathlib import Path

from omegaconf import OmegaConf

from common.compare.external.load import load_external
from common.compare.find import named_runs, newest_runs
from common.compare.runs import load_runs
from common.compare.train_missing import plan_runs, train_missing
from common.compare.verdict import Comparison, Tolerance, compare
from common.config.command_line import compose_options, create_parser, report_user_errors
from common.config.compose import CONF
from common.config.schema import collect_keys
from common.errors import FAILURE, UserError
from common.report.json_report import write_report
from common.report.markdown import write_markdown
from common.report.serve import serve, watch
from common.report.terminal import print_comparison

DEFAULTS = Path(CONF, "compare.yaml")
TRAINING = {
    *(name.partition(".")[0] for name in collect_keys()),
    "experiment",
}  # what the keys of a training begin with


@dataclass
class CompareOptions:
    """The keys of conf/compare.yaml."""

    run: list[str]
    runs: str
    output: str
    pictures: str | None
    reference: str | None
    port: int
    tolerance: float | None
    columns: dict[str, str | None] = field(default_factory=dict)
    tolerances: dict[str, Tolerance] = field(default_factory=dict)


OWN = {each.name for each in fields(CompareOptions)}  # what the keys of this command begin with


def load_options(overrides: Sequence[str] = ()) -> CompareOptions:
    """conf/compare.yaml with Hydra overrides. Raises UserError for unknown keys and for values of the wrong type."""
    keys = f"the keys are {', '.join(_keys())}; NAME=PATH is a run from elsewhere where PATH exists"
    settings = compose_options(CompareOptions, "compare", overrides, keys)
    for precision, tolerance in settings.tolerances.items():
        if not (tolerance.loss >= 0 and tolerance.grad_norm >= 0):
            raise UserError(f"tolerances.{precision}: loss and grad_norm must be numbers, 0 or more")
        if settings.tolerance is not None:
            tolerance.loss = settings.tolerance
    if settings.tolerance is not None and not settings.tolerance >= 0:
        raise UserError(f"tolerance={settings.tolerance}: must be a number, 0 or more")
    return settings


@report_user_errors(())
def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit code: with --check 1 unless every pair is in lockstep, otherwise 0.

    A run that cannot be read counts as not in lockstep. A user's error exits with 2.
    """
    parser = create_parser("common.compare", __doc__, DEFAULTS)
    parser.add_argument(
        "arguments",
        nargs="*",
        metavar="RUN_DIR | NAME=PATH | key=value",
        help="run directories, or directories with runs below them, such as a sweep's (default: the newest run of each "
        "framework, strategy and number of replicas); runs of other programs as NAME=PATH: a CSV, trainer_state.json, "
        "a Keras history, Lightning's metrics.csv, a TensorBoard directory; overrides of the keys below",
    )
    parser.add_argument(
        "--check",
        action="store_true",
        help="exit with 1 unless every run could be read and every pair is in lockstep; an asynchronous run is in "
        "lockstep with none, and one from elsewhere needs the same curve",
    )
    parser.add_argument(
        "--serve", action="store_true", help="then serve the page on this machine, at a URL with a secret token"
    )
    parser.add_argument(
        "--watch",
        action="store_true",
        help="serve the page of runs that still train, and keep it up to date; writes no file",
    )
    options = parser.parse_intermixed_args(arguments)
    # The directories of a Hydra sweep may have "=" in their names.
    overrides = [text for text in options.arguments if text.find("=") > 0 and not os.path.exists(text)]
    run_dirs = [Path(text) for text in options.arguments if text not in overrides]
    elsewhere = [text for text in overrides if _is_elsewhere(text)]
    training = []
    if any(text.startswith("run=") for text in overrides):
        elsewhere = [text for text in elsewhere if _group(text) not in TRAINING]
        training = [text for text in overrides if text not in elsewhere and _group(text) not in OWN]
    settings = load_options([text for text in overrides if text not in (*training, *elsewhere)])
    if training and not settings.run:
        raise UserError("run=[]: names no training; give 'run=[torch:ddp,tf:mirrored]'")
    failed: list[str] = []
    if settings.run:
        trainings = plan_runs(settings.run, training, Path(settings.runs))
        failed = train_missing(trainings)
        run_dirs = [each.directory for each in trainings if each.directory.exists()] + run_dirs
    named = [(name, Path(path)) for name, _, path in (text.partition("=") for text in elsewhere)]
    look = partial(_look, settings, run_dirs, named, failed)
    if options.watch:
        roots = [*run_dirs, *(path for _, path in named)] or [Path(settings.runs)]
        watch(look, roots, settings.port)
        return 0
    comparison = look()
    for reason in comparison.left_out:
        print(f"left out: {reason}", file=sys.stderr)
    print_comparison(comparison)
    output = Path(settings.output)
    drawn = []
    if settings.pictures is not None:
        from common.report.pictures import write_pictures  # matplotlib, which takes long to import

        drawn = write_pictures(comparison, Path(settings.pictures))
    for path in (write_markdown(comparison, output, drawn), *write_report(comparison, output), *drawn):
        print(path)
    if options.serve:
        serve(comparison, settings.port)
    return FAILURE if failed or (options.check and not comparison.in_lockstep) else 0


def _look(
    settings: CompareOptions, run_dirs: Sequence[Path], elsewhere: Sequence[tuple[str, Path]], failed: list[str]
) -> Comparison:
    """Read the runs and compare them. failed: why some of those to train have failed. Raises UserError."""
    notes: list[str] = []
    if run_dirs or elsewhere or failed:
        found, left_out = named_runs(run_dirs)
    else:
        found, left_out, notes = newest_runs(Path(settings.runs))
    runs, damaged = load_runs(found)
    left_out += failed + damaged
    for name, path in elsewhere:
        try:
            runs.append(load_external(name, path, settings.columns))
        except UserError as error:
            left_out.append(str(error))
    if not runs:
        others = f" (and {len(left_out) - 1} more that cannot be read)" if len(left_out) > 1 else ""
        raise UserError(left_out[0] + others)
    comparison = compare(runs, settings.tolerances, settings.reference, left_out)
    comparison.notes[:0] = notes
    return comparison


def _is_elsewhere(text: str) -> bool:
    """Whether an argument with "=" in it names a run from elsewhere, and not a key of the config."""
    return _group(text) not in OWN and os.path.exists(text.partition("=")[2])


def _group(text: str) -> str:
    """What the key of an override begins with."""
    return text.partition("=")[0].lstrip("+~").partition(".")[0]


def _keys() -> list[str]:
    config = OmegaConf.load(DEFAULTS)
    tolerances = [f"tolerances.{precision}.{name}" for precision in config.tolerances for name in vars(Tolerance(0, 0))]
    columns = [f"columns.{name}" for name in config.columns]
    return [str(key) for key in config if key not in ("tolerances", "columns")] + columns + tolerances


if __name__ == "__main__":
    sys.exit(main())
