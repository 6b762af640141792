"""The arguments of common.diagnose: two sides, with overrides of both or of one."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from common.config.command_line import compose_options
from common.config.compose import CONF
from common.config.strategies import PACKAGES, list_strategies
from common.diagnose.from_run import OF_EXTENSION, arguments_of, quoted, starting_point
from common.diagnose.rounding import UNITS
from common.errors import UserError
from common.run.checkpoint import open_checkpoint, parse_step, reopen_checkpoint

DEFAULTS = Path(CONF, "diagnose.yaml")
NAMES = ("a", "b")
MOST_STEPS = 100
TRAINED_IN = "train.precision"


@dataclass
class Settings:
    """The keys of conf/diagnose.yaml."""

    a: str | None
    b: str | None
    steps: int
    precision: str
    start: str | None
    output: str


@dataclass(frozen=True)
class SideArguments:
    """name: a or b. overrides: as `python -m torch_impl.train` takes them. start: the checkpoint to start from."""

    name: str
    framework: str
    strategy: str
    overrides: list[str]
    start: Path | None = None

    @property
    def title(self) -> str:
        """For example: A (torch ddp)."""
        return f"{self.name.upper()} ({self.framework} {self.strategy})"

    @property
    def for_training(self) -> list[str]:
        """The overrides with the one that chooses a file of conf/strategy."""
        has_kind = any(each.startswith(OF_EXTENSION) for each in self.overrides)
        return [f"strategy={'single' if has_kind else self.strategy}", *self.overrides]


def parse_arguments(arguments: Sequence[str]) -> tuple[Settings, list[SideArguments]]:
    """The command's own settings and the two sides. Raises UserError."""
    run_dirs = [each for each in arguments if "=" not in each]
    if run_dirs:
        return parse_arguments([*_of_runs(run_dirs), *(each for each in arguments if "=" in each)])
    own, shared, single = [], [], {name: list[str]() for name in NAMES}
    for each in arguments:
        key = each.partition("=")[0]
        if key in Settings.__dataclass_fields__:
            own.append(each)
        elif (bare := key.lstrip("+~"))[:2] in ("a.", "b."):
            single[bare[0]].append(each.replace(bare[:2], "", 1))
        else:
            shared.append(each)
    settings = _settings(own)
    overrides = {name: [*shared, *single[name]] for name in NAMES}
    _check_precision(settings, list(overrides.values()))
    return settings, [_side(settings, name, overrides[name]) for name in NAMES]


def _of_runs(run_dirs: Sequence[str]) -> list[str]:
    """The arguments that two run directories stand for."""
    if len(run_dirs) != 2:
        raise UserError(f"{run_dirs[0]}: give two run directories, or a=torch:ddp b=tf:mirrored and keys of a training")
    found = []
    for name, run_dir in zip(NAMES, run_dirs, strict=True):
        side, overrides = arguments_of(Path(run_dir))
        found.append(f"{name}={side}")
        found += [f"++{name}.{each[2:]}" if each.startswith("++") else f"{name}.{each}" for each in overrides]
    if point := starting_point(*map(Path, run_dirs)):
        checkpoint, apart = point
        found += [
            f"start={quoted(str(checkpoint))}",
            f"steps={min(max(apart - parse_step(checkpoint), 3), MOST_STEPS)}",
        ]
    return found


def _settings(overrides: Sequence[str]) -> Settings:
    settings = compose_options(Settings, "diagnose", overrides, "the keys are a, b, steps, precision, start, output")
    if not 2 <= settings.steps <= MOST_STEPS:
        raise UserError(f"steps={settings.steps}: must be 2 to {MOST_STEPS}")
    if settings.precision not in UNITS:
        raise UserError(f"precision={settings.precision}: must be one of {', '.join(UNITS)}")
    if settings.start is not None:
        open_checkpoint(Path(settings.start))
    return settings


def _check_precision(settings: Settings, sides: Sequence[Sequence[str]]) -> None:
    """train.precision may differ between the sides, which is a cause then; that of both sides is `precision`."""
    found = set()
    for overrides in sides:
        given = [each.partition("=")[2] for each in overrides if each.partition("=")[0].lstrip("+") == TRAINED_IN]
        found.add(given[-1] if given else settings.precision)
    if len(found) == 1 and found != {settings.precision}:
        value = found.pop()
        raise UserError(
            f"{TRAINED_IN}={value}: both sides train in precision={settings.precision}; give precision={value}"
        )


def _side(settings: Settings, name: str, overrides: list[str]) -> SideArguments:
    value = getattr(settings, name)
    if value is None:
        raise UserError(f"{name}: has no value; give {name}=torch:ddp or another strategy")
    framework, _, strategy = value.partition(":")
    if framework not in PACKAGES or not strategy:
        raise UserError(f"{name}={value}: must be torch:STRATEGY or tf:STRATEGY, such as {name}=torch:ddp")
    if strategy not in list_strategies(framework) and not any(each.startswith("extensions=") for each in overrides):
        choices = ", ".join(list_strategies(framework))
        raise UserError(f"{name}={value}: no such strategy of {framework}; there are {choices}")
    start = Path(settings.start) if settings.start is not None else None
    return SideArguments(name, framework, strategy, _for_training(settings, name, overrides), start)


def _for_training(settings: Settings, name: str, overrides: list[str]) -> list[str]:
    """In `precision`, a few steps of the schedule of all, with a checkpoint after each."""
    given = {each.partition("=")[0]: each.partition("=")[2] for each in overrides}
    kept = [each for each in overrides if each.partition("=")[0] not in ("train.steps", "train.epochs")]
    if given.get("schedule.total_steps", "null") == "null":
        kept.append(f"schedule.total_steps={given.get('train.steps', 300)}")
    if given.get("model") == "custom" and "model.prove" not in given:
        kept.append("model.prove=false")
    defaults = {TRAINED_IN: settings.precision, "train.checkpoint_every": 1, "train.log_every": 1}
    before = reopen_checkpoint(Path(settings.start)).position.plan_position if settings.start is not None else 0
    defaults |= {"train.keep_checkpoints": settings.steps + 1, "train.steps": before + settings.steps}
    return [
        *(f"{key}={value}" for key, value in defaults.items() if key not in given or key == "train.steps"),
        *kept,
        f"run_dir={Path(settings.output, name).absolute()}",
    ]
