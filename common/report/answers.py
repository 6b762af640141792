"""Answers to the first questions of a reader: agreement, speed, and the cost of asynchrony or low precision.

The reference is the run that a report compares all other runs with. An asynchronous run applies the updates of its
workers as they arrive, so it is compared with others only after equal numbers of examples.
"""

from dataclasses import dataclass, field

from common.compare.explain import explain_verdict, suggest_next_step
from common.compare.measures import Speed, compare_with_reference, measure_speed
from common.compare.metric_names import describe_metric_name
from common.compare.pair import DIVERGED, LOCKSTEP, OTHER_CURVE, SAME_CURVE, RunPair
from common.compare.runs import Run
from common.compare.verdict import Comparison
from common.report.formats import format_number
from common.statistics.verdicts import DIFFERENT, EQUIVALENT

PRECISIONS = ("bfloat16", "float32", "float64")  # the coarsest first
NORMALITY = "Is the difference normal?"
AGREEMENT, SPEED, COST = "Do they agree?", "Which is faster?", "What did asynchrony or low precision cost?"


@dataclass(frozen=True)
class Answer:
    """Answer to a question."""

    question: str
    short: str  # the answer in a few words
    tone: str  # "good", "bad" or "other", which decides the colour
    lines: list[str] = field(default_factory=list)  # details, mostly one for each run


def answer_questions(comparison: Comparison) -> list[Answer]:
    """Return the three answers, or two for groups of seeds; none if there is only one run."""
    if not comparison.pairs:
        return []
    if comparison.group_comparisons:
        return [_answer_normality(comparison), _answer_speed(comparison)]
    return [_answer_agreement(comparison), _answer_speed(comparison), _answer_cost(comparison)]


def list_reference_pairs(comparison: Comparison) -> list[tuple[Run, RunPair]]:
    """Return every run except the reference, with its pair with the reference."""
    reference = comparison.reference
    pairs = [pair for pair in comparison.pairs if reference in (pair.a, pair.b)]
    return [(pair.b if pair.a is reference else pair.a, pair) for pair in pairs]


def list_next_steps(comparison: Comparison) -> list[str]:
    """Return next steps, mostly commands, to find out why pairs differ. For groups of seeds, only if they differ."""
    if comparison.group_comparisons and comparison.verdict != DIFFERENT:
        return []
    return [next_step for pair in comparison.pairs if (next_step := suggest_next_step(pair))]


def _answer_normality(comparison: Comparison) -> Answer:
    """Answer whether the groups of seeds differ by more than chance and their margins explain."""
    tones = {EQUIVALENT: "good", DIFFERENT: "bad"}
    groups = comparison.group_comparisons
    if len(groups) == 1:  # the sentence of the group already heads the report
        lines = [f"{describe_metric_name(name)}: {m.verdict}" for name, m in groups[0].judgement.metrics.items()]
    else:
        lines = [f"{group.verdict}: {group.sentence}" for group in groups]
    lines += [f"why: {next_step}" for next_step in list_next_steps(comparison)[:1]]
    return Answer(NORMALITY, comparison.verdict, tones.get(comparison.verdict, "other"), lines)


def _answer_agreement(comparison: Comparison) -> Answer:
    """Answer until which step the runs agree with the reference, and how closely."""
    pairs = list_reference_pairs(comparison)
    lines = [_describe_agreement(run, pair) for run, pair in pairs]
    lines += [f"why: {next_step}" for next_step in list_next_steps(comparison)[:1]]
    diverged_at = [pair.first_step_beyond or 0 for _, pair in pairs if pair.verdict in (DIVERGED, OTHER_CURVE)]
    if diverged_at:
        last = min(diverged_at) - 1
        return Answer(AGREEMENT, f"until step {last:,}" if last > 0 else "at no step", "bad", lines)
    synchronous = [pair for _, pair in pairs if not pair.asynchronous]
    if synchronous and all(pair.verdict == LOCKSTEP for pair in synchronous):
        restriction = "" if len(synchronous) == len(pairs) else ", the synchronous ones"
        return Answer(AGREEMENT, f"yes, at every step{restriction}", "good", lines)
    verdicts = {pair.verdict for pair in synchronous}
    if not synchronous:
        short = "asynchronous"
    elif len(verdicts) == 1:
        short = verdicts.pop()
    else:
        agreeing = sum(pair.verdict in (LOCKSTEP, SAME_CURVE) for pair in synchronous)
        short = f"{agreeing} of {len(pairs)} with {comparison.reference}"
    return Answer(AGREEMENT, short, "other", lines)


def _describe_agreement(run: Run, pair: RunPair) -> str:
    if pair.asynchronous:
        return f"{run}: asynchronous, compared after equal examples only"
    if not pair.steps or pair.max_loss_difference is None:
        return f"{run}: {'; '.join(pair.reasons) or 'no loss at common steps'}"
    if pair.verdict in (DIVERGED, OTHER_CURVE):
        return explain_verdict(pair)
    identical = f"identical at {pair.identical_steps:,} of {pair.steps:,} steps"
    within = f"loss within {format_number(pair.max_loss_difference, '.2g')} (tolerance {pair.tolerance.loss:g})"
    return f"{run}: {within}, {identical}" + (f"; {pair.verdict}" if pair.verdict != LOCKSTEP else "")


def _answer_speed(comparison: Comparison) -> Answer:
    """Compare the fastest run with the reference, or with the second fastest if it is the reference itself."""
    speeds = [(run, speed) for run in comparison.runs if (speed := measure_speed(run))]
    speeds.sort(key=lambda measured: -measured[1].median)
    lines = [
        f"{run}: {speed.median:,.0f} examples/s, half of {speed.blocks} blocks within "
        f"{speed.lower:,.0f} and {speed.upper:,.0f}"
        for run, speed in speeds
    ]
    if len(speeds) < 2:
        return Answer(SPEED, "unknown", "other", [*lines, "the runs recorded too few steps, or no seconds"])
    (fastest, speed), *slower = speeds
    other, other_speed = next((measured for measured in slower if measured[0] is comparison.reference), slower[0])
    if _has_common_range(speed, other_speed):
        return Answer(SPEED, "no clear difference", "other", lines)
    low, high = speed.lower / other_speed.upper, speed.upper / other_speed.lower
    spread = f"{fastest} against {other}: {low:.2f} to {high:.2f} times by the quartiles"
    return Answer(SPEED, f"{fastest}, {speed.median / other_speed.median:.2f} times", "good", [spread, *lines])


def _has_common_range(a: Speed, b: Speed) -> bool:
    """Check whether the ranges between the quartiles of two speeds overlap."""
    return a.lower <= b.upper and b.lower <= a.upper


def _answer_cost(comparison: Comparison) -> Answer:
    """Answer what asynchronous and low-precision runs lost in accuracy against a synchronous run of high precision."""
    runs = [run for run in comparison.runs if not run.external_kind]
    base, costly = _choose_base(runs, comparison.reference)
    if not runs:
        return Answer(COST, "unknown", "other", ["the precision of records and of runs of other programs is unknown"])
    if not costly:
        line = f"every run is synchronous, in {runs[0].precision}"
        return Answer(COST, "nothing to pay", "good", [line])
    if base is None:
        return Answer(COST, "unknown", "other", ["no synchronous run to compare with"])
    lines, accuracies, losses = [], [], []
    for run in costly:
        difference = compare_with_reference(run, base)
        coarser = run.precision if _rank_precision(run) < _rank_precision(base) else ""
        cause = " and ".join(filter(None, ("asynchronous" if run.is_asynchronous else "", coarser)))
        if difference.evaluation_loss is None:
            lines.append(f"{run} ({cause}): no evaluation after the same number of examples as {base}")
            continue
        losses.append(difference.evaluation_loss)
        accuracy = ""
        if difference.accuracy is not None:
            accuracies.append(difference.accuracy)
            accuracy = f"accuracy {_format_points(difference.accuracy)}, "
        lines.append(f"{run} ({cause}): {accuracy}validation loss {difference.evaluation_loss:+.4f} against {base}")
    if accuracies:
        worst = min(accuracies)
        return Answer(COST, f"accuracy {_format_points(worst)}", "good" if worst >= 0 else "bad", lines)
    if losses:
        return Answer(COST, f"validation loss {max(losses):+.4f}", "other", lines)
    return Answer(COST, "unknown", "other", lines)


def _choose_base(runs: list[Run], reference: Run) -> tuple[Run | None, list[Run]]:
    """Choose the runs between which the cost is measured.

    Returns:
        The base and the costly runs. The base is a synchronous run of the highest precision, if possible the reference;
        None if no run is synchronous. Costly runs are asynchronous, or have a lower precision than the base.
    """
    synchronous = [run for run in runs if not run.is_asynchronous]
    finest = max((_rank_precision(run) for run in synchronous), default=0)
    bases = [run for run in synchronous if _rank_precision(run) == finest]
    base = reference if reference in bases else next(iter(bases), None)
    costly = [run for run in runs if run is not base and (run.is_asynchronous or _rank_precision(run) < finest)]
    return base, costly


def _rank_precision(run: Run) -> int:
    """Return a larger number for a higher precision; -1 for an unknown precision."""
    return PRECISIONS.index(run.precision) if run.precision in PRECISIONS else -1


def _format_points(share: float) -> str:
    """Format a difference of two shares in percentage points."""
    return "±0 points" if share == 0 else f"{100 * share:+.2f} points"
