"""The updates of a recorded optimizer, computed again from the record's own gradients, weights and slots.

Slots are recorded before the first step, and after the first and the last one. Between them they are computed.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np

from common.diagnose.explain.update_formula import OptimizerUpdate
from common.diagnose.explain.update_settings import UpdateSettings
from common.diagnose.recorded.optimizer_settings import NO_EMA, OptimizerSettings, read_optimizer_settings, read_rates
from common.diagnose.recorded.recorded_side import RecordedSide

Arrays = Mapping[str, np.ndarray]
KNOWN_ALGORITHMS = ("sgd", "adam")
# Names of slots in the frameworks, by our name; the first one that a record has counts
SLOT_NAMES = {
    "exp_avg": ("exp_avg", "momentums", "momentum", "m"),
    "exp_avg_sq": ("exp_avg_sq", "velocities", "velocity", "v"),
    "momentum_buffer": ("momentum_buffer", "momentums", "momentum"),
}
COUNTERS = ("step", "iterations", "iteration")
STEP_PRECISION = "float32"  # in which the recorders store weights and slots, unless they are float64


@dataclass(frozen=True)
class RecordedUpdate:
    """The parameters that one optimizer step updates with the same settings.

    Attributes:
        update: The update, with slots in PyTorch's vocabulary.
        settings: The settings.
        expected_slots: Slots after the step as they follow from the slots before it and the gradients.
        has_recorded_slots: Whether `update.slots_after` is recorded, and not computed.
    """

    update: OptimizerUpdate
    settings: OptimizerSettings
    expected_slots: dict[str, np.ndarray]
    has_recorded_slots: bool


def why_not_computed(side: RecordedSide) -> str:
    """Return why the updates of a side cannot be computed again, or an empty string."""
    settings = read_optimizer_settings(side)
    if not settings:
        return f"{side.title}: the optimizer is not recorded"
    algorithms = {group.algorithm for group in settings.values()} - {*KNOWN_ALGORITHMS}
    if algorithms:
        return f"{side.title}: the formula of {min(algorithms)} is not known here"
    if any(group.amsgrad for group in settings.values()):
        return f"{side.title}: the formula of amsgrad is not known here"
    if (side.record.facts["scheduler"] or {}).get("cycle_momentum") is True:
        return f"{side.title}: the scheduler also changes the momentum, which is not recorded for each step"
    if any(group.ema != NO_EMA for group in settings.values()):
        return f"{side.title}: the optimizer writes a moving average into the weights"
    return ""


def list_updates(side: RecordedSide, steps: list[int], precision: str) -> Iterator[tuple[int, list[RecordedUpdate]]]:
    """Yield the number of each step, and its updates, grouped by settings and rate."""
    settings = read_optimizer_settings(side)
    count, slots = count_earlier_updates(side), rename_slots(side, 0, settings) or {}
    for step in steps:
        facts = side.get_facts(step)
        if facts["skipped"]:
            continue
        if facts.get("changed_weights"):
            return  # the weights before the update are not recorded
        count += 1
        rates, gradients = read_rates(side, step), side.read_gradients(step)
        gradients = {name: gradient.astype(np.float64) for name, gradient in gradients.items()}
        recorded = rename_slots(side, step, settings)
        computed: dict[str, np.ndarray] = {}
        updates = []
        for group_settings, rate, names in _group(settings, rates, gradients):
            update, expected = _build_update(side, step, count, (group_settings, rate), names, gradients, slots)
            update = replace(update, settings=replace(update.settings, precision=precision))
            computed |= expected
            if recorded is not None:
                update = replace(update, slots_after={key: recorded.get(key, array) for key, array in expected.items()})
            updates.append(RecordedUpdate(_to_directions(update, group_settings, rate), group_settings, expected,
                                          recorded is not None))  # fmt: skip
        slots = {**slots, **computed, **(recorded or {})}
        yield step, updates


def count_earlier_updates(side: RecordedSide) -> int:
    """Return how many updates the optimizer did before the record, as its own counter says."""
    slots = side.read_slots(0) or {}
    counters = [array for name, array in slots.items() if name.rpartition("/")[2] in COUNTERS and array.size == 1]
    return max((int(array.ravel()[0]) for array in counters), default=0)


def rename_slots(
    side: RecordedSide, step: int, settings: Mapping[str, OptimizerSettings]
) -> dict[str, np.ndarray] | None:
    """Return the slots after a step as SLOT.PARAMETER in PyTorch's vocabulary; None if they are not recorded."""
    slots = side.read_slots(step)
    if slots is None:
        return None
    renamed = {}
    for name, group in settings.items():
        for new in ("momentum_buffer",) if group.algorithm == "sgd" else ("exp_avg", "exp_avg_sq"):
            array = next((slots[f"{name}/{old}"] for old in SLOT_NAMES[new] if f"{name}/{old}" in slots), None)
            if array is not None:
                renamed[f"{new}.{name}"] = array.astype(np.float64)
    return renamed


def _group(
    settings: Mapping[str, OptimizerSettings], rates: Mapping[str, float], gradients: Arrays
) -> Iterator[tuple[OptimizerSettings, float, list[str]]]:
    groups: dict[tuple[OptimizerSettings, float], list[str]] = {}
    for name, group in settings.items():
        if name in rates and name in gradients:
            groups.setdefault((group, rates[name]), []).append(name)
    for (group, rate), names in groups.items():
        yield group, rate, names


def _build_update(
    side: RecordedSide, step: int, count: int, how: tuple[OptimizerSettings, float], names: list[str],
    gradients: Arrays, slots: Arrays,
) -> tuple[OptimizerUpdate, dict[str, np.ndarray]]:  # fmt: skip
    """Return an update and the slots that follow from it. how: the settings and the rate."""
    settings, rate = how
    before, after = (
        {name: side.read_weights(number)[name].astype(np.float64) for name in names} for number in (step - 1, step)
    )
    if settings.algorithm == "sgd" and settings.is_decoupled:  # Keras's: it decays the weights first
        before = {name: array * (1 - rate * settings.weight_decay) for name, array in before.items()}
        settings = replace(settings, weight_decay=0.0)
    group_gradients = {name: gradients[name] for name in names}
    slots_before = {key: array for key, array in slots.items() if key.partition(".")[2] in group_gradients}
    expected: dict[str, np.ndarray] = {}
    for name in names:
        decay = 0.0 if settings.is_decoupled else settings.weight_decay
        expected |= _advance_slots(settings, rate, name, group_gradients[name] + decay * before[name], slots_before)
    plain = to_update_settings(settings, rate)
    update = OptimizerUpdate(
        plain, count, len(side.record.ranks), before, after, slots_before, dict(expected), group_gradients
    )
    return update, expected


def to_update_settings(settings: OptimizerSettings, rate: float, max_norm: float | None = None) -> UpdateSettings:
    """Return the plain settings of an update, for explanations."""
    kind = settings.algorithm if settings.algorithm == "sgd" or not settings.is_decoupled else "adamw"
    return UpdateSettings(
        kind=kind,
        precision=STEP_PRECISION,
        rate=rate,
        previous_rate=rate,
        next_rate=rate,
        base_rate=rate,
        momentum=settings.momentum,
        betas=settings.betas,
        epsilon=settings.epsilon,
        epsilon_place=settings.epsilon_place,
        weight_decay=settings.weight_decay,
        max_grad_norm=max_norm,
    )


def _advance_slots(
    settings: OptimizerSettings, rate: float, name: str, gradient: np.ndarray, slots: Arrays
) -> dict[str, np.ndarray]:
    """Return the slots of a parameter after an update by a gradient, which includes the decay of the loss."""
    zeros = np.zeros_like(gradient)
    if settings.algorithm == "sgd":
        old = slots.get(f"momentum_buffer.{name}", zeros)
        share = -rate if settings.rate_inside_velocity and settings.momentum else 1.0
        return {f"momentum_buffer.{name}": settings.momentum * old + share * gradient}
    beta1, beta2 = settings.betas
    return {
        f"exp_avg.{name}": beta1 * slots.get(f"exp_avg.{name}", zeros) + (1 - beta1) * gradient,
        f"exp_avg_sq.{name}": beta2 * slots.get(f"exp_avg_sq.{name}", zeros) + (1 - beta2) * gradient**2,
    }


def _to_directions(update: OptimizerUpdate, settings: OptimizerSettings, rate: float) -> OptimizerUpdate:
    """Return an update of SGD whose slots are the directions in which it moves the weights, before the rate."""
    if settings.algorithm != "sgd":
        return update
    directions = {}
    for key, buffer in update.slots_after.items():
        name = key.partition(".")[2]
        decay = 0.0 if settings.is_decoupled else settings.weight_decay
        gradient = update.gradients[name] + decay * update.weights_before[name]
        if settings.rate_inside_velocity and settings.momentum:
            buffer = buffer / -(rate or 1.0)
        directions[key] = gradient + settings.momentum * buffer if settings.nesterov else buffer
    return replace(update, slots_after=directions)
