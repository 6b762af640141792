"""Verdict on groups of seeds: each contestant is compared with the reference, as groups and for each seed."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from common.compare.group_checks import check_groups
from common.compare.group_comparison import compare_groups
from common.compare.margins import Margins
from common.compare.pair import Tolerance
from common.compare.runs import Run
from common.compare.seed_groups import SeedGroup, group_runs
from common.compare.verdict import INCOMPLETE, Comparison, collect_notes, compare
from common.errors import UserError
from common.statistics.verdicts import DIFFERENT, EQUIVALENT, UNDECIDED


def compare_seeds(
    runs: list[Run],
    tolerances: Mapping[str, Tolerance],
    margins: Margins,
    reference: str | None = None,
    left_out: Sequence[str] = (),
) -> Comparison:
    """Compare groups of runs that differ only in their seeds, and the runs of each seed.

    Args:
        runs: The runs.
        tolerances: The largest differences of losses and gradient norms that count as equal, by precision.
        margins: The margins.
        reference: Directory or name of a run of the reference group, or its label; by default the first group.
        left_out: The reasons why other runs could not be read.

    Raises:
        UserError: The runs do not form groups that can be compared.
    """
    groups = group_runs(runs)
    if len(groups) < 2:
        raise UserError(f"{groups[0]}: only one group of seeds; name the runs of a second one to compare it with")
    base = _find_reference(groups, reference)
    contestants = [group for group in groups if group is not base]
    for contestant in contestants:
        check_groups(base, contestant)
    pairs = [pair for group in contestants for pair in zip(base.runs, group.runs, strict=True)]
    runs = [run for group in (base, *contestants) for run in group.runs]
    comparison = compare(runs, tolerances, str(base.runs[0].path), left_out, pairs)
    results = [compare_groups(base, contestant, margins) for contestant in contestants]
    if unknown := sorted({*margins.by_metric} - {name for result in results for name in result.judgement.metrics}):
        known = ", ".join(results[0].judgement.metrics)
        raise UserError(f"margins.{unknown[0]}: no such metric; the runs have {known}")
    verdict = next(
        verdict for verdict in (DIFFERENT, UNDECIDED, EQUIVALENT) if verdict in [result.verdict for result in results]
    )
    decisive = [result for result in results if result.verdict == verdict]
    share = f" ({len(decisive)} of {len(results)} comparisons)" if len(results) > 1 else ""
    sentence = f"{verdict}{share}: {'; '.join(result.sentence for result in decisive)}"
    if left_out:
        sentence = f"{INCOMPLETE}: {len(left_out)} left out ({left_out[0]}); the others: {sentence}"
    notes = [f"{result.contestant} and {result.reference}: {note}" for result in results for note in result.notes]
    notes = [*dict.fromkeys(notes + collect_notes(runs, [], left_out))]  # the files of a group have the same notes
    return replace(
        comparison,
        verdict=verdict,
        sentence=sentence,
        notes=notes,
        group_comparisons=results,
    )


def _find_reference(groups: Sequence[SeedGroup], reference: str | None) -> SeedGroup:
    if reference is None:
        return groups[0]
    for group in groups:
        if reference == group.label or any(reference in (run.path.name, str(run.path)) for run in group.runs):
            return group
    raise UserError(f"reference={reference}: no such group; choose one of {', '.join(map(str, groups))}")
