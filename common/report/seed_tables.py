"""Tables and drawings of groups of seeds, for the terminal, the page and Markdown."""

from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING

from common.compare.metric_names import describe_metric_name
from common.compare.verdict import Comparison
from common.report.formats import TableSection, format_number
from common.statistics.verdicts import UNDECIDED

if TYPE_CHECKING:  # these need SciPy, which starts slowly
    from common.compare.group_comparison import GroupComparison
    from common.statistics.judge import MetricResult

SEED_COLUMNS = ["metric", "verdict", "reference", "difference", "95 % interval", "margin", "seeds needed"]
SEED_COLUMNS += ["smallest shift", "p", "bootstrap"]
SEED_TEXT_COLUMNS = ("metric", "verdict")
MINOR_COLUMNS = ("bootstrap", "p", "reference")  # a narrow terminal leaves these out first
DRAWN_MARGINS = 3.0  # the drawing reaches this number of margins to either side


@dataclass(frozen=True)
class IntervalRow:
    """Interval of the difference of a metric between two groups, in units of its margin, cut at DRAWN_MARGINS.

    The margin is the largest difference that counts as equivalent.
    """

    name: str
    verdict: str
    low: float
    mean: float
    high: float


def build_seed_tables(comparison: Comparison) -> list[TableSection]:
    """Return one table for each group that is compared with the reference group; an empty list without groups."""
    return [_build_table(group) for group in comparison.group_comparisons]


def _build_table(group: "GroupComparison") -> TableSection:
    rows = [_build_cells(name, result) for name, result in group.judgement.metrics.items()]
    title = f"{group.contestant} against {group.reference}, {len(group.reference.runs)} seeds: {group.verdict}"
    return TableSection(title, SEED_COLUMNS, rows, SEED_TEXT_COLUMNS, describe_curve(group), MINOR_COLUMNS)


def _build_cells(name: str, result: "MetricResult") -> list[str]:
    mean = format_number(float(result.values.reference.mean()), ".4g")
    start = [describe_metric_name(name), result.verdict, mean]
    if result.shift is None:  # a value of a seed is not finite
        return [*start, "-", "-", format_number(result.margin, ".2g"), "-", "-", "-", "-"]
    needed = f"{result.seeds_needed:,}" if result.seeds_needed else "> 1,000"  # the largest number that is tried
    t_interval, bootstrap = (
        f"{low:+.2g} to {high:+.2g}" for low, high in (result.shift.t_interval, result.shift.bootstrap_interval)
    )
    return [
        *start,
        format_number(result.shift.mean, "+.2g"),
        t_interval,
        format_number(result.margin, ".2g"),
        needed if result.verdict == UNDECIDED else "-",
        format_number(result.smallest_shift, ".2g"),
        format_number(result.p_different, ".2g"),
        bootstrap,
    ]


def describe_curve(group: "GroupComparison") -> list[str]:
    """Return sentences on the residuals of the curve and on the time to a loss."""
    sentences = []
    if (residuals := group.judgement.residuals) is not None:
        kind = "one-sided" if residuals.are_shown_one_sided else "not shown to be one-sided"
        sentences.append(
            f"Residuals of the curve: {kind} (p {residuals.p_value:.2g}); {group.contestant} is above at "
            f"{residuals.share_above:.0%} of all points of all seeds."
        )
    if (time := group.time_to_loss) is not None:
        medians = [
            f"{median(values):,.0f} ({min(values):,.0f} to {max(values):,.0f})"
            for values in (time.reference.tolist(), time.contestant.tolist())
        ]
        low, high = time.shift.t_interval
        sentences.append(
            f"{time.unit.capitalize()}s until the training loss is {time.loss:g}: median {medians[0]} of "
            f"{group.reference}, {medians[1]} of {group.contestant}; mean difference {time.shift.mean:+,.0f} "
            f"({low:+,.0f} to {high:+,.0f})."
        )
    return sentences


def build_interval_rows(group: "GroupComparison") -> list[IntervalRow]:
    """Return the t intervals of the metrics in units of their margins. Metrics without a margin are left out."""
    rows = []
    for name, result in group.judgement.metrics.items():
        if result.shift is not None and result.margin > 0:
            bounds = (result.shift.t_interval[0], result.shift.mean, result.shift.t_interval[1])
            low, mean, high = (max(-DRAWN_MARGINS, min(DRAWN_MARGINS, bound / result.margin)) for bound in bounds)
            rows.append(IntervalRow(describe_metric_name(name), result.verdict, low, mean, high))
    return rows
