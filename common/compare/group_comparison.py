"""Comparison of a group of seeds with the reference group, in numbers and in words."""

from dataclasses import dataclass, field

from common.compare.group_values import (
    TimeToLoss,
    collect_curves,
    collect_metrics,
    measure_progress,
    measure_time_to_loss,
)
from common.compare.margins import Margins
from common.compare.metric_names import describe_metric_name
from common.compare.seed_groups import SeedGroup, find_divergence
from common.statistics.judge import Judgement, MetricResult, Values, choose_margin, judge
from common.statistics.power import MAX_PAIRS
from common.statistics.verdicts import CURVE, DIFFERENT, EQUIVALENT


@dataclass(frozen=True, eq=False)
class GroupComparison:
    """Comparison of a group of seeds with the reference group."""

    reference: SeedGroup
    contestant: SeedGroup
    judgement: Judgement
    sentence: str  # the verdict, explained
    time_to_loss: TimeToLoss | None
    notes: list[str] = field(default_factory=list)

    @property
    def verdict(self) -> str:
        """The verdict: "equivalent", "different" or "undecided"."""
        return self.judgement.verdict


def compare_groups(reference: SeedGroup, contestant: SeedGroup, margins: Margins) -> GroupComparison:
    """Compare a group with the reference."""
    progress = measure_progress([*reference.runs, *contestant.runs])
    curves = collect_curves(reference, progress), collect_curves(contestant, progress)
    metrics, notes = collect_metrics(reference, contestant, curves)
    all_values = {CURVE: Values(*(curve.mean(axis=1) for curve in curves)), **metrics}
    judgement = judge(
        metrics, curves, {name: _choose_margin(margins, name, values) for name, values in all_values.items()}
    )
    if reference.seeds is None or contestant.seeds is None:
        first = f"{reference.runs[0].path} with {contestant.runs[0].path}"
        notes.append(f"the seeds are unknown, so runs are paired in the order of their names: {first} first")
    weights = [[run.get_fingerprint("initial_weights") for run in group.runs] for group in (reference, contestant)]
    if None not in weights[0] + weights[1] and weights[0] != weights[1]:
        notes.append("the runs of a pair have different initial weights, so more seeds are needed than if they had not")
    for group in (reference, contestant):
        for position, run in enumerate(group.runs):
            if reason := find_divergence(run):
                notes.append(f"{group.name_seed(position)} of {group} diverged: {reason}")
    sentence = _describe(reference, contestant, judgement)
    return GroupComparison(reference, contestant, judgement, sentence, measure_time_to_loss(curves, progress), notes)


def _choose_margin(margins: Margins, name: str, values: Values) -> float:
    margin = margins.by_metric.get(name, margins.default)
    return choose_margin(values, margin.number) if margin.in_deviations else margin.number


def _describe(reference: SeedGroup, contestant: SeedGroup, judgement: Judgement) -> str:
    """Explain a verdict in a sentence, without the verdict itself."""
    metrics = judgement.metrics
    decisive = {name: result for name, result in metrics.items() if result.verdict == judgement.verdict}
    count = f"{contestant} and {reference} over {len(reference.runs)} seeds"
    if judgement.verdict == DIFFERENT:
        name = min(decisive, key=lambda name: 0 if decisive[name].not_finite else decisive[name].p_different or 0)
        others = [describe_metric_name(other) for other in decisive if other != name]
        sentence = f"{count}: {_describe_difference(reference, contestant, name, decisive[name])}"
        return sentence + (f"; also different: {', '.join(others)}" if others else "")
    if judgement.verdict == EQUIVALENT:
        shifted = [describe_metric_name(name) for name, result in metrics.items() if result.has_shift]
        sentence = f"{count}: the shift of each of {len(metrics)} metrics is below its margin"
        if shifted or (judgement.residuals is not None and judgement.residuals.are_shown):
            return f"{sentence}; a shift is real, but smaller, in {', '.join(shifted or ['the curve'])}"
        return sentence
    name = max(decisive, key=lambda name: decisive[name].seeds_needed or MAX_PAIRS + 1)
    result = decisive[name]
    if result.shift is None:
        return f"{count}: both runs of a seed have no finite {describe_metric_name(name)}"
    low, high = result.shift.t_interval
    needed = f"about {result.seeds_needed} seeds" if result.seeds_needed else f"more than {MAX_PAIRS:,} seeds"
    return (
        f"{count}: {describe_metric_name(name)} shifts by {low:+.2g} to {high:+.2g} (margin {result.margin:.2g}); "
        f"{needed} would settle it"
    )


def _describe_difference(reference: SeedGroup, contestant: SeedGroup, name: str, result: MetricResult) -> str:
    if result.shift is None:
        seeds = ", ".join(map(reference.name_seed, result.not_finite))
        return f"{describe_metric_name(name)} is not finite in one run of {seeds}"
    low, high = result.shift.t_interval
    direction = "higher" if result.shift.mean > 0 else "lower"
    return (
        f"{describe_metric_name(name)} of {contestant} is {abs(result.shift.mean):.2g} {direction} "
        f"(95 % interval {low:+.2g} to {high:+.2g}; margin {result.margin:.2g})"
    )
