"""Learning rates of the recorded steps, and the mistakes that explain a difference between them.

A is the reference record of a diagnosis, and B the record that is compared with it. Slots are the optimizer's arrays.
"""

import numpy as np

from common.diagnose.findings import Explanation, Stage
from common.diagnose.recorded.optimizer_settings import read_optimizer_settings, read_rates
from common.diagnose.recorded.record_pair import RecordPair
from common.diagnose.recorded.recorded_side import RecordedSide
from common.diagnose.recorded.recorded_updates import count_earlier_updates, rename_slots
from common.errors import one_line

STATE_LOST = "optimizer_state_lost"  # name of a cause, which the stage "optimizer" may find, too
NO_SCHEDULE = "no_schedule"
CLOSE = 1e-6  # largest relative difference of rates that count as equal: Keras keeps them in float32


def compare_rates(stage: Stage, pair: RecordPair) -> None:
    """Compare the rates of the paired parameters in all steps; parameters with the same rates are one cause."""
    groups: dict[tuple[tuple[float, ...], tuple[float, ...]], list[str]] = {}
    by_step = [[read_rates(side, step) for step in pair.steps] for side in pair.sides]
    for match in pair.models.variables:
        rates = [
            tuple(rates[name] for rates in side if name in rates)
            for side, name in zip(by_step, (match.names_a[0], match.names_b[0]), strict=True)
        ]
        if len(rates[0]) == len(rates[1]) == len(pair.steps):
            groups.setdefault((rates[0], rates[1]), []).append(match.title)
    for (a, b), titles in groups.items():
        if np.allclose(a, b, rtol=CLOSE, atol=CLOSE * max(a)):  # a schedule in float32 rounds beside its largest rate
            continue
        replicas = [side.replicas for side in pair.sides]
        explanation = explain_lost_state(pair, a, b) or explain_rates(np.array(a), np.array(b), replicas)
        if explanation.cause == "schedule":
            explanation = explain_position(pair) or explanation
        if explanation.cause == NO_SCHEDULE:
            explanation = explain_staircase(pair.a if explanation.side == "a" else pair.b, a, b) or explanation
        parameters = "" if len(groups) == 1 else f" (of {titles[0]} and {len(titles) - 1} more)"
        stage.add_mismatch("learning rate")
        stage.add_explanation("learning rate", explanation, prefix=f"learning rate{parameters}: ")


def explain_lost_state(pair: RecordPair, a: tuple[float, ...], b: tuple[float, ...]) -> Explanation | None:
    """Check whether the rates differ in the first step only, because one side starts with a new optimizer."""
    sides = find_empty_starts(pair)
    if len(sides) != 1 or len(a) < 2 or not np.allclose(a[1:], b[1:], rtol=CLOSE, atol=0):
        return None
    sentence = f"{sides[0].upper()} starts with an empty optimizer, which has another rate until the scheduler steps: "
    return Explanation(STATE_LOST, sentence + f"{a[0]:.6g} in A and {b[0]:.6g} in B", side=sides[0])


def find_empty_starts(pair: RecordPair) -> list[str]:
    """Return the names of the sides whose optimizer has no slots of earlier steps at the start."""
    names = []
    for side in pair.sides:
        settings = read_optimizer_settings(side)
        slots = rename_slots(side, 0, settings) or {}
        initial = {f"sum.{name}": group.initial_accumulator_value for name, group in settings.items()}
        if all(np.allclose(array, initial.get(key, 0.0), 1e-6, 0) for key, array in slots.items()):
            names.append(side.name)
    return names


def explain_position(pair: RecordPair) -> Explanation | None:
    """Explain why a scheduler counts more or fewer steps than its optimizer. Return None if both count the same."""
    steps, positions = len(pair.steps), []
    for side in pair.sides:
        scheduler = side.record.facts["scheduler"] or {}
        position = scheduler.get("last_epoch")
        if not isinstance(position, int) or len(side.record.steps) != steps:
            return None
        positions.append(position - (_count_updates(side) + steps - 1))
    for side, lead, other_lead in zip(pair.sides, positions, positions[::-1], strict=True):
        if not lead or other_lead:
            continue
        name, updates = side.name.upper(), _count_updates(side)
        micro_batches = side.get_facts(pair.steps[-1])["micro_batches"]
        if lead == -updates:
            sentence = f"the scheduler of {name} starts again after {updates} updates: it was not resumed"
            return Explanation("schedule_restarted", sentence, side=side.name)
        if micro_batches > 1 and lead == (micro_batches - 1) * steps:
            sentence = f"the scheduler of {name} steps after each of the {micro_batches} micro-batches of an update"
            return Explanation("scheduler_per_micro_batch", sentence, side=side.name)
    return None


def explain_staircase(side: RecordedSide, a: tuple[float, ...], b: tuple[float, ...]) -> Explanation | None:
    """Explain a rate that stays the same by a schedule of Keras that changes it after many steps only.

    Args:
        side: The side whose rate stays the same.
        a: The rates of A.
        b: The rates of B.
    """
    scheduler = side.record.facts["scheduler"] or {}
    if scheduler.get("staircase") is not True:
        return None
    name, count = one_line(f"{scheduler.get('name')}".rpartition(".")[2]), scheduler.get("decay_steps")
    every = f" every {count} steps" if isinstance(count, int | float) else ""
    sentence = f"{name} of {side.name.upper()} has staircase=True and changes the rate only{every}: "
    return Explanation(
        "schedule", f"{sentence}{_format(np.array(a))} in A and {_format(np.array(b))} in B", side=side.name
    )


def _count_updates(side: RecordedSide) -> int:
    """Return the number of updates before the record."""
    return max(count_earlier_updates(side).values(), default=0)


def explain_rates(a: np.ndarray, b: np.ndarray, replicas: list[int]) -> Explanation:
    """Explain why B's rates [steps] differ from A's. replicas: the number of replicas of A and of B."""
    listed_rates = f"{_format(a)} in A and {_format(b)} in B"
    for side, rates, other_rates in (("b", b, a), ("a", a, b)):
        if mistake := _find_schedule_mistake(rates, other_rates):
            name, words = mistake
            return Explanation(name, f"{words} in {side.upper()}: {listed_rates}", side=side)
    ratios = b / np.where(a == 0, np.inf, a)
    if np.allclose(ratios, ratios[0], rtol=1e-4) and ratios[0]:
        for count, side in ((replicas[1], "b"), (replicas[0], "a")):
            ratio = ratios[0] if side == "b" else 1 / ratios[0]
            if count > 1 and np.isclose(ratio, count, rtol=1e-4):
                sentence = f"{side.upper()} multiplies it by its {count} replicas: {listed_rates}"
                return Explanation("learning_rate_scaled", sentence, side=side)
        return Explanation("learning_rate", listed_rates)
    return Explanation("schedule", f"other schedules: {listed_rates}")


def _find_schedule_mistake(rates: np.ndarray, other_rates: np.ndarray) -> tuple[str, str] | None:
    """Return the name and a description of a mistake in a schedule; None if the other rates show none."""
    steps = len(rates)
    if steps < 2 or np.allclose(rates, other_rates, rtol=CLOSE, atol=0):
        return None
    is_constant, varies = (
        np.allclose(rates, rates[0], rtol=CLOSE, atol=0),
        not np.allclose(other_rates, other_rates[0], rtol=CLOSE, atol=0),
    )
    if varies and not is_constant and steps > 2 and _are_repeated(rates, other_rates):
        words = "the optimizer steps twice for each step of the scheduler"
        is_late = np.allclose(rates[1:], other_rates[:-1], rtol=CLOSE, atol=0)
        return "updates_per_schedule_step", f"{words}, or the schedule is a step late" if is_late else words
    if steps > 2 and _are_repeated(other_rates, rates):
        return None  # the other side has the mistake
    twice = other_rates[::2]
    is_ahead = not np.isclose(rates[1], other_rates[1], rtol=CLOSE, atol=0)
    changes = varies and not is_constant
    if changes and len(twice) > 1 and is_ahead and np.allclose(rates[: len(twice)], twice, rtol=CLOSE, atol=0):
        return "scheduler_stepped_twice", "the scheduler steps twice for each update"
    if changes and np.allclose(rates[:-1], other_rates[1:], rtol=CLOSE, atol=0):
        words = "the schedule is a step early (its scheduler steps before the optimizer, or the other counts from 0)"
        return "schedule_early", words
    if varies and is_constant:
        return NO_SCHEDULE, "the rate does not change: no scheduler, or it steps once per epoch"
    return None


def _are_repeated(rates: np.ndarray, other_rates: np.ndarray) -> bool:
    """Check whether the rates are the other rates, each of them twice."""
    return bool(np.allclose(rates, np.repeat(other_rates, 2)[: len(rates)], rtol=CLOSE, atol=0))


def _format(rates: np.ndarray) -> str:
    return ", ".join(f"{rate:.6g}" for rate in rates)
