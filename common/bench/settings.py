"""The settings of a benchmark: conf/bench.yaml and `bench.` overrides. Other overrides are of the training config."""

from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path

from common.config.command_line import compose_options
from common.config.compose import CONF
from common.config.strategies import PACKAGES
from common.errors import UserError
from common.hardware import count_cores

DEFAULTS = Path(CONF, "bench.yaml")
PREFIX = "bench."
LINK = "link_rate"  # the script that measures how fast two processes sum gradients


@dataclass
class Definition:
    """A contestant: a run of Lockstep's, or a script of the framework's `contestants` if `script` names one.

    overrides: of the training config. A script reads the config's values that it knows. cores: to which its processes
    are bound; null: all.
    """

    framework: str
    script: str | None = None
    overrides: list[str] = field(default_factory=list)
    cores: int | None = None

    @property
    def script_module(self) -> str:
        """The module of its script, such as torch_impl.contestants.hf_trainer."""
        return f"{PACKAGES[self.framework]}.contestants.{self.script}"


@dataclass
class Settings:
    """The keys of conf/bench.yaml."""

    contestants: list[str]
    reference: str
    rounds: int
    block_seconds: float
    warmup_steps: int
    output: str | None
    title: str
    document: str | None
    latency: float
    bandwidths: list[float]
    definitions: dict[str, Definition] = field(default_factory=dict)


def load_settings(arguments: Sequence[str]) -> tuple[Settings, list[str]]:
    """The settings, and the overrides of the training config. Raises UserError for what cannot be."""
    own = [text.replace(PREFIX, "", 1) for text in arguments if text.lstrip("+~").startswith(PREFIX)]
    others = [text for text in arguments if not text.lstrip("+~").startswith(PREFIX)]
    keys = f"the keys are {', '.join(f'{PREFIX}{each.name}' for each in fields(Settings))}"
    settings = compose_options(Settings, "bench", own, keys, PREFIX)
    _check(settings)
    return settings, others


def _check(settings: Settings) -> None:
    known = ", ".join(settings.definitions)
    if not settings.contestants or len(set(settings.contestants)) < len(settings.contestants):
        raise UserError(f"bench.contestants: must name one or more, each once; there are {known}")
    for name in settings.contestants:
        if name not in settings.definitions:
            raise UserError(f"bench.contestants: {name} has no definition; there are {known}")
        definition = settings.definitions[name]
        if definition.framework not in ("torch", "tf"):
            raise UserError(f"bench.definitions.{name}.framework: must be torch or tf")
        if definition.cores is not None and not 1 <= definition.cores <= count_cores():
            raise UserError(f"bench.definitions.{name}.cores={definition.cores}: this machine has {count_cores()}")
    if settings.reference not in settings.contestants or settings.definitions[settings.reference].script == LINK:
        raise UserError(
            f"bench.reference={settings.reference}: is not one of bench.contestants that trains; give one of "
            f"{', '.join(settings.contestants)}"
        )
    for key, least in (("rounds", 1), ("block_seconds", 0.1), ("warmup_steps", 1), ("latency", 0)):
        if not getattr(settings, key) >= least:
            raise UserError(f"bench.{key}={getattr(settings, key)}: must be at least {least}")
    if not all(speed > 0 for speed in settings.bandwidths):
        raise UserError(f"bench.bandwidths={settings.bandwidths}: must be numbers above 0")
