"""Verdict on all runs: which are in lockstep, which diverge, and which are different experiments."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING

from common.compare.bins import choose_bins
from common.compare.explain import explain_verdict
from common.compare.labels import make_labels_unique
from common.compare.pair import (
    DIVERGED,
    LOCKSTEP,
    NOT_COMPARABLE,
    OTHER_CURVE,
    SAME_CURVE,
    RunPair,
    Tolerance,
    compare_pair,
)
from common.compare.runs import Run, load_run
from common.errors import UserError
from common.statistics.verdicts import EQUIVALENT

if TYPE_CHECKING:  # it needs SciPy, which starts slowly
    from common.compare.group_comparison import GroupComparison

ONLY_ONE_RUN = "only one run"
INCOMPLETE = "incomplete"
WORST_FIRST = (DIVERGED, OTHER_CURVE, NOT_COMPARABLE, SAME_CURVE, LOCKSTEP)


@dataclass(frozen=True, eq=False)
class Comparison:
    """Comparison of every pair of runs, with one verdict: the worst of the verdicts on the synchronous pairs.

    From the worst to the best: "diverged", "different curve, experiment unknown", "not comparable", "same curve,
    experiment unknown", "lockstep". The experiment of an external run is unknown.
    """

    runs: list[Run]
    reference: Run  # the run that tables and charts compare the others with
    tolerances: Mapping[str, Tolerance]  # largest differences that count as equal, by precision
    pairs: list[RunPair]
    verdict: str
    sentence: str  # the verdict with an explanation
    notes: list[str] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)  # why other runs cannot be read
    # Comparisons of groups of seeds with the reference group; empty if single runs are compared.
    group_comparisons: "list[GroupComparison]" = field(default_factory=list)

    @property
    def headline(self) -> str:
        """The first word of the sentence: the verdict, or "incomplete" if a run was left out."""
        return INCOMPLETE if self.left_out else self.verdict

    @property
    def is_in_lockstep(self) -> bool:
        """True if every pair is in lockstep. For a pair with an external run, the same curve is enough.

        False if there is only one run, if a run was left out, or if a run has not ended and may still diverge. A pair
        with an asynchronous run is never in lockstep.
        """
        is_complete = not self.left_out and not any(run.is_running for run in self.runs)
        return bool(self.pairs) and is_complete and all(pair.verdict in (LOCKSTEP, SAME_CURVE) for pair in self.pairs)

    @property
    def passes_check(self) -> bool:
        """True if every pair is in lockstep or, with groups of seeds, every group is equivalent to the reference's."""
        if self.group_comparisons:
            return not self.left_out and all(group.verdict == EQUIVALENT for group in self.group_comparisons)
        return self.is_in_lockstep


def compare_runs(
    run_dirs: Sequence[Path], tolerances: Mapping[str, Tolerance], reference: str | None = None
) -> Comparison:
    """Read run directories and compare them. Raise UserError, also if one of them cannot be read."""
    return compare([load_run(Path(path)) for path in run_dirs], tolerances, reference)


def compare(
    runs: list[Run],
    tolerances: Mapping[str, Tolerance],
    reference: str | None = None,
    left_out: Sequence[str] = (),
    chosen_pairs: Sequence[tuple[Run, Run]] | None = None,
) -> Comparison:
    """Compare every pair of the runs, in their order.

    Args:
        runs: The runs.
        tolerances: A tolerance for each `Run.precision`. The larger one of a pair's two precisions applies.
        reference: Directory or name of the run that tables and charts compare the others with; by default the first
            synchronous one. The verdict does not depend on it.
        left_out: The reasons why other runs could not be read.
        chosen_pairs: The pairs to compare; None for every pair.

    Raises:
        UserError: There is no run, a run is named twice, or a precision has no tolerance.
    """
    _check_runs(runs, tolerances)
    make_labels_unique(runs)
    bins = choose_bins(len(run.steps) for run in runs)
    pairs = [compare_pair(a, b, tolerances, bins) for a, b in chosen_pairs or combinations(runs, 2)]
    verdict, sentence = _judge(runs, pairs)
    if left_out:
        sentence = f"{INCOMPLETE}: {len(left_out)} left out ({left_out[0]}); the others: {sentence}"
    return Comparison(
        runs=runs,
        reference=_find_reference(runs, reference),
        tolerances=tolerances,
        pairs=pairs,
        verdict=verdict,
        sentence=sentence,
        notes=collect_notes(runs, pairs, left_out),
        left_out=list(left_out),
    )


def _check_runs(runs: Sequence[Run], tolerances: Mapping[str, Tolerance]) -> None:
    paths: set[Path] = set()
    for run in runs:
        if run.path.resolve() in paths:
            raise UserError(f"{run.path}: named twice; name each run once")
        paths.add(run.path.resolve())
        if not run.external_kind and run.precision not in tolerances:
            raise UserError(
                f"{run.path}: no tolerance for precision '{run.precision}': add "
                f"+tolerances.{run.precision}.loss=... and +tolerances.{run.precision}.grad_norm=..."
            )
    if not runs:
        raise UserError("no run to compare")


def collect_notes(runs: Sequence[Run], pairs: Sequence[RunPair], left_out: Sequence[str]) -> list[str]:
    """Return the notes on runs and on pairs, and the reasons why other runs were left out."""
    notes = [f"left out: {error}" for error in left_out]
    notes += [note for run in runs for note in run.notes]
    notes += [
        f"{run}: replicas {', '.join(f'{number} from step {step}' for step, number in run.replica_changes)}; "
        "speed, peak memory and traffic belong to the last number"
        for run in runs
        if run.replica_changes
    ]
    notes += [
        f"{run}: trained by {', '.join(f'{name} from step {step}' for step, name in run.trainers)}"
        for run in runs
        if run.trainers
    ]
    notes += [
        f"{run}: another environment from step {step}: {', '.join(changes)}"
        for run in runs
        for step, changes in run.environment_changes
    ]
    notes += [
        f"{run}: status {run.summary['status']}" + (f", {len(run.steps)} steps so far" if run.is_running else "")
        for run in runs
        if run.summary["status"] not in ("completed", "unknown")
    ]
    return notes + [f"{pair.a} and {pair.b}: {note}" for pair in pairs for note in pair.notes]


def _judge(runs: list[Run], pairs: list[RunPair]) -> tuple[str, str]:
    """Return the verdict on all runs, and the sentence that explains it."""
    if not pairs:
        run = runs[0]
        return ONLY_ONE_RUN, f"{ONLY_ONE_RUN}: {run} with {len(run.steps)} steps; name a second one to compare it with"
    synchronous = [run for run in runs if not run.is_asynchronous]
    asynchronous = ", ".join(run.label for run in runs if run.is_asynchronous)
    synchronous_pairs = [pair for pair in pairs if not pair.asynchronous]
    if not synchronous_pairs:
        subject = f"only {synchronous[0]} is synchronous" if synchronous else "no run is synchronous"
        return NOT_COMPARABLE, (
            f"{NOT_COMPARABLE}: {subject}, and lockstep needs two synchronous runs; {asynchronous}: compared after "
            "equal examples"
        )
    is_running = any(run.is_running for run in runs)
    verdict, sentence = _judge_synchronous(len(synchronous), synchronous_pairs, is_running)
    return verdict, sentence + (f"; not among them, because asynchronous: {asynchronous}" if asynchronous else "")


def _judge_synchronous(run_count: int, pairs: list[RunPair], is_running: bool) -> tuple[str, str]:
    """Return the worst verdict of the pairs, and a sentence on the pair with this verdict that diverges first."""
    by_verdict = {verdict: [pair for pair in pairs if pair.verdict == verdict] for verdict in WORST_FIRST}
    worst = next(verdict for verdict, group in by_verdict.items() if group)
    first = min(by_verdict[worst], key=lambda pair: pair.first_step_beyond or 0)
    if worst == LOCKSTEP:
        so_far = " so far" if is_running else ""
        return worst, (
            f"{worst}: {run_count} runs agree at all {min(pair.steps for pair in pairs)} steps{so_far}: "
            f"loss within {max(pair.max_loss_difference or 0 for pair in pairs):.2g} "
            f"(tolerance {first.tolerance.loss:g}), "
            f"grad_norm within {max(pair.max_grad_norm_difference or 0 for pair in pairs):.2g} "
            f"(relative; tolerance {first.tolerance.grad_norm:g})"
        )
    others = "".join(f", {len(group)} {verdict}" for verdict, group in by_verdict.items() if group and verdict != worst)
    counts = f"{len(by_verdict[worst])} of {len(pairs)} pairs{others}; " if len(pairs) > 1 else ""
    return worst, f"{worst}: {counts}{explain_verdict(first)}"


def _find_reference(runs: list[Run], reference: str | None) -> Run:
    if reference is None:
        return next((run for run in runs if not run.is_asynchronous), runs[0])
    for run in runs:
        if reference in (run.path.name, str(run.path)) or Path(reference).resolve() == run.path.resolve():
            return run
    paths = ", ".join(str(run.path) for run in runs)
    raise UserError(f"reference={reference}: not one of the runs; choose one of {paths}")
