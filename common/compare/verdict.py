"""The verdict: which runs are in lockstep, where others diverge, and which are different experiments."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from pathlib import Path

from common.compare.bins import bins_for
from common.compare.labels import distinguish
from common.compare.pair import (
    DIVERGED,
    LOCKSTEP,
    NOT_COMPARABLE,
    OTHER_CURVE,
    SAME_CURVE,
    RunPair,
    Tolerance,
    compare_pair,
    explain,
)
from common.compare.runs import Run, load_run
from common.errors import UserError

ONLY_ONE_RUN = "only one run"
WORST_FIRST = (DIVERGED, OTHER_CURVE, NOT_COMPARABLE, SAME_CURVE, LOCKSTEP)


@dataclass(frozen=True, eq=False)
class Comparison:
    """Every pair of runs, and one verdict on all pairs of synchronous runs.

    It is the first of these that a pair has: "diverged", "different curve, experiment unknown", "not comparable", "same
    curve, experiment unknown", "lockstep". The experiment of a run from elsewhere is unknown.
    """

    runs: list[Run]
    reference: Run
    tolerances: Mapping[str, Tolerance]
    pairs: list[RunPair]
    verdict: str
    sentence: str
    notes: list[str] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)  # why other runs cannot be read

    @property
    def in_lockstep(self) -> bool:
        """Whether every pair is in lockstep, asynchronous ones too; not so where a run is alone or was left out.

        A run from elsewhere only needs to have the same curve; one that has not ended may still leave it.
        """
        complete = not self.left_out and not any(run.running for run in self.runs)
        agree = (LOCKSTEP, SAME_CURVE)
        return bool(self.pairs) and complete and all(pair.verdict in agree for pair in self.pairs)


def compare_runs(
    run_dirs: Sequence[Path], tolerances: Mapping[str, Tolerance], reference: str | None = None
) -> Comparison:
    """Read the run directories and `compare` them. Raises UserError, also where one of them cannot be read."""
    return compare([load_run(Path(path)) for path in run_dirs], tolerances, reference)


def compare(
    runs: list[Run],
    tolerances: Mapping[str, Tolerance],
    reference: str | None = None,
    left_out: Sequence[str] = (),
) -> Comparison:
    """Compare every pair of the runs, in the order given.

    tolerances: by train.precision; those of its coarser precision apply to a pair. reference: directory or name of the
    run that tables and charts compare the others with (default: the first synchronous one); the verdict does not depend
    on it. left_out: why other runs could not be read. Raises UserError.
    """
    seen: set[Path] = set()
    for run in runs:
        if run.path.resolve() in seen:
            raise UserError(f"{run.path}: named twice; name each run once")
        seen.add(run.path.resolve())
        if not run.external and run.precision not in tolerances:
            raise UserError(
                f"{run.path}: no tolerance for train.precision '{run.precision}': add "
                f"+tolerances.{run.precision}.loss=... and +tolerances.{run.precision}.grad_norm=..."
            )
    if not runs:
        raise UserError("no run to compare")
    distinguish(runs)
    bins = bins_for(len(run.steps) for run in runs)
    pairs = [compare_pair(a, b, tolerances, bins) for a, b in combinations(runs, 2)]
    verdict, sentence = _overall(runs, pairs)
    if left_out:
        sentence += f"; left out: {len(left_out)} that cannot be read"
    notes = [f"left out: {error}" for error in left_out]
    notes += [note for run in runs for note in run.notes]
    notes += [_describe_changes(run) for run in runs if run.replica_changes]
    notes += [
        f"{run}: trained by {', '.join(f'{name} from step {step}' for step, name in run.trained_by)}"
        for run in runs
        if run.trained_by
    ]
    notes += [
        f"{run}: status {run.summary['status']}" + f", {len(run.steps)} steps so far" * run.running
        for run in runs
        if run.summary["status"] not in ("completed", "unknown")
    ]
    notes += [f"{pair.a} and {pair.b}: {note}" for pair in pairs for note in pair.notes]
    return Comparison(
        runs, _find_reference(runs, reference), tolerances, pairs, verdict, sentence, notes, list(left_out)
    )


def _describe_changes(run: Run) -> str:
    numbers = ", ".join(f"{number} from step {step}" for step, number in run.replica_changes)
    return f"{run}: replicas {numbers}; speed, peak memory and traffic are of the last"


def _overall(runs: list[Run], pairs: list[RunPair]) -> tuple[str, str]:
    if not pairs:
        run = runs[0]
        return ONLY_ONE_RUN, f"{ONLY_ONE_RUN}: {run} with {len(run.steps)} steps; name a second one to compare it with"
    synchronous = [run for run in runs if not run.asynchronous]
    asynchronous = ", ".join(run.label for run in runs if run.asynchronous)
    pairs = [pair for pair in pairs if not pair.asynchronous]
    if not pairs:
        which = f"only {synchronous[0]} is synchronous" if synchronous else "no run is synchronous"
        return NOT_COMPARABLE, (
            f"{NOT_COMPARABLE}: {which}, and lockstep is of synchronous runs; {asynchronous}: compared after equal "
            "examples"
        )
    by_verdict = {v: [pair for pair in pairs if pair.verdict == v] for v in WORST_FIRST}
    verdict = next(v for v, found in by_verdict.items() if found)
    first = min(by_verdict[verdict], key=lambda pair: pair.first_step_beyond or 0)
    others = "".join(f", {len(found)} {v}" for v, found in by_verdict.items() if found and v != verdict)
    count = f"{len(by_verdict[verdict])} of {len(pairs)} pairs{others}; " if len(pairs) > 1 else ""
    sentence = f"{verdict}: {count}{explain(first)}"
    if verdict == LOCKSTEP:
        so_far = " so far" if any(run.running for run in runs) else ""
        sentence = (
            f"{verdict}: {len(synchronous)} runs agree at all {min(pair.steps for pair in pairs)} steps{so_far}: "
            f"loss within {max(p.max_loss_difference or 0 for p in pairs):.2g} (tolerance {first.tolerance.loss:g}), "
            f"grad_norm within {max(p.max_grad_norm_difference or 0 for p in pairs):.2g} "
            f"(relative; tolerance {first.tolerance.grad_norm:g})"
        )
    return verdict, sentence + (f"; asynchronous, and so not among them: {asynchronous}" if asynchronous else "")


def _find_reference(runs: list[Run], reference: str | None) -> Run:
    if reference is None:
        return next((run for run in runs if not run.asynchronous), runs[0])
    for run in runs:
        if reference in (run.path.name, str(run.path)) or Path(reference).resolve() == run.path.resolve():
            return run
    raise UserError(f"reference={reference}: not one of the runs; choose one of {', '.join(str(r.path) for r in runs)}")
