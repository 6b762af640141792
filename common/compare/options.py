"""Command line of `python -m common.compare`: run directories, external runs, and the keys of conf/compare.yaml."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from glob import glob
from pathlib import Path

from omegaconf import OmegaConf

from common.compare.find import list_run_dirs
from common.compare.margins import parse_margins
from common.compare.pair import Tolerance
from common.compare.run_files import path_exists
from common.config.command_line import compose_options, create_parser
from common.config.compose import CONF
from common.config.overrides import quote_text
from common.config.schema import collect_keys
from common.errors import UserError
from common.records.bundle import is_bundle

DEFAULTS = Path(CONF, "compare.yaml")
# First parts of the keys of a training run.
TRAINING_GROUPS = {*(name.partition(".")[0] for name in collect_keys()), "experiment"}


@dataclass
class CompareOptions:
    """The keys of conf/compare.yaml, which describes them."""

    run: list[str]  # training runs to start
    environments: dict[str, str]  # interpreters of other environments, by the names that `run` uses
    runs: str  # directory to search for finished runs
    output: str
    pictures: str | None
    reference: str | None
    port: int
    tolerance: float | None
    seeds: int | None
    group: str | None
    margin: str
    columns: dict[str, str | None] = field(default_factory=dict)
    tolerances: dict[str, Tolerance] = field(default_factory=dict)
    margins: dict[str, str] = field(default_factory=dict)

    @property
    def has_groups(self) -> bool:
        """True if groups of seeds are compared rather than single runs."""
        return self.group is not None or self.seeds is not None


OPTION_GROUPS = {option.name for option in fields(CompareOptions)}  # first parts of the keys of conf/compare.yaml


@dataclass(frozen=True)
class CommandLine:
    """Arguments of the command, sorted by what they name."""

    options: CompareOptions
    run_dirs: list[Path]
    external: list[tuple[str, Path]]  # name and file or directory of each external run
    training_overrides: list[str]  # keys of the training runs that run=[...] names
    check: bool
    serve: bool
    watch: bool


def load_options(overrides: Sequence[str] = ()) -> CompareOptions:
    """Compose conf/compare.yaml with Hydra overrides. Raise UserError for unknown keys and for wrong values."""
    keys = f"the keys are {', '.join(_list_keys())}; NAME=PATH names an external run if PATH exists"
    options = compose_options(CompareOptions, "compare", overrides, keys)
    for precision, tolerance in options.tolerances.items():
        if not (tolerance.loss >= 0 and tolerance.grad_norm >= 0):
            raise UserError(f"tolerances.{precision}: loss and grad_norm must be numbers, 0 or more")
        if options.tolerance is not None:
            tolerance.loss = options.tolerance
    if options.tolerance is not None and not options.tolerance >= 0:
        raise UserError(f"tolerance={options.tolerance}: must be a number, 0 or more")
    parse_margins(options.margin, options.margins)  # raises UserError before any run is read
    if options.seeds is not None and options.seeds < 2:
        raise UserError(f"seeds={options.seeds}: must be 2 or more")
    if options.group not in (None, "seed"):
        raise UserError(f"group={options.group}: must be seed, or null for no groups")
    return options


def parse_command_line(description: str | None, arguments: Sequence[str] | None = None) -> CommandLine:
    """Parse the arguments of the command; sys.argv by default. Raise UserError."""
    parser = create_parser("common.compare", description, DEFAULTS)
    parser.add_argument(
        "arguments",
        nargs="*",
        metavar="RUN_DIR | NAME=PATH | key=value",
        help="run directories, or directories with runs below them, such as a sweep's (default: the newest run of each "
        "framework, strategy and number of replicas; all runs with group=seed); runs of other programs as NAME=PATH: a "
        "CSV, trainer_state.json, a Keras history, Lightning's metrics.csv, a TensorBoard directory, a record; "
        "overrides of the keys below",
    )
    parser.add_argument(
        "--check",
        action="store_true",
        help="exit with 1 unless every run can be read and every pair is in lockstep; an asynchronous run is in "
        "lockstep with none, and an external run needs the same curve; groups of seeds must be equivalent",
    )
    parser.add_argument(
        "--serve", action="store_true", help="then serve the page on this machine, at a URL with a secret token"
    )
    parser.add_argument(
        "--watch",
        action="store_true",
        help="serve the page of runs that still train, and keep it up to date; writes no file",
    )
    parsed = parser.parse_intermixed_args(arguments)
    # The directories of a Hydra sweep may have "=" in their names.
    overrides = [text for text in parsed.arguments if text.find("=") > 0 and not path_exists(text)]
    external = [text for text in overrides if _is_external_argument(text)]
    training: list[str] = []
    # With run=[...], the keys of a training run are overrides of the training config, even if their value is a path.
    if any(text.startswith("run=") for text in overrides):
        external = [text for text in external if _get_group(text) not in TRAINING_GROUPS]
        training = [text for text in overrides if text not in external and _get_group(text) not in OPTION_GROUPS]
    option_texts = [text for text in overrides if text not in (*training, *external)]
    # The name of a column may have any characters, such as "=" and "(".
    option_texts = [quote_text(text) if _get_group(text) == "columns" else _quote_paths(text) for text in option_texts]
    # The user or the runs choose the names of environments and metrics, so Hydra needs the prefix ++ for them.
    extensible_groups = ("environments", "margins")
    options = load_options([f"++{text}" if text.startswith(extensible_groups) else text for text in option_texts])
    if (training or options.seeds) and not options.run:
        raise UserError("run=[]: names no training run; pass 'run=[torch:ddp,tf:mirrored]'")
    if options.seeds is not None:
        training.append(_sweep_seeds(options.seeds, training))
    run_dirs = [Path(text) for text in parsed.arguments if text not in overrides]
    by_directory: list[tuple[str, Path]] = []
    if options.has_groups:  # runs of other programs in one directory are a group
        by_directory = [(str(path.parent), path) for path in run_dirs if _is_external_path(path)]
        run_dirs = [path for path in run_dirs if not _is_external_path(path)]
    return CommandLine(
        options=options,
        run_dirs=run_dirs,
        external=[*_expand_paths(external), *by_directory],
        training_overrides=training,
        check=parsed.check,
        serve=parsed.serve,
        watch=parsed.watch,
    )


def _quote_paths(text: str) -> str:
    """Return an override with quotes around the interpreters that begin with ~, which Hydra reads only in quotes."""
    if _get_group(text) != "environments":
        return text
    return re.sub(r"(?<=[:=])(\s*)(~[^\s'\",{}]*)", r"\1'\2'", text)


def _sweep_seeds(seeds: int, training: Sequence[str]) -> str:
    """Return the override that trains every contestant with this number of seeds."""
    if any(text.partition("=")[0].lstrip("+") == "train.seed" for text in training):
        raise UserError("train.seed: set by seeds=...; remove one of them")
    return f"train.seed={','.join(map(str, range(seeds)))}"


def _is_external_path(path: Path) -> bool:
    """Check whether something exists at a path that is neither a run, nor a bundle, nor a directory with runs."""
    return path_exists(path) and not is_bundle(path) and not (path.is_dir() and list_run_dirs(path))


def _expand_paths(external: Sequence[str]) -> list[tuple[str, Path]]:
    """Return name and path of each external run. A path may be a pattern, such as logs/*.csv."""
    named = [(name, path) for name, _, path in (text.partition("=") for text in external)]
    return [(name, Path(file)) for name, path in named for file in ([path] if path_exists(path) else _find_files(path))]


def _find_files(pattern: str) -> list[str]:
    return sorted(glob(pattern))  # noqa: PTH207  Path.glob takes no absolute pattern


def _is_external_argument(text: str) -> bool:
    """Check whether an argument NAME=PATH names an external run rather than a key of the config."""
    path = text.partition("=")[2]
    return _get_group(text) not in OPTION_GROUPS and (path_exists(path) or bool(_find_files(path)))


def _get_group(text: str) -> str:
    """Return the first part of an override's key, such as "train" for "+train.steps=100"."""
    return text.partition("=")[0].lstrip("+~").partition(".")[0]


def _list_keys() -> list[str]:
    config = OmegaConf.load(DEFAULTS)
    tolerances = [
        f"tolerances.{precision}.{measure.name}" for precision in config.tolerances for measure in fields(Tolerance)
    ]
    columns = [f"columns.{name}" for name in config.columns]
    return [str(key) for key in config if key not in ("tolerances", "columns", "margins")] + columns + tolerances
