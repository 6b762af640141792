"""Answers to what a person asks first: do the runs agree, which is faster, and what did the cheaper ways cost."""

import shlex
from dataclasses import dataclass, field

from common.compare.pair import DIVERGED, LOCKSTEP, OTHER_CURVE, SAME_CURVE, RunPair, explain
from common.compare.runs import Run
from common.compare.speed import Speed, speed
from common.compare.verdict import Comparison
from common.report.formats import format_number
from common.report.staleness import difference

COARSE = ("bfloat16", "float32", "float64")  # the coarsest first


@dataclass(frozen=True)
class Answer:
    """A question, the answer in a few words, and a line for each run that it is about. tone: good, bad or other."""

    question: str
    short: str
    tone: str
    lines: list[str] = field(default_factory=list)


def answers(comparison: Comparison) -> list[Answer]:
    """The three answers; none where there is nothing to compare."""
    if not comparison.pairs:
        return []
    return [_agreement(comparison), _fastest(comparison), _cost(comparison)]


def with_reference(comparison: Comparison) -> list[tuple[Run, RunPair]]:
    """Every other run, and its pair with the reference."""
    reference = comparison.reference
    found = [pair for pair in comparison.pairs if reference in (pair.a, pair.b)]
    return [(pair.b if pair.a is reference else pair.a, pair) for pair in found]


def diagnoses(comparison: Comparison) -> list[str]:
    """The commands that find out why pairs diverged."""
    return [
        f"python -m common.diagnose {shlex.quote(str(pair.a.path))} {shlex.quote(str(pair.b.path))}"
        for pair in comparison.pairs
        if pair.verdict == DIVERGED
    ]


def _agreement(comparison: Comparison) -> Answer:
    """How far the runs agree with the reference, and until where."""
    pairs = with_reference(comparison)
    lines = [_agrees(run, pair) for run, pair in pairs]
    diverged = [pair.first_step_beyond or 0 for _, pair in pairs if pair.verdict in (DIVERGED, OTHER_CURVE)]
    lines += [f"why: {command}" for command in diagnoses(comparison)[:1]]
    if diverged:
        last = min(diverged) - 1
        return Answer("Do they agree?", f"until step {last:,}" if last > 0 else "at no step", "bad", lines)
    synchronous = [pair for _, pair in pairs if not pair.asynchronous]
    if synchronous and all(pair.verdict == LOCKSTEP for pair in synchronous):
        rest = "" if len(synchronous) == len(pairs) else ", the synchronous ones"
        return Answer("Do they agree?", f"yes, at every step{rest}", "good", lines)
    agreeing = sum(pair.verdict in (LOCKSTEP, SAME_CURVE) for pair in synchronous)
    verdicts = {pair.verdict for pair in synchronous}
    short = "asynchronous" if not synchronous else verdicts.pop() if len(verdicts) == 1 else None
    return Answer("Do they agree?", short or f"{agreeing} of {len(pairs)} with {comparison.reference}", "other", lines)


def _agrees(run: Run, pair: RunPair) -> str:
    if pair.asynchronous:
        return f"{run}: asynchronous, compared after equal examples only"
    if not pair.steps or pair.max_loss_difference is None:
        return f"{run}: {'; '.join(pair.reasons) or 'no loss at common steps'}"
    identical = f"identical at {pair.identical_steps:,} of {pair.steps:,} steps"
    within = f"loss within {format_number(pair.max_loss_difference, '.2g')} (tolerance {pair.tolerance.loss:g})"
    if pair.verdict in (DIVERGED, OTHER_CURVE):
        return explain(pair)
    return f"{run}: {within}, {identical}" + (f"; {pair.verdict}" if pair.verdict != LOCKSTEP else "")


def _fastest(comparison: Comparison) -> Answer:
    """The fastest run against the reference, or where that is the fastest, against the next one."""
    question = "Which is faster?"
    speeds = [(run, found) for run in comparison.runs if (found := speed(run))]
    speeds.sort(key=lambda each: -each[1].median)
    lines = [
        f"{run}: {found.median:,.0f} examples/s, half of {found.blocks} blocks within "
        f"{found.lower:,.0f} and {found.upper:,.0f}"
        for run, found in speeds
    ]
    if len(speeds) < 2:
        return Answer(question, "unknown", "other", [*lines, "the runs recorded too few steps, or no seconds"])
    best, its = speeds[0]
    other = next(((run, each) for run, each in speeds[1:] if run is comparison.reference), speeds[1])
    if _overlap(its, other[1]):
        return Answer(question, "no clear difference", "other", lines)
    low, high = its.lower / other[1].upper, its.upper / other[1].lower
    spread = f"{best} against {other[0]}: {low:.2f} to {high:.2f} times by the quartiles"
    return Answer(question, f"{best}, {its.median / other[1].median:.2f} times", "good", [spread, *lines])


def _overlap(a: Speed, b: Speed) -> bool:
    return a.lower <= b.upper and b.lower <= a.upper


def _cost(comparison: Comparison) -> Answer:
    """What asynchronous runs and those of low precision lost in accuracy, against the reference or a finer run."""
    question = "What did asynchrony or low precision cost?"
    known = [run for run in comparison.runs if not run.external]
    exact = [run for run in known if not run.asynchronous]
    finest = max((_fineness(run) for run in exact), default=0)
    bases = [run for run in exact if _fineness(run) == finest]
    base = comparison.reference if comparison.reference in bases else next(iter(bases), None)
    cheap = [run for run in known if run is not base and (run.asynchronous or _fineness(run) < finest)]
    if not cheap:
        return Answer(
            question, "nothing to pay", "good", [f"every run is synchronous, in {comparison.runs[0].precision}"]
        )
    if base is None:
        return Answer(question, "unknown", "other", ["no synchronous run to compare with"])
    lines, points, losses = [], [], []
    for run in cheap:
        found = difference(run, base)
        why = " and ".join(filter(None, ("asynchronous" if run.asynchronous else "", _coarser(run, base))))
        if found.evaluation_loss is None:
            lines.append(f"{run} ({why}): no evaluation after the same number of examples as {base}")
            continue
        losses.append(found.evaluation_loss)
        accuracy = "" if found.accuracy is None else f"accuracy {_points(found.accuracy)}, "
        points += [] if found.accuracy is None else [found.accuracy]
        lines.append(f"{run} ({why}): {accuracy}validation loss {found.evaluation_loss:+.4f} against {base}")
    if points:
        return Answer(question, f"accuracy {_points(min(points))}", "good" if min(points) >= 0 else "bad", lines)
    if losses:
        return Answer(question, f"validation loss {max(losses):+.4f}", "other", lines)
    return Answer(question, "unknown", "other", lines)


def _fineness(run: Run) -> int:
    return COARSE.index(run.precision) if run.precision in COARSE else -1


def _coarser(run: Run, base: Run) -> str:
    return run.precision if _fineness(run) < _fineness(base) else ""


def _points(share: float) -> str:
    return "±0 points" if share == 0 else f"{100 * share:+.2f} points"
