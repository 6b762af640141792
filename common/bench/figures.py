"""The figures of a benchmark: rates of every block, ratios within each round, medians and quartiles over the rounds.

In a round, every contestant runs for one block of time. The reference is the contestant that others are compared with.
"""

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path

from common.bench.contestant import Contestant
from common.bench.metrics_rows import compute_rate
from common.bench.options import LINK_SCRIPT, BenchOptions
from common.bench.plan import MATRICES, PlannedContestant
from common.bench.result import BenchResult, ContestantResult, SpreadRow
from common.config.validate import count_gpus
from common.hardware import describe_hardware
from common.profile.lanes import Lane, build_step_lanes
from common.profile.trace import read_trace, split_step_time
from common.records.summary import read_final_summary
from common.run.directory import make_profile_path
from common.versions import find_versions

PACKAGES = ("lockstep", "torch", "transformers", "accelerate", "tensorflow", "keras", "keras-hub", "numpy")


@dataclass(frozen=True)
class Spread:
    """The median and the quartiles of a figure over the rounds."""

    median: float
    lower: float
    upper: float

    @classmethod
    def of(cls, values: Sequence[float]) -> "Spread":
        """Return the spread of a figure, given its value in each round."""
        if len(values) == 1:
            return cls(values[0], values[0], values[0])
        lower, median, upper = statistics.quantiles(values, n=4, method="inclusive")
        return cls(median, lower, upper)

    def as_row(self) -> SpreadRow:
        """Return the spread as it is written to bench.json."""
        return {"median": self.median, "lower": self.lower, "upper": self.upper}


@dataclass
class MeasuredContestant:
    """A contestant that has taken its turns.

    Attributes:
        rates: for each counter, such as "examples", its rate per second in each round.
    """

    planned: PlannedContestant
    contestant: Contestant

    def __post_init__(self) -> None:
        counters = {MATRICES: ("flops",), LINK_SCRIPT: ()}.get(
            self.planned.definition.script or "", ("examples", "tokens")
        )
        self.rates = {name: [compute_rate(block, name) for block in self.contestant.blocks] for name in counters}

    @property
    def name(self) -> str:
        """Return the name that the options give the contestant."""
        return self.contestant.name


def build_result(
    options: BenchOptions, overrides: Sequence[str], measured: Sequence[MeasuredContestant]
) -> BenchResult:
    """Return the content of bench.json, without the prediction."""
    by_name = {contestant.name: contestant for contestant in measured}
    training = [contestant for contestant in measured if contestant.planned.is_training]
    matrices = {
        contestant.planned.config.train.precision: contestant for contestant in measured if "flops" in contestant.rates
    }
    return {
        "format": 1,
        "title": options.title,
        "date": datetime.now().astimezone().isoformat(timespec="seconds"),
        "hardware": describe_hardware(),
        "versions": find_versions(PACKAGES),
        "overrides": list(overrides),
        "settings": {
            "rounds": options.rounds,
            "block_seconds": options.block_seconds,
            "warmup_steps": options.warmup_steps,
            "reference": options.reference,
        },
        "matrix_flops_per_second": {
            precision: {**Spread.of(matrix.rates["flops"]).as_row(), "rounds": matrix.rates["flops"]}
            for precision, matrix in matrices.items()
        },
        "contestants": [
            _build_contestant_result(contestant, by_name[options.reference], training, matrices)
            for contestant in training
        ],
        "prediction": None,
    }


def _build_contestant_result(
    measured: MeasuredContestant,
    reference: MeasuredContestant,
    training: Sequence[MeasuredContestant],
    matrices: dict[str, MeasuredContestant],
) -> ContestantResult:
    """Return the figures of a contestant. matrices: the measured scripts that multiply matrices, by precision."""
    planned, config = measured.planned, measured.planned.config
    examples = measured.rates["examples"]
    one_replica = next((other for other in training if _is_single_replica_of(other.planned, planned)), None)
    time_split, timeline = _read_profile(measured)
    result: ContestantResult = {
        "name": measured.name,
        "framework": planned.definition.framework,
        "script": planned.definition.script,
        "strategy": config.strategy.kind,
        "replicas": config.strategy.world_size,
        "precision": config.train.precision,
        "matmul_precision": config.train.resolved_matmul_precision,
        "overrides": planned.definition.overrides,
        "examples_per_second": statistics.median(examples),
        "tokens_per_second": statistics.median(measured.rates["tokens"]),
        "ratio": _compute_spread(lambda a, b: a / b, examples, reference.rates["examples"]).as_row(),
        "scaling_efficiency": _compute_efficiency(measured, one_replica).as_row() if one_replica else None,
        "utilisation": None,
        "peak_memory_bytes": measured.contestant.peak_memory,
        "start_up_seconds": measured.contestant.start_up,
        "rounds": measured.rates,
        "time_split": time_split,
        "timeline": timeline,
    }
    _add_compilations(result, measured.contestant.directory)
    flops, matrix = planned.useful_flops, matrices.get(config.train.resolved_matmul_precision)
    if flops is not None and matrix is not None and planned.definition.cores is None:  # the matrices use all cores
        result["useful_flops_per_example"] = flops
        result["utilisation"] = _compute_spread(lambda a, b: a * flops / b, examples, matrix.rates["flops"]).as_row()
    return result


def _is_single_replica_of(planned: PlannedContestant, other: PlannedContestant) -> bool:
    """Check whether a contestant does with one replica what another does with several."""
    config, other_config = planned.config, other.config
    with_one_replica = replace(other_config, strategy=replace(other_config.strategy, replicas=1))
    programs = [(contestant.definition.framework, contestant.definition.script) for contestant in (planned, other)]
    return (
        with_one_replica == config
        and config.strategy.world_size == 1 < other_config.strategy.world_size
        and programs[0] == programs[1]
    )


def _compute_efficiency(measured: MeasuredContestant, one_replica: MeasuredContestant) -> Spread:
    """Return the speed divided by the speed of one replica and by the number of GPUs.

    Without GPUs there is no second division, because one replica already uses all cores.
    """
    config = measured.planned.config
    devices = config.strategy.world_size if count_gpus(config.train.device) else 1
    return _compute_spread(lambda a, b: a / b / devices, measured.rates["examples"], one_replica.rates["examples"])


def _add_compilations(result: ContestantResult, run_dir: Path) -> None:
    """Add the number and the time of compilations, if a summary in this directory has them."""
    summary = read_final_summary(run_dir)
    if summary is None:
        return
    if "compilations" in summary:
        result["compilations"] = summary["compilations"]
    if "compile_seconds" in summary:
        result["compile_seconds"] = summary["compile_seconds"]


def _read_profile(measured: MeasuredContestant) -> tuple[dict[str, float] | None, dict[str, Lane] | None]:
    """Return the shares of the phases and the last step from the profile that a run of Lockstep made in its warm-up."""
    path, framework = make_profile_path(measured.contestant.directory, 0), measured.planned.definition.framework
    events = read_trace(path) if path.exists() else []
    return split_step_time(events, framework) if events else None, build_step_lanes(events, framework)


def _compute_spread(figure: Callable[..., float], *rates: Sequence[float]) -> Spread:
    """Return the spread over the rounds of a figure that is computed from one or more rates in the same round."""
    return Spread.of([figure(*round_rates) for round_rates in zip(*rates, strict=True)])
