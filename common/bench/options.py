"""The options of a benchmark: conf/bench.yaml with the overrides that start with `bench.`."""

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
LINK_SCRIPT = "link_rate"  # the script that measures how fast two processes sum gradients


@dataclass
class ContestantDefinition:
    """A contestant: a run of Lockstep, or a script of the framework's folder `contestants`.

    Attributes:
        framework: "torch" or "tf".
        script: the name of the script; None for a run of Lockstep.
        overrides: overrides of the training config. A script gets only some values, such as the batch size.
        cores: how many cores its processes are bound to; None for all.
    """

    framework: str
    script: str | None = None
    overrides: list[str] = field(default_factory=list)
    cores: int | None = None

    @property
    def script_module(self) -> str:
        """Return the module of the script, such as torch_impl.contestants.hf_trainer."""
        return f"{PACKAGES[self.framework]}.contestants.{self.script}"


@dataclass
class BenchOptions:
    """The keys of conf/bench.yaml, which describes them."""

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
    definitions: dict[str, ContestantDefinition] = field(default_factory=dict)


def load_options(arguments: Sequence[str]) -> tuple[BenchOptions, list[str]]:
    """Return the options of the benchmark and the overrides of the training config.

    Raises:
        UserError: an option does not exist or has an impossible value.
    """
    bench_overrides = [text.replace(PREFIX, "", 1) for text in arguments if text.lstrip("+~").startswith(PREFIX)]
    training_overrides = [text for text in arguments if not text.lstrip("+~").startswith(PREFIX)]
    keys = f"the keys are {', '.join(f'{PREFIX}{key.name}' for key in fields(BenchOptions))}"
    options = compose_options(BenchOptions, "bench", bench_overrides, keys, PREFIX)
    _check(options)
    return options, training_overrides


def _check(options: BenchOptions) -> None:
    known = ", ".join(options.definitions)
    if not options.contestants or len(set(options.contestants)) < len(options.contestants):
        raise UserError(f"bench.contestants: must name at least one contestant, each of them once; there are {known}")
    for name in options.contestants:
        if name not in options.definitions:
            raise UserError(f"bench.contestants: {name} has no definition; there are {known}")
        definition = options.definitions[name]
        if definition.framework not in PACKAGES:
            raise UserError(f"bench.definitions.{name}.framework: must be torch or tf")
        if definition.cores is not None and not 1 <= definition.cores <= count_cores():
            raise UserError(f"bench.definitions.{name}.cores={definition.cores}: this machine has {count_cores()}")
    trained = [name for name in options.contestants if options.definitions[name].script != LINK_SCRIPT]
    if options.reference not in trained:
        remedy = f"use one of {', '.join(trained)}" if trained else "add one"
        raise UserError(f"bench.reference={options.reference}: not one of bench.contestants that trains; {remedy}")
    for key, minimum in (("rounds", 1), ("block_seconds", 0.1), ("warmup_steps", 1), ("latency", 0)):
        if not getattr(options, key) >= minimum:
            raise UserError(f"bench.{key}={getattr(options, key)}: must be at least {minimum}")
    if not all(bandwidth > 0 for bandwidth in options.bandwidths):
        raise UserError(f"bench.bandwidths={options.bandwidths}: must be numbers above 0")
