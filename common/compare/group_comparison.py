"""Comparison of a group of seeds with the reference group, in numbers and as sentences."""

from dataclasses import dataclass, field, replace

from common.compare.group_checks import list_notes
from common.compare.group_values import (
    TimeToLoss,
    choose_axis,
    collect_curves,
    collect_metrics,
    measure_time_to_loss,
)
from common.compare.margins import Margins
from common.compare.metric_names import describe_metric_name
from common.compare.seed_groups import SeedGroup
from common.statistics.judge import Judgement, Values, choose_margin, judge
from common.statistics.power import MAX_PAIRS
from common.statistics.verdicts import CURVE, DIFFERENT, EQUIVALENT, UNDECIDED


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
    progress = choose_axis(reference, contestant)
    curves = collect_curves(reference, progress), collect_curves(contestant, progress)
    metrics, notes = collect_metrics(reference, contestant, curves)
    all_values = {CURVE: Values(*(curve.mean(axis=1) for curve in curves)), **metrics}
    judgement = judge(
        metrics, curves, {name: _choose_margin(margins, name, values) for name, values in all_values.items()}
    )
    if progress.cut:
        notes.append(progress.cut)
        if judgement.verdict == EQUIVALENT:  # nothing is known of what the longer runs did later
            judgement = replace(judgement, verdict=UNDECIDED)
    notes += list_notes(reference, contestant)
    sentence = _describe(reference, contestant, judgement, progress.cut)
    return GroupComparison(reference, contestant, judgement, sentence, measure_time_to_loss(curves, progress), notes)


def _choose_margin(margins: Margins, name: str, values: Values) -> float:
    margin = margins.get(name)
    return choose_margin(values, margin.number) if margin.in_deviations else margin.number


def _describe(reference: SeedGroup, contestant: SeedGroup, judgement: Judgement, cut: str) -> str:
    """Explain a verdict in a sentence, without the verdict itself. cut: a sentence about longer runs; may be empty."""
    metrics = judgement.metrics
    decisive = {name: result for name, result in metrics.items() if result.verdict == judgement.verdict}
    groups = f"{contestant} and {reference} over {len(reference.runs)} seeds"
    if judgement.verdict == DIFFERENT:
        name = min(decisive, key=lambda name: 0 if decisive[name].not_finite else decisive[name].p_different or 0)
        further = [describe_metric_name(metric) for metric in decisive if metric != name]
        sentence = f"{groups}: {_describe_difference(reference, contestant, name, judgement)}"
        return sentence + (f"; also different: {', '.join(further)}" if further else "")
    if judgement.verdict == EQUIVALENT:
        shifted = [describe_metric_name(name) for name, result in metrics.items() if result.has_shift]
        sentence = f"{groups}: the shift of each of {len(metrics)} metrics is below its margin"
        if shifted or (judgement.residuals is not None and judgement.residuals.are_shown_one_sided):
            return f"{sentence}; a shift is real, but smaller, in {', '.join(shifted or ['the curve'])}"
        return sentence
    if not decisive:
        return f"{groups}: the shift of each of {len(metrics)} metrics is below its margin, but {cut}"
    name = max(decisive, key=lambda name: decisive[name].seeds_needed or MAX_PAIRS + 1)
    result = decisive[name]
    if result.shift is None:
        return f"{groups}: both runs of a seed have no finite {describe_metric_name(name)}"
    low, high = result.shift.t_interval
    needed = f"about {result.seeds_needed} seeds" if result.seeds_needed else f"more than {MAX_PAIRS:,} seeds"
    shift = f"{describe_metric_name(name)} shifts by {low:+.2g} to {high:+.2g} (margin {result.margin:.2g})"
    return f"{groups}: {shift}; {cut or f'{needed} would settle it'}"


def _describe_difference(reference: SeedGroup, contestant: SeedGroup, name: str, judgement: Judgement) -> str:
    result, residuals = judgement.metrics[name], judgement.residuals
    if result.shift is None:
        seeds = ", ".join(map(reference.name_run, result.not_finite))
        return f"{describe_metric_name(name)} is not finite in one run of {seeds}"
    if name == CURVE and not result.has_shift and residuals is not None:
        share, direction = residuals.share_above, "above"
        if share < 0.5:
            share, direction = 1 - share, "below"
        points = f"at {100 * share:.0f} % of the points of the curves (p {residuals.p_value:.2g})"
        return f"{contestant} is {direction} {reference} {points}"
    low, high = result.shift.t_interval
    direction = "higher" if result.shift.mean > 0 else "lower"
    return (
        f"{describe_metric_name(name)} of {contestant} is {abs(result.shift.mean):.2g} {direction} "
        f"(95 % interval {low:+.2g} to {high:+.2g}; margin {result.margin:.2g})"
    )
