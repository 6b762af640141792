"""What a benchmark says of each contestant: rates of every block, ratios within each round, medians and quartiles."""

import json
import statistics
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any

from common import hardware
from common.bench.plan import MATRICES, Planned
from common.bench.rows import per_second
from common.bench.settings import LINK, Settings
from common.bench.turns import Contestant
from common.profile.lanes import step_lanes
from common.profile.trace import read_trace, split_step_time
from common.run.directory import make_profile_path
from common.run.summary import find_versions

PACKAGES = ("lockstep", "torch", "transformers", "accelerate", "tensorflow", "keras", "keras-hub", "numpy")


@dataclass(frozen=True)
class Spread:
    """The median and the quartiles of a figure over the rounds."""

    median: float
    lower: float
    upper: float

    @classmethod
    def of(cls, values: Sequence[float]) -> "Spread":
        """Of a figure's values in each round."""
        if len(values) == 1:
            return cls(values[0], values[0], values[0])
        lower, median, upper = statistics.quantiles(values, n=4, method="inclusive")
        return cls(median, lower, upper)


@dataclass
class Measured:
    """A contestant's figures. rates: by counter, one for each round and second."""

    planned: Planned
    contestant: Contestant

    def __post_init__(self) -> None:
        units = {MATRICES: ("flops",), LINK: ()}.get(self.planned.definition.script or "", ("examples", "tokens"))
        self.rates = {unit: [per_second(block, unit) for block in self.contestant.blocks] for unit in units}

    @property
    def name(self) -> str:
        """As in the settings."""
        return self.contestant.name

    def ratio(self, other: "Measured") -> Spread:
        """Examples per second as a multiple of another contestant's of the same round."""
        return _spread(lambda a, b: a / b, self.rates["examples"], other.rates["examples"])


def figures(settings: Settings, overrides: Sequence[str], measured: Sequence[Measured]) -> dict[str, Any]:
    """The content of bench.json."""
    named = {each.name: each for each in measured}
    training = [each for each in measured if each.planned.is_training]
    matrices = {each.planned.config.train.precision: each for each in measured if "flops" in each.rates}
    return {
        "format": 1,
        "title": settings.title,
        "date": datetime.now().astimezone().isoformat(timespec="seconds"),
        "hardware": {**hardware.describe_hardware(), "processor": _processor()},
        "versions": find_versions(PACKAGES),
        "overrides": list(overrides),
        "settings": {key: getattr(settings, key) for key in ("rounds", "block_seconds", "warmup_steps", "reference")},
        "matrix_flops_per_second": {
            precision: {**asdict(_spread(float, each.rates["flops"])), "rounds": each.rates["flops"]}
            for precision, each in matrices.items()
        },
        "contestants": [_of_contestant(each, named[settings.reference], training, matrices) for each in training],
    }


def _of_contestant(
    one: Measured, reference: Measured, others: Sequence[Measured], matrices: dict[str, Measured]
) -> dict[str, Any]:
    config = one.planned.config
    single = next((each for each in others if _is_with_one_replica(each.planned, one.planned)), None)
    flops, matrix = one.planned.useful_flops, matrices.get(config.train.product_precision)
    found: dict[str, Any] = {
        "name": one.name,
        "framework": one.planned.definition.framework,
        "script": one.planned.definition.script,
        "strategy": config.strategy.kind,
        "replicas": config.strategy.world_size,
        "precision": config.train.precision,
        "matmul_precision": config.train.product_precision,
        "overrides": one.planned.definition.overrides,
        "examples_per_second": statistics.median(one.rates["examples"]),
        "tokens_per_second": statistics.median(one.rates["tokens"]),
        "ratio": asdict(one.ratio(reference)),
        "scaling_efficiency": asdict(_efficiency(one, single)) if single else None,
        "utilisation": None,
        "peak_memory_bytes": one.contestant.peak_memory,
        "start_up_seconds": one.contestant.start_up,
        "rounds": one.rates,
        **_of_summary(one.contestant.directory),
        **_of_profile(one),
    }
    if flops is not None and matrix is not None and one.planned.definition.cores is None:  # else it has other cores
        used = _spread(lambda a, b: a * flops / b, one.rates["examples"], matrix.rates["flops"])
        found |= {"useful_flops_per_example": flops, "utilisation": asdict(used)}
    return found


def _is_with_one_replica(planned: Planned, other: Planned) -> bool:
    """Whether the first does with one replica what the other does with more."""
    a, b = planned.config, other.config
    same = replace(b, strategy=replace(b.strategy, replicas=1)) == a and a.strategy.world_size == 1
    who = [(each.definition.framework, each.definition.script) for each in (planned, other)]
    return same and who[0] == who[1] and b.strategy.world_size > 1


def _efficiency(one: Measured, single: Measured) -> Spread:
    """Speed over that of one replica and over the number of GPUs. Without GPUs one replica has all cores too."""
    devices = one.planned.config.strategy.world_size if hardware.count_visible_gpus() else 1
    return _spread(lambda a, b: a / b / devices, one.rates["examples"], single.rates["examples"])


def _of_summary(directory: Path) -> dict[str, Any]:
    """What the summary of a run says of compilation."""
    path = directory / "summary.json"
    summary = json.loads(path.read_text()) if path.exists() else {}
    return {key: value for key, value in summary.items() if key.startswith("compil")}


def _of_profile(one: Measured) -> dict[str, Any]:
    """Where the time of a step goes, of the steps that a run of Lockstep's has profiled while it was warmed up."""
    path, framework = make_profile_path(one.contestant.directory, 0), one.planned.definition.framework
    events = read_trace(path) if path.exists() else []
    return {
        "time_split": split_step_time(events, framework) if events else None,
        "timeline": step_lanes(events, framework),
    }


def _spread(figure: Callable[..., float], *rounds: Sequence[float]) -> Spread:
    """Of a figure that is computed from the rates of each round."""
    return Spread.of([figure(*each) for each in zip(*rounds, strict=True)])


def _processor() -> str:
    """Its name, where Linux tells it."""
    path = Path("/proc/cpuinfo")
    lines = path.read_text().splitlines() if path.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else str(hardware.describe_hardware()["processor"])
