"""Arguments of the command common.diagnose: its own options, and the train command of each side.

The command compares two short training runs, its sides: A is the reference, and B is compared with A. An argument is

- KEY=VALUE: an option of this command, or else a config key of both training runs;
- a.KEY=VALUE or b.KEY=VALUE: a config key of one side; Hydra's + and ~ may precede it; device is short for
  train.device;
- the directory of a finished run that a side repeats. There are two such arguments, A's and then B's, or none.
"""

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from common.config.command_line import compose_options
from common.config.compose import CONF
from common.config.overrides import parse_value
from common.config.schema import list_code, list_code_keys
from common.config.strategies import PACKAGES, list_strategies
from common.diagnose.from_run import EXTENSION_STRATEGY_PREFIX, find_starting_point, normalize_code, read_run_overrides
from common.diagnose.moved_runs import check_imports, place_inputs
from common.diagnose.overrides import drop_keys, key_of, quote_value, value_of
from common.diagnose.rounding import MACHINE_EPSILON
from common.errors import UserError
from common.interpreter import check_interpreter
from common.run.checkpoint import open_checkpoint, open_unverified_checkpoint, parse_step

DEFAULTS = Path(CONF, "diagnose.yaml")
SIDE_NAMES = ("a", "b")
FEWEST_STEPS, MOST_STEPS = 2, 100
FEWEST_REPEATED_STEPS = 3  # fewest steps of finished runs that are repeated; conf/diagnose.yaml has the same default
DEFAULT_TRAIN_STEPS = 300  # value of train.steps in conf/train.yaml
PRECISION_KEY, PYTHON_KEY = "train.precision", "python"
DEVICE_ALIAS = re.compile(r"^([+~]*(?:[ab]\.)?)device=")  # the short form of train.device


@dataclass
class DiagnoseOptions:
    """The command's own keys, which conf/diagnose.yaml lists.

    Attributes:
        a: Side A as framework:strategy, such as torch:ddp; None if it is not set, which is an error.
        b: Side B as framework:strategy.
        steps: Number of training steps to compare.
        precision: Precision in which both sides train: a key of MACHINE_EPSILON.
        start: Checkpoint that both sides start from; None starts from the initial weights.
        output: Directory of the report and of the two runs.
        trust: Whether code that the config of a run directory names may run.
        map: Map file for two records of different frameworks.
    """

    a: str | None
    b: str | None
    steps: int
    precision: str
    start: str | None
    output: str
    trust: bool
    map: str | None


@dataclass(frozen=True)
class SideArguments:
    """The training run of one side, as arguments of its command.

    Attributes:
        name: The side: "a" or "b".
        framework: "torch" or "tf".
        strategy: Name of a strategy of that framework.
        overrides: Overrides of the framework's train command, all but the one that chooses the strategy.
        start: Checkpoint to start from; None starts from the initial weights.
        repeats: Directory of the finished run to repeat; None for a new run.
        python: Interpreter of another environment; None for this command's interpreter. Only the user's command may
            name it, never the config of a run directory, which somebody else may have written.
    """

    name: str
    framework: str
    strategy: str
    overrides: list[str]
    start: Path | None = None
    repeats: Path | None = None
    python: str | None = None

    @property
    def title(self) -> str:
        """Name of the side in reports, such as "A (torch ddp)"."""
        return f"{self.name.upper()} ({self.framework} {self.strategy})"

    @property
    def train_overrides(self) -> list[str]:
        """All overrides, including the one that chooses a file of conf/strategy.

        An extension's strategy may have no file there. Its overrides then replace all values of the file of "single".
        """
        is_extension = any(override.startswith(EXTENSION_STRATEGY_PREFIX) for override in self.overrides)
        python = [] if self.python is None else [f"{PYTHON_KEY}={self.python}"]
        return [f"strategy={'single' if is_extension else self.strategy}", *self.overrides, *python]


@dataclass
class SortedArguments:
    """Arguments of the command by what they set.

    Attributes:
        own: Overrides of the command's own keys.
        shared: Overrides of both training runs.
        sides: Overrides of one training run, by its side.
    """

    own: list[str]
    shared: list[str]
    sides: dict[str, list[str]]


def is_path(argument: str) -> bool:
    """Check whether an argument is a path: it has no "=", or a file or directory of this name exists."""
    return "=" not in argument or os.path.exists(argument)  # noqa: PTH110  Path.exists raises OSError for long names


def name_sides_by_paths(arguments: Sequence[str]) -> list[str]:
    """Return the arguments with a=PATH and b=PATH as the two paths that they name."""
    paths = {text[0]: text[2:] for text in arguments if text[:2] in ("a=", "b=") and os.path.exists(text[2:])}  # noqa: PTH110  as in is_path
    if not paths:
        return [*arguments]
    if missing := [name for name in SIDE_NAMES if name not in paths]:
        raise UserError(f"{missing[0]}: must be a path, too, since the other side is one; pass two runs or two records")
    others = [text for text in arguments if text[:2] not in ("a=", "b=")]
    return [*(paths[name] for name in SIDE_NAMES), *others]


def parse_arguments(arguments: Sequence[str]) -> tuple[DiagnoseOptions, list[SideArguments]]:
    """Return the command's own options and the two sides. Raise UserError for a mistake in them."""
    run_dirs = [argument for argument in arguments if is_path(argument)]
    keys = [DEVICE_ALIAS.sub(r"\1train.device=", argument) for argument in arguments if not is_path(argument)]
    user_arguments = _sort_arguments(keys)
    repeated = _sort_arguments(_expand_run_dirs(run_dirs, user_arguments, "trust=true" in keys) if run_dirs else [])
    options = compose_diagnose_options([*repeated.own, *user_arguments.own])
    shared = _drop_trusted_code(user_arguments.shared, repeated.sides) if run_dirs else user_arguments.shared
    overrides = {name: [*repeated.sides[name], *shared, *user_arguments.sides[name]] for name in SIDE_NAMES}
    _check_precision(options, list(overrides.values()))
    sides = [_compose_side(options, name, overrides[name]) for name in SIDE_NAMES]
    repeats = map(Path, run_dirs) if run_dirs else (None, None)
    return options, [replace(side, repeats=path) for side, path in zip(sides, repeats, strict=True)]


def _sort_arguments(arguments: Sequence[str]) -> SortedArguments:
    """Sort arguments KEY=VALUE. Remove the prefix a. or b. from the arguments of a side."""
    result = SortedArguments([], [], {name: [] for name in SIDE_NAMES})
    for argument in arguments:
        key = argument.partition("=")[0]
        key_in_side = key.lstrip("+~")
        if key in DiagnoseOptions.__dataclass_fields__:
            result.own.append(argument)
        elif key_in_side.startswith(("a.", "b.")):
            side = key_in_side[0]
            result.sides[side].append(argument.replace(f"{side}.", "", 1))
        else:
            result.shared.append(argument)
    return result


def _drop_trusted_code(shared: Sequence[str], repeated: Mapping[str, Sequence[str]]) -> list[str]:
    """Return the user's overrides of both sides without the overrides that name code.

    By naming the code of a run, the user only agrees to run it.

    Args:
        shared: The user's overrides.
        repeated: The overrides that repeat each run.

    Raises:
        UserError: An override names code that neither run has.
    """
    named = {normalize_code(override) for overrides in repeated.values() for override in overrides}
    named = {text for text in named if value_of(text) not in ("null", "[]")}
    code = [override for override in shared if _names_code(override)]
    if other := [override for override in code if normalize_code(override) not in named]:
        raise UserError(f"{other[0]}: neither run has this code; to change it, name the side: a.{other[0].lstrip('+')}")
    return [override for override in shared if override not in code]


def _names_code(override: str) -> bool:
    key = key_of(override)
    return key == "extensions" or (key in list_code_keys() and bool(list_code(parse_value(override))))


def _expand_run_dirs(run_dirs: Sequence[str], user_arguments: SortedArguments, trust: bool) -> list[str]:
    """Return the arguments that repeat two runs from before the step at which they diverge.

    Args:
        run_dirs: The run directories of A and of B.
        user_arguments: The user's own arguments. Code that they name may run.
        trust: Whether any code that the runs' configs name may run.
    """
    if len(run_dirs) != len(SIDE_NAMES):
        raise UserError(
            f"{run_dirs[0]}: pass two run directories, or a=torch:ddp b=tf:mirrored and keys of a training run"
        )
    overrides_of_user = [*user_arguments.shared, *user_arguments.sides["a"], *user_arguments.sides["b"]]
    trusted = None if trust else [override.lstrip("+~") for override in overrides_of_user]
    arguments = []
    for name, run_dir in zip(SIDE_NAMES, map(Path, run_dirs), strict=True):
        side, overrides = read_run_overrides(run_dir, trusted)
        keys = {key_of(override) for override in (*user_arguments.shared, *user_arguments.sides[name])}
        if PYTHON_KEY not in keys:  # another environment may have other modules
            check_imports(run_dir)
        arguments.append(f"{name}={side}")
        for override in (*overrides, *place_inputs(run_dir, keys)):
            arguments.append(f"++{name}.{override[2:]}" if override.startswith("++") else f"{name}.{override}")
    if starting_point := find_starting_point(*map(Path, run_dirs)):
        checkpoint, step_of_divergence = starting_point
        steps = min(max(step_of_divergence - parse_step(checkpoint), FEWEST_REPEATED_STEPS), MOST_STEPS)
        arguments += [f"start={quote_value(str(checkpoint))}", f"steps={steps}"]
    return arguments


def compose_diagnose_options(overrides: Sequence[str]) -> DiagnoseOptions:
    """Return the values of conf/diagnose.yaml after these overrides. Raise UserError if one is not allowed."""
    advice = "the keys are a, b, steps, precision, start, output, trust, map"
    options = compose_options(DiagnoseOptions, "diagnose", overrides, advice)
    if not FEWEST_STEPS <= options.steps <= MOST_STEPS:
        raise UserError(f"steps={options.steps}: must be {FEWEST_STEPS} to {MOST_STEPS}")
    if options.precision not in MACHINE_EPSILON:
        raise UserError(f"precision={options.precision}: must be one of {', '.join(MACHINE_EPSILON)}")
    if options.start is not None:
        open_checkpoint(Path(options.start))
    return options


def _check_precision(options: DiagnoseOptions, overrides_of_sides: Sequence[Sequence[str]]) -> None:
    """Raise UserError if both sides set the same train.precision, but the option `precision` has another value.

    If the sides set two different values, the diagnosis reports them as a difference of the configs.
    """
    precisions = set()
    for overrides in overrides_of_sides:
        values = [value_of(override) for override in overrides if key_of(override) == PRECISION_KEY]
        precisions.add(values[-1] if values else options.precision)
    if len(precisions) == 1 and precisions != {options.precision}:
        value = precisions.pop()
        raise UserError(
            f"{PRECISION_KEY}={value}: both sides train in precision={options.precision}; set precision={value}"
        )


def _compose_side(options: DiagnoseOptions, name: str, overrides: list[str]) -> SideArguments:
    """Return side `name`, "a" or "b", with its overrides. Raise UserError if the option a or b is malformed."""
    value = getattr(options, name)
    if value is None:
        raise UserError(f"{name}: has no value; set {name}=torch:ddp or another strategy")
    framework, _, strategy = value.partition(":")
    if framework not in PACKAGES or not strategy:
        raise UserError(f"{name}={value}: must be torch:STRATEGY or tf:STRATEGY, such as {name}=torch:ddp")
    has_extensions = any(override.startswith("extensions=") for override in overrides)
    if strategy not in list_strategies(framework) and not has_extensions:
        choices = ", ".join(list_strategies(framework))
        raise UserError(f"{name}={value}: not a strategy of {framework}; use one of {choices}")
    start = Path(options.start) if options.start is not None else None
    pythons = [value_of(override).strip("'\"") for override in overrides if key_of(override) == PYTHON_KEY]
    overrides = _add_train_overrides(options, name, drop_keys(overrides, {PYTHON_KEY}))
    python = pythons[-1] if pythons and pythons[-1] != "null" else None
    return SideArguments(name, framework, strategy, overrides, start, python=python)


def check_interpreters(sides: Sequence[SideArguments]) -> None:
    """Raise UserError unless the interpreters that the command names can run the processes of their sides."""
    for side in sides:
        if side.python is not None:
            check_interpreter(f"{side.name}.{PYTHON_KEY}", side.python, side.framework)


def _add_train_overrides(options: DiagnoseOptions, name: str, overrides: list[str]) -> list[str]:
    """Return a side's overrides and additional ones: train a few steps, and save a checkpoint after each step.

    The learning rate follows the schedule of a run of the length that the user sets, not the schedule of the few steps.
    """
    values = {override.partition("=")[0]: value_of(override) for override in overrides}
    steps_before = 0
    if options.start is not None:
        steps_before = open_unverified_checkpoint(Path(options.start)).position.plan_position
    defaults = {
        PRECISION_KEY: options.precision,
        "train.checkpoint_every": 1,
        "train.log_every": 1,
        "train.keep_checkpoints": options.steps + 1,
    }
    composed = [f"{key}={value}" for key, value in defaults.items() if key not in values]
    composed.append(f"train.steps={steps_before + options.steps}")
    composed += [override for override in overrides if not override.startswith(("train.steps=", "train.epochs="))]
    if values.get("schedule.total_steps", "null") == "null":
        composed.append(f"schedule.total_steps={values.get('train.steps', DEFAULT_TRAIN_STEPS)}")
    if values.get("model") == "custom":  # a diagnosis is for models that may differ
        differing = {"model.prove": "false", "model.allow_unpaired": "true"}
        composed += [f"{key}={value}" for key, value in differing.items() if key not in values]
    return [*composed, f"run_dir={Path(options.output, name).absolute()}"]
