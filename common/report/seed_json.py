"""The part of report.json on groups of seeds."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, TypedDict

if TYPE_CHECKING:  # these need SciPy, which starts slowly
    from common.compare.group_comparison import GroupComparison
    from common.compare.seed_groups import SeedGroup
    from common.statistics.judge import MetricResult


class JsonSeedGroup(TypedDict):
    """A group of runs that differ only in their seed."""

    label: str
    runs: list[str]  # labels
    seeds: list[int] | None  # None for runs of other programs


class JsonSeedMetric(TypedDict):
    """Comparison of a metric: contestant minus reference. None stands for unknown, for example if a run diverged."""

    verdict: str  # "equivalent", "different" or "undecided"
    reference: list[float]  # value of each seed of the reference; report.json has null if it is not finite
    contestant: list[float]  # value of each seed of the contestant, in the same form
    mean_difference: float | None
    t_interval: list[float] | None  # 95 %
    bootstrap_interval: list[float] | None  # 95 %, from resampled differences
    margin: float
    p_different: float | None  # corrected for all tests
    p_equivalent: float | None
    smallest_shift: float | None  # smallest shift that these seeds show with a probability of 80 %
    seeds_needed: int | None  # number of seeds for a verdict; None if there is one, or if more than 1,000 are needed


class JsonTimeToLoss(TypedDict):
    """Examples, steps or epochs until the training loss has fallen to `loss`."""

    loss: float
    unit: str
    reference: list[float]  # value of each seed of the reference
    contestant: list[float]  # value of each seed of the contestant
    mean_difference: float
    t_interval: list[float]


class JsonSeedComparison(TypedDict):
    """Comparison of a group of seeds with the reference group."""

    reference: JsonSeedGroup
    contestant: JsonSeedGroup
    verdict: str
    sentence: str  # the verdict with an explanation
    metrics: dict[str, JsonSeedMetric]
    residuals_p: float | None  # p-value of the test for one-sided residuals of the curve, corrected for all tests
    residuals_above: float | None  # share of the points at which the contestant is above the reference
    time_to_loss: JsonTimeToLoss | None
    notes: list[str]


def convert_group_comparisons(groups: "Sequence[GroupComparison]") -> list[JsonSeedComparison]:
    """Return the field `seed_comparisons`."""
    return [_convert(group) for group in groups]


def _convert(group: "GroupComparison") -> JsonSeedComparison:
    residuals, time = group.judgement.residuals, group.time_to_loss
    return {
        "reference": _convert_group(group.reference),
        "contestant": _convert_group(group.contestant),
        "verdict": group.verdict,
        "sentence": group.sentence,
        "metrics": {name: _convert_metric(result) for name, result in group.judgement.metrics.items()},
        "residuals_p": None if residuals is None else residuals.p_value,
        "residuals_above": None if residuals is None else residuals.share_above,
        "time_to_loss": None
        if time is None
        else {
            "loss": time.loss,
            "unit": time.unit,
            "reference": time.reference.tolist(),
            "contestant": time.contestant.tolist(),
            "mean_difference": time.shift.mean,
            "t_interval": [*time.shift.t_interval],
        },
        "notes": group.notes,
    }


def _convert_group(group: "SeedGroup") -> JsonSeedGroup:
    return {"label": group.label, "runs": [run.label for run in group.runs], "seeds": group.seeds}


def _convert_metric(result: "MetricResult") -> JsonSeedMetric:
    shift = result.shift
    return {
        "verdict": result.verdict,
        "reference": result.values.reference.tolist(),
        "contestant": result.values.contestant.tolist(),
        "mean_difference": None if shift is None else shift.mean,
        "t_interval": None if shift is None else [*shift.t_interval],
        "bootstrap_interval": None if shift is None else [*shift.bootstrap_interval],
        "margin": result.margin,
        "p_different": result.p_different,
        "p_equivalent": result.p_equivalent,
        "smallest_shift": result.smallest_shift,
        "seeds_needed": result.seeds_needed,
    }
