"""The updates of a recorded optimizer, computed again from the record's own gradients, weights and slots.

Slots are the optimizer's arrays, such as Adam's moments. Slots are recorded before the first step and after the first
update, and computed after later updates. A record of format 1 also has the slots after its last step.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from common.diagnose.explain.update_formula import OptimizerUpdate
from common.diagnose.explain.update_settings import UpdateSettings
from common.diagnose.recorded.optimizer_settings import OptimizerSettings, read_optimizer_settings, read_rates
from common.diagnose.recorded.recorded_side import RecordedSide
from common.diagnose.recorded.update_rules import RULES, Parameter, compute_update

Arrays = Mapping[str, np.ndarray]
# For each slot, by its name in PyTorch, the names that it may have in a record. The first name that occurs counts.
MOMENTS = {
    "exp_avg": ("exp_avg", "momentums", "momentum", "m"),
    "exp_avg_sq": ("exp_avg_sq", "velocities", "velocity", "v"),
}
SLOT_NAMES: Mapping[str, Mapping[str, tuple[str, ...]]] = {
    "sgd": {"momentum_buffer": ("momentum_buffer", "momentums", "momentum")},
    "adam": {**MOMENTS, "max_exp_avg_sq": ("max_exp_avg_sq", "velocity_hats")},
    "rmsprop": {
        "square_avg": ("square_avg", "velocities"),
        "momentum_buffer": ("momentum_buffer", "momentums"),
        "grad_avg": ("grad_avg", "average_gradients"),
    },
    "adagrad": {"sum": ("sum", "accumulators")},
    "adadelta": {
        "square_avg": ("square_avg", "accumulated_grads"),
        "acc_delta": ("acc_delta", "accumulated_delta_vars"),
    },
    "adamax": {"exp_avg": ("exp_avg", "m"), "exp_inf": ("exp_inf", "u")},
    "nadam": MOMENTS,
    "radam": MOMENTS,
    "lion": {"exp_avg": ("momentums",)},
}
AVERAGE = {"average": ("model_variables_moving_average",)}  # a slot that any Keras optimizer may have
COUNTER = "step"  # PyTorch counts the updates in this slot of each parameter
ITERATIONS = "iterations"  # Keras counts the updates of the optimizer in this entry of its hyperparameters
STEP_PRECISION = "float32"  # the precision in which recorders store weights and slots, unless these are float64


@dataclass(frozen=True)
class RecordedUpdate:
    """The parameters that one optimizer step updates with the same settings.

    Attributes:
        update: The update, with slots in PyTorch's vocabulary.
        settings: The settings.
        expected_slots: Slots after the step, computed by the optimizer's formula.
        expected_weights: Weights after the step, computed by the formula. Elements that rounding errors decide are NaN.
        recorded_slots: Those keys of `update.slots_after` whose slots are recorded, and not computed.
    """

    update: OptimizerUpdate
    settings: OptimizerSettings
    expected_slots: dict[str, np.ndarray]
    expected_weights: dict[str, np.ndarray]
    recorded_slots: frozenset[str]


def why_not_computed(side: RecordedSide) -> str:
    """Return the reason why a side's updates cannot be computed again, or an empty string."""
    settings = read_optimizer_settings(side)
    if not settings:
        return f"the optimizer of {side.title} is not recorded"
    unknown = {group.algorithm for group in settings.values()} - RULES.keys()
    if unknown:
        return f"the update of {min(unknown)} in {side.title} is not known"
    if (side.record.facts["scheduler"] or {}).get("cycle_momentum") is True:
        return f"the scheduler of {side.title} also changes the momentum, which is not recorded for each step"
    return ""


def list_updates(
    side: RecordedSide, steps: Sequence[int], precision: str, settings: Mapping[str, OptimizerSettings] | None = None
) -> Iterator[tuple[int, list[RecordedUpdate]]]:
    """Yield the number of each step, and its updates, grouped by settings, rate and number of earlier updates.

    Args:
        side: The record.
        steps: Numbers of the steps.
        precision: Precision in which the script trains.
        settings: Settings of each parameter; None takes the recorded ones.
    """
    settings = read_optimizer_settings(side) if settings is None else settings
    counts, slots = count_earlier_updates(side), rename_slots(side, 0, settings) or {}
    for step in steps:
        facts = side.get_facts(step)
        if facts["skipped"]:
            continue
        if side.has_unknown_weights(step, side.list_changed(step)):
            return
        rates, gradients = read_rates(side, step), side.gradients.read(step)
        gradients = orient_gradients(
            gradients, settings, {*facts.get("clipped_rows", []), *facts.get("clip_factors", {})}
        )
        counts = {name: count + (name in gradients) for name, count in counts.items()}
        recorded_names = side.read_weights(step - 1).keys() & side.read_weights(step).keys()
        gradients = {name: gradient for name, gradient in gradients.items() if name in recorded_names}
        recorded = rename_slots(side, step, settings)
        updates = []
        for group, names in _group_parameters(settings, rates, counts, gradients):
            update = _build_update(side, step, group, {name: gradients[name] for name in names}, slots)
            if recorded is not None:
                after = {key: recorded.get(key, array) for key, array in update.expected_slots.items()}
                keys = frozenset(recorded.keys() & after.keys())
                update = replace(update, update=replace(update.update, slots_after=after), recorded_slots=keys)
            in_precision = replace(update.update, settings=replace(update.update.settings, precision=precision))
            updates.append(replace(update, update=_to_directions(in_precision, update.settings, group.rate)))
        computed = {key: array for update in updates for key, array in update.expected_slots.items()}
        slots = {**slots, **computed, **(recorded or {})}
        yield step, updates


def count_earlier_updates(side: RecordedSide) -> dict[str, int]:
    """Return the number of updates of each parameter before the record, by the counters of the optimizer."""
    slots, counts = side.read_slots(0) or {}, {}
    for group in side.optimizer["groups"] if side.optimizer is not None else ():
        iterations = group["hyperparameters"].get(ITERATIONS)
        for name in group["parameters"]:
            counter = slots.get(f"{name}/{COUNTER}")
            count = counter.ravel()[0] if counter is not None and counter.size == 1 else iterations
            counts[name] = int(count) if isinstance(count, int | float | np.number) and np.isfinite(count) else 0
    return counts


def rename_slots(
    side: RecordedSide, step: int, settings: Mapping[str, OptimizerSettings]
) -> dict[str, np.ndarray] | None:
    """Return the slots after a step as SLOT.PARAMETER in PyTorch's vocabulary; None: not recorded."""
    slots = side.read_slots(step)
    if slots is None:
        return None
    renamed = {}
    for name, group in settings.items():
        for new, old_names in {**SLOT_NAMES.get(group.algorithm, {}), **AVERAGE}.items():
            array = next((slots[f"{name}/{old}"] for old in old_names if f"{name}/{old}" in slots), None)
            if array is not None:
                renamed[f"{new}.{name}"] = array.astype(np.float64)
    return renamed


def orient_gradients(
    gradients: Arrays, settings: Mapping[str, OptimizerSettings], known: Collection[str] = ()
) -> dict[str, np.ndarray]:
    """Return the gradients that the formula subtracts: clipped by a Keras optimizer, and negated if it maximizes.

    Args:
        gradients: The gradients by name.
        settings: The settings of each parameter.
        known: Names of gradients that the record has as the optimizer clipped them. They are not clipped again: their
            norm may be larger, because Keras clips sparse gradients before it adds their repeated rows.
    """
    clipping = next((group.clipping for group in settings.values() if group.clipping), None)
    clipped = {
        name: gradient.astype(np.float64) * (-1 if name in settings and settings[name].maximize else 1)
        for name, gradient in gradients.items()
    }
    if clipping is None:
        return clipped
    kind, value = clipping
    whole = {name: gradient for name, gradient in clipped.items() if name not in known}
    if kind == "clipvalue":
        return clipped | {name: np.clip(gradient, -value, value) for name, gradient in whole.items()}
    if kind == "clipnorm":
        return clipped | {name: gradient * _get_factor([gradient], value) for name, gradient in whole.items()}
    factor = 1.0 if known else _get_factor(list(clipped.values()), value)
    return {name: gradient * factor for name, gradient in clipped.items()}


def _get_factor(gradients: Sequence[np.ndarray], max_norm: float) -> float:
    """Return the factor by which Keras clips gradients. Unlike PyTorch, Keras adds no epsilon to the norm."""
    norm = float(np.sqrt(sum(float(np.square(gradient).sum()) for gradient in gradients)))
    return min(1.0, max_norm / norm) if norm else 1.0


class _UpdateGroup(NamedTuple):
    """The settings, the learning rate and the number, from 1, of an update that several parameters share."""

    settings: OptimizerSettings
    rate: float
    number: int


def _group_parameters(
    settings: Mapping[str, OptimizerSettings], rates: Mapping[str, float], counts: Mapping[str, int], gradients: Arrays
) -> Iterator[tuple[_UpdateGroup, list[str]]]:
    """Yield the groups of parameters that have an equal update, with the names of their parameters."""
    groups: dict[_UpdateGroup, list[str]] = {}
    for name, parameter_settings in settings.items():
        if name in rates and name in gradients:
            groups.setdefault(_UpdateGroup(parameter_settings, rates[name], counts[name]), []).append(name)
    yield from groups.items()


def _build_update(
    side: RecordedSide, step: int, group: _UpdateGroup, gradients: Arrays, slots: Arrays
) -> RecordedUpdate:
    """Return an update with the weights and slots that the formula computes."""
    settings, rate, number = group
    before, after = (
        {name: weights[name].astype(np.float64) for name in gradients}
        for weights in (side.read_before(step), side.read_weights(step))
    )
    slots_before = {key: array for key, array in slots.items() if key.partition(".")[2] in gradients}
    weights: dict[str, np.ndarray] = {}
    expected: dict[str, np.ndarray] = {}
    for name, gradient in gradients.items():
        own_slots = {key.partition(".")[0]: array for key, array in slots.items() if key.partition(".")[2] == name}
        # A decoupled decay shrinks the weights; any other decay is added to the gradient
        decay, shrink = (
            (0.0, 1 - rate * settings.weight_decay) if settings.is_decoupled else (settings.weight_decay, 1.0)
        )
        parameter = Parameter(settings, rate, number, shrink * before[name], gradient + decay * before[name], own_slots)
        with np.errstate(divide="ignore", invalid="ignore"):  # divides by 0 if both epsilon and gradient are 0
            weights[name], slots_after = compute_update(parameter)
        expected |= {f"{slot}.{name}": array for slot, array in slots_after.items()}
    update_settings = to_update_settings(settings, rate)
    ranks = len(side.record.ranks)
    update = OptimizerUpdate(
        update_settings, number, ranks, before, after, slots_before, dict(expected), gradients, settings.scalar_error
    )
    return RecordedUpdate(update, settings, expected, weights, recorded_slots=frozenset())


def to_update_settings(settings: OptimizerSettings, rate: float, max_norm: float | None = None) -> UpdateSettings:
    """Return the settings of an update in the form that the explanations take: those of SGD, Adam or AdamW."""
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


def _to_directions(update: OptimizerUpdate, settings: OptimizerSettings, rate: float) -> OptimizerUpdate:
    """Return an update of SGD with the directions of the changes as slots: the changes divided by the rate."""
    if settings.algorithm != "sgd" or not settings.is_plain:
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
