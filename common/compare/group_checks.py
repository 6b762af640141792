"""Rules that two groups of seeds must follow to be compared, and notes on the differences that the rules allow."""

import re
from collections.abc import Iterable, Sequence
from itertools import chain

from common.compare.experiment import (
    ConfigDifferences,
    describe_environments,
    find_config_differences,
    find_curve_differences,
)
from common.compare.labels import format_value
from common.compare.runs import Run
from common.compare.seed_groups import SEED, SeedGroup, find_divergence
from common.config.resolve import choose_warmup_steps
from common.errors import UserError

# The keys that decide how numbers are rounded. train.compile also decides the masks of native dropout, and
# train.micro_batches the statistics of BatchNorm.
ROUNDING_KEYS = ("train.compile", "train.micro_batches", "train.padding")


def check_groups(reference: SeedGroup, contestant: SeedGroup) -> None:
    """Raise UserError unless two groups have equal numbers of runs and equal seeds, and differ in at most one thing."""
    if reference.seeds and contestant.seeds and reference.seeds != contestant.seeds:
        missing = {*reference.seeds} ^ {*contestant.seeds}
        raise UserError(
            f"{reference} has the seeds {_join(reference.seeds)}, {contestant} {_join(contestant.seeds)}; train "
            f"the seeds {_join(sorted(missing))} in both groups, or leave them out"
        )
    if len(reference.runs) != len(contestant.runs):
        counts = f"{reference} has {len(reference.runs)} runs, {contestant} {len(contestant.runs)}"
        raise UserError(f"{counts}; name the same number of runs of both, since the runs are compared in pairs")
    units = {run.unit for run in (*reference.runs, *contestant.runs)}
    if len(units) > 1:
        raise UserError(f"{reference} and {contestant}: one counts epochs, the other steps; name files of one kind")
    differences = _list_differences(reference.runs[0], contestant.runs[0])
    if len(differences) > 1:
        raise UserError(
            f"{reference} and {contestant} differ in {len(differences)} things: {', '.join(differences)}; compare "
            "groups that differ in one"
        )


def list_notes(reference: SeedGroup, contestant: SeedGroup) -> list[str]:
    """Return notes on how the runs are paired, on what else differs between the runs of a pair, and on divergence."""
    notes = [*dict.fromkeys(chain.from_iterable(map(_list_pair_notes, reference.runs, contestant.runs)))]
    if reference.seeds is None or contestant.seeds is None:
        notes.append(_describe_pairs(reference, contestant))
    weights = [[run.get_fingerprint("initial_weights") for run in group.runs] for group in (reference, contestant)]
    if None not in weights[0] + weights[1] and weights[0] != weights[1]:
        notes.append("the runs of a pair have different initial weights, so more seeds are needed than with equal ones")
    for group in (reference, contestant):
        for position, run in enumerate(group.runs):
            if reason := find_divergence(run):
                notes.append(f"{group.name_run(position)} of {group} diverged: {reason}")
    return notes


def _describe_pairs(reference: SeedGroup, contestant: SeedGroup) -> str:
    """Describe how runs with unknown seeds are paired, and name the pairs with different numbers in their paths."""
    pairs = [f"{a.path} with {b.path}" for a, b in zip(reference.runs, contestant.runs, strict=True)]
    sentence = f"the seeds are unknown, so runs are paired in the order of their names: {pairs[0]} first"
    numbers = _read_numbers(reference), _read_numbers(contestant)
    differing = [pair for pair, a, b in zip(pairs, *numbers, strict=False) if a != b]
    if not differing:
        return sentence
    more = f" and {len(differing) - 1} more pairs" if len(differing) > 1 else ""
    return f"{sentence}; {differing[0]}{more} have different numbers, so possibly different seeds"


def _read_numbers(group: SeedGroup) -> list[int]:
    """Return the seed of each run. If the seeds are unknown, return the last number in which the runs' paths differ.

    The result is empty if the paths differ in no number.
    """
    if group.seeds:
        return group.seeds
    numbers = [list(map(int, re.findall(r"\d+", str(run.path))))[::-1] for run in group.runs]
    return next((list(column) for column in zip(*numbers, strict=False) if len({*column}) > 1), [])


def _list_pair_notes(a: Run, b: Run) -> Iterable[str]:
    if environments := describe_environments(a, b, None):
        yield environments
    if not (a.external_kind or b.external_kind) and a.plan_version != b.plan_version:
        versions = f"version {a.plan_version} | version {b.plan_version}"
        yield f"different batch plans ({versions}), so the runs of a pair have different data orders"
    values = {key: (a.config.get(key), b.config.get(key)) for key in ROUNDING_KEYS}
    if differing := [
        f"{key} {_format_pair(pair)}" for key, pair in values.items() if None not in pair and len({*pair}) > 1
    ]:
        yield f"the runs of a pair also differ in {', '.join(differing)}, which changes rounding, or more"


def _list_differences(a: Run, b: Run) -> list[str]:
    """Return the things that two runs of one seed differ in.

    If the `kind` of a group of keys differs, the other keys of the group are not listed.
    """
    if a.external_kind or b.external_kind:
        return []
    differences = find_curve_differences(a, b)
    differences.pop(SEED, None)
    listed = _describe_strategies(a, b)
    for key, values in differences.items():
        group, _, name = key.partition(".")
        has_other_kind = name != "kind" and f"{group}.kind" in differences
        if group != "strategy" and not has_other_kind and not _follows_from_step_count(key, a, b, differences):
            listed.append(f"{key} {_format_pair(values)}")
    fingerprints = a.get_fingerprint("token_cache"), b.get_fingerprint("token_cache")
    if fingerprints[0] != fingerprints[1] and not any(key.startswith("data.") for key in differences):
        listed.append(f"the content of the data {_format_pair(fingerprints)}")
    return listed


def _describe_strategies(a: Run, b: Run) -> list[str]:
    """Return the difference between two strategies. The framework, the strategy and its keys count as one thing."""
    trainers = f"{a.framework} {a.strategy}", f"{b.framework} {b.strategy}"
    if trainers[0] != trainers[1]:
        return [f"the strategy {_format_pair(trainers)}"]
    values = {key: pair for key, pair in find_config_differences(a, b).items() if key.startswith("strategy.")}
    if not values and a.replicas != b.replicas and (a.is_asynchronous or b.is_asynchronous):
        values = {"replicas": (a.replicas, b.replicas)}
    pairs = ", ".join(f"{key} {_format_pair(pair)}" for key, pair in values.items())
    return [f"the strategy ({pairs})"] if pairs else []


def _follows_from_step_count(key: str, a: Run, b: Run, differences: ConfigDifferences) -> bool:
    """Check whether a key of the schedule differs only because the runs have different numbers of steps.

    The config of a run has `schedule.total_steps` even if its user set `train.epochs` only. If the batch size or the
    data differ, so does the number of steps of an epoch, and with it the schedule.
    """
    configs = a.config, b.config
    has_other_data = a.get_fingerprint("token_cache") != b.get_fingerprint("token_cache")
    has_other_epoch_length = has_other_data or "train.global_batch_size" in differences
    if key == "schedule.total_steps":
        return has_other_epoch_length and all(config.get(key) == config.get("train.steps") for config in configs)
    if key == "schedule.warmup_steps" and (has_other_epoch_length or "schedule.total_steps" in differences):
        totals = [config.get("schedule.total_steps") for config in configs]
        return all(
            isinstance(total, int)
            and isinstance(every := config.get("schedule.every"), int)
            and config.get(key) == choose_warmup_steps(total, every)
            for config, total in zip(configs, totals, strict=True)
        )
    return False


def _format_pair(values: Sequence[object]) -> str:
    return f"({' | '.join(map(format_value, values))})"


def _join(numbers: Sequence[int]) -> str:
    return ", ".join(map(str, numbers))
