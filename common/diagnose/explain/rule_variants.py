"""Explanation of an update by the rule of its optimizer, for optimizers other than plain SGD, Adam and AdamW.

The rule computes the weights and slots after the update from the gradients of the shards and from the slots before it.
A variant is the config's rule with one change that stands for a fault, such as another epsilon.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np

from common.config.optimizer_settings import OptimizerSettings
from common.config.parameter_groups import assign_groups
from common.diagnose.explain.formula_variants import OTHER_EPSILONS, list_rates
from common.diagnose.explain.step_gradients import clip_factor, global_norm
from common.diagnose.explain.update_settings import UpdateSettings
from common.map.array_differences import relative_difference
from common.training.optimizer_rules import build_rule

Arrays = Mapping[str, np.ndarray]
EXPLAINED_SHARE = 1e-4  # share of the initial error that may remain
# Changes of one key that stand for a fault: the cause, the other values, and the sentence
OTHER_VALUES: Mapping[str, tuple[str, tuple[object, ...], str]] = {
    "epsilon": ("epsilon", OTHER_EPSILONS, "epsilon is {}, not {}"),
    "momentum": ("momentum", (0.0, 0.9), "the momentum is {}, not {}"),
    "nesterov": ("nesterov", (False, True), "nesterov is {}, not {}"),
    "dampening": ("dampening", (0.0,), "the dampening is {}, not {}"),
    "rho": ("rho", (0.9, 0.99, 0.95), "rho is {}, not {}"),
    "centered": ("centered", (False, True), "centered is {}, not {}"),
    "amsgrad": ("amsgrad", (False, True), "amsgrad is {}, not {}"),
    "beta1": ("betas", (0.9,), "beta1 is {}, not {}"),
    "beta2": ("betas", (0.999, 0.99), "beta2 is {}, not {}"),
    "initial_accumulator": ("initial_accumulator_value", (0.0, 0.1), "the sums of squares begin with {}, not {}"),
    "epsilon2": ("epsilon", (0.0, 1e-3), "epsilon2 is {}, not {}"),
    "beta2_decay": ("beta2_decay", (-0.8, -1.0, -0.5), "the decay of beta2 is {}, not {}"),
    "clip_threshold": ("clip_threshold", (1.0, 2.0, np.inf), "the clipping threshold of updates is {}, not {}"),
    "ns_steps": ("ns_steps", (5, 6, 10), "{} Newton-Schulz iterations are made, not {}"),
    "rate_adjustment": (
        "rate_adjustment",
        ("original", "match_rms_adamw", "none"),
        "the learning rates of matrices are adjusted as {}, not as {}",
    ),
    "momentum_decay": ("momentum_decay", (0.004, 1.0), "the momentum decay is {}, not {}"),
}
# Keys whose null stands for the default of the semantics. Null of another key means that the optimizer lacks the key.
NULL_IS_A_DEFAULT = ("initial_accumulator", "momentum_decay", "rate_adjustment")


@dataclass(frozen=True)
class RuleUpdate:
    """One update of a run, and the gradients of its shards.

    Attributes:
        settings: The settings of the optimizer.
        rates: The learning rates around the step.
        number: The number of the update, from 1.
        replicas: Number of replicas.
        weights_before: Weights before the update, by parameter.
        weights_after: Weights after the update.
        slots_before: Slots before the update, by "slot.parameter".
        slots_after: Slots after the update.
        gradients: The sum of the shards' gradients, before clipping.
    """

    settings: OptimizerSettings
    rates: UpdateSettings
    number: int
    replicas: int
    weights_before: Arrays
    weights_after: Arrays
    slots_before: Arrays
    slots_after: Arrays
    gradients: Arrays


@dataclass(frozen=True)
class RuleVariant:
    """The rule of an update, or a variant of it that stands for a fault.

    Attributes:
        settings: The settings of the optimizer.
        rate: The learning rate.
        scale: Factor of the gradients.
        cause: Name of the fault; empty for the config's rule.
        sentence: Description of what differs from the config.
    """

    settings: OptimizerSettings
    rate: float
    scale: float = 1.0
    cause: str = ""
    sentence: str = ""


def measure_errors(variant: RuleVariant, update: RuleUpdate) -> dict[str, float]:
    """Return the relative errors of the rule: of "update", which is the change of the weights, and of each slot."""
    settings = variant.settings
    rule = build_rule(settings)
    groups = assign_groups(settings.groups, settings.weight_decay, {n: x.shape for n, x in update.gradients.items()})
    changes: dict[str, np.ndarray] = {}
    slots: dict[str, np.ndarray] = {}
    for name, gradient in _clip(settings, update.gradients, variant.scale).items():
        group, shapes = groups[name], settings.list_slots(name, gradient.shape)
        initial = {slot: np.full(shape, settings.initial_slot_value) for slot, shape in shapes.items()}
        before = [update.slots_before.get(f"{slot}.{name}", array) for slot, array in initial.items()]
        if update.number == 1:
            before = [*initial.values()]
        rate = variant.rate * group.learning_rate_scale
        scalars = rule.compute_scalars(rate, group.weight_decay, update.number)
        with np.errstate(divide="ignore", invalid="ignore"):  # an epsilon of 0 and a gradient of 0
            weight, layout = update.weights_before[name], settings.find_layout(name)
            changes[name], after = rule.compute(np, weight, gradient, before, scalars, layout)
        slots |= {f"{slot}.{name}": array for slot, array in zip(shapes, after, strict=True)}
    actual = {name: update.weights_after[name] - update.weights_before[name] for name in changes}
    errors = {"update": _compare(changes, actual)}
    for slot in update.settings.slots:
        names = [name for name in slots if name.partition(".")[0] == slot]
        if names and all(name in update.slots_after for name in names):
            errors[slot] = _compare({n: slots[n] for n in names}, {n: update.slots_after[n] for n in names})
    return errors


def _compare(expected: Arrays, actual: Arrays) -> float:
    a, b = (np.concatenate([np.ravel(arrays[name]) for name in expected]) for arrays in (expected, actual))
    return relative_difference(a, b) if np.isfinite(a).all() else np.inf


def _clip(settings: OptimizerSettings, gradients: Arrays, scale: float) -> dict[str, np.ndarray]:
    """Return the gradients after scaling and clipping."""
    scaled = {name: gradient * scale for name, gradient in gradients.items()}
    if settings.clip_value is not None:
        return {name: np.clip(gradient, -settings.clip_value, settings.clip_value) for name, gradient in scaled.items()}
    norms = dict.fromkeys(scaled, global_norm(scaled))
    if settings.clip_norm is not None:
        norms = {name: float(np.linalg.norm(gradient)) for name, gradient in scaled.items()}
    largest = settings.max_grad_norm if settings.clip_norm is None else settings.clip_norm
    if largest is None:
        return scaled
    if settings.semantics == "keras":
        return {name: gradient * (largest / max(norms[name], largest)) for name, gradient in scaled.items()}
    return {name: gradient * clip_factor(norms[name], largest) for name, gradient in scaled.items()}


def find_rule_variant(update: RuleUpdate) -> RuleVariant | None:
    """Return the variant that explains an update, or None."""
    configured = RuleVariant(update.settings, update.rates.rate)
    initial = min(1.0, _worst(configured, update))
    best = min(list_rule_variants(update), key=lambda variant: _worst(variant, update))
    return best if _worst(best, update) <= initial * EXPLAINED_SHARE else None


def _worst(variant: RuleVariant, update: RuleUpdate) -> float:
    return max(measure_errors(variant, update).values())


def list_rule_variants(update: RuleUpdate) -> Iterator[RuleVariant]:
    """Yield the variants of the config's rule, each with one change."""
    settings, rate, replicas = update.settings, update.rates.rate, update.replicas
    for cause, other_rate, sentence in list_rates(update.rates, replicas):
        yield RuleVariant(settings, other_rate, 1.0, cause, sentence)
    if replicas > 1:
        sentence = f"the gradients are {replicas} times as large: summed where they should be averaged, or twice"
        yield RuleVariant(settings, rate, replicas, "not_averaged", sentence)
        sentence = f"the gradients are divided by the {replicas} replicas once more"
        yield RuleVariant(settings, rate, 1 / replicas, "averaged_twice", sentence)
    for other, cause, sentence in (*_vary_values(settings), *_vary_clipping(settings), *_vary_decay(settings)):
        yield RuleVariant(other, rate, 1.0, cause, sentence)
    semantics = "aligned" if settings.semantics == "keras" else "keras"
    if not settings.uses_layout and (semantics == "aligned" or not getattr(settings, "dampening", 0)):
        title, own = ("Keras", "PyTorch") if semantics == "keras" else ("PyTorch", "Keras")
        sentence = f"the update is that of {title}, not of {own}"
        yield RuleVariant(replace(settings, semantics=semantics), rate, 1.0, "optimizer", sentence)


Change = tuple[OptimizerSettings, str, str]  # other settings, the cause and the sentence


def _vary_values(settings: OptimizerSettings) -> Iterator[Change]:
    keys = {field.name for field in fields(settings)}
    for key, (cause, values, sentence) in OTHER_VALUES.items():
        configured = getattr(settings, key, None)
        if key not in keys or (configured is None and key not in NULL_IS_A_DEFAULT):
            continue
        for value in values:
            if value != configured:
                yield _set(settings, key, value), cause, sentence.format(value, configured)


def _set(settings: OptimizerSettings, key: str, value: object) -> OptimizerSettings:
    values: dict[str, Any] = {key: value}
    return replace(settings, **values)


def _vary_clipping(settings: OptimizerSettings) -> Iterator[Change]:
    limit = next((x for x in (settings.max_grad_norm, settings.clip_norm, settings.clip_value) if x is not None), None)
    if limit is None:
        return
    plain = replace(settings, max_grad_norm=None, clip_norm=None, clip_value=None)
    yield plain, "not_clipped", "the gradients are not clipped"
    others: Sequence[tuple[str, str, str]] = (
        ("max_grad_norm", "clipping", "the gradients are clipped by the norm of all of them"),
        ("clip_norm", "clipped_per_variable", "each gradient is clipped by its own norm"),
        ("clip_value", "clipped_by_value", "the gradients are clipped by value"),
    )
    for key, cause, sentence in others:
        if getattr(settings, key) is None:
            yield _set(plain, key, limit), cause, sentence


def _vary_decay(settings: OptimizerSettings) -> Iterator[Change]:
    decay = settings.weight_decay
    if not decay:
        for other in (0.01, 0.001, 0.0001, 0.004, 0.1):
            yield replace(settings, weight_decay=other), "weight_decay", f"the weight decay is {other:g}, not 0"
        return
    yield replace(settings, weight_decay=0.0), "no_weight_decay", "the weights do not decay"
    yield replace(settings, weight_decay=2 * decay), "weight_decay_twice", "the weights decay twice as much"
    if settings.groups:
        sentence = "the parameter groups are not applied"
        yield replace(settings, groups=[]), "weight_decay_on_biases", sentence
