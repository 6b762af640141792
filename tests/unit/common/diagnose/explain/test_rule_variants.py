"""Tests of the explanation of updates by the rule of their optimizer, with planted mistakes."""

from dataclasses import replace

import numpy as np
import pytest

from common.config.optimizer_settings import OptimizerSettings
from common.config.optimizers import OPTIMIZERS
from common.diagnose.explain.rule_variants import RuleUpdate, RuleVariant, find_rule_variant, measure_errors
from common.diagnose.explain.update_settings import UpdateSettings
from common.training.optimizer_rules import build_rule
from tests.unit.common.training.test_optimizer_rules import make_settings

Arrays = dict[str, np.ndarray]
RATE, REPLICAS = 0.1, 2
RATES = UpdateSettings("sgd", "float64", RATE, previous_rate=0.05, next_rate=0.15, base_rate=0.4)
MOMENTUM = {"momentum": 0.875}
KERAS: dict[str, object] = {"semantics": "keras", "keras_layouts": {"a.weight": "transpose 1 0"}}


def train(settings: OptimizerSettings, faulty: OptimizerSettings, number: int = 1, scale: float = 1.0) -> RuleUpdate:
    """Return one update by a faulty optimizer, of a run whose config has `settings`."""
    stream = np.random.default_rng(number)
    gradients = {name: stream.normal(0, 0.1, shape) for name, shape in (("a.weight", (3, 2)), ("a.bias", (3,)))}
    weights = {name: stream.normal(0, 1, array.shape) for name, array in gradients.items()}
    rule = build_rule(faulty)
    before: Arrays = {}
    after: Arrays = {}
    slots: Arrays = {}
    for name, gradient in gradients.items():
        shapes, initial = faulty.list_slots(name, gradient.shape), faulty.initial_slot_value
        slots_before = {
            slot: np.abs(stream.normal(0, 0.1, shape)) + 0.05
            for slot, shape in settings.list_slots(name, gradient.shape).items()
        }
        if number == 1:
            slots_before = {slot: np.full(shape, initial) for slot, shape in shapes.items()}
        old = [slots_before[slot] for slot in shapes]
        scalars, layout = rule.compute_scalars(RATE, faulty.weight_decay, number), faulty.find_layout(name)
        change, new = rule.compute(np, weights[name], gradient * scale, old, scalars, layout)
        before |= {f"{slot}.{name}": array for slot, array in slots_before.items()}
        slots |= {f"{slot}.{name}": array for slot, array in zip(shapes, new, strict=True)}
        after[name] = weights[name] + change
    return RuleUpdate(settings, RATES, number, REPLICAS, weights, after, before, slots, gradients)


FAULTS: list[tuple[str, dict[str, object], dict[str, object], str]] = [
    ("sgd", {**MOMENTUM, "nesterov": True}, {"nesterov": False}, "nesterov"),
    ("sgd", {**MOMENTUM, "nesterov": True}, {"weight_decay": 0.0}, "no_weight_decay"),
    ("adam", {"amsgrad": True}, {"amsgrad": False}, "amsgrad"),
    ("adam", {"amsgrad": True}, {"beta2": 0.999}, "betas"),
    ("rmsprop", {}, {"rho": 0.9}, "rho"),
    ("rmsprop", {"centered": True}, {"centered": False}, "centered"),
    ("rmsprop", {}, {"semantics": "keras"}, "optimizer"),
    ("adagrad", {}, {"initial_accumulator": 0.1}, "initial_accumulator_value"),
    ("adagrad", {}, {"epsilon": 1e-7}, "epsilon"),
    ("adadelta", {}, {"rho": 0.95}, "rho"),
    ("adadelta", {}, {"epsilon": 1e-6}, "epsilon"),
    ("adamax", {}, {"weight_decay": 0.0}, "no_weight_decay"),
    ("adamax", {}, {"beta1": 0.9}, "betas"),
    ("nadam", {}, {"momentum_decay": 1.0}, "momentum_decay"),
    ("nadam", {}, {"weight_decay": 2**-4}, "weight_decay_twice"),
    ("adafactor", {}, {"clip_threshold": 1.0}, "clip_threshold"),
    ("adafactor", {}, {"beta2_decay": -0.8}, "beta2_decay"),
    ("adafactor", {}, {"weight_decay": 0.0}, "no_weight_decay"),
    ("muon", {"ns_steps": 6}, {"ns_steps": 5}, "ns_steps"),
    ("muon", {}, {"rate_adjustment": "match_rms_adamw"}, "rate_adjustment"),
    ("muon", {}, {"beta2": 0.999}, "betas"),
    ("adafactor", KERAS, {"beta2_decay": -0.8}, "beta2_decay"),
    ("adafactor", KERAS, {"weight_decay": 0.0}, "no_weight_decay"),
    ("muon", KERAS, {"rate_adjustment": "none"}, "rate_adjustment"),
    ("muon", KERAS, {"nesterov": False}, "nesterov"),
]


@pytest.mark.parametrize("number", [1, 7])
@pytest.mark.parametrize(("kind", "options", "fault", "cause"), FAULTS)
def test_fault_is_named(
    kind: str, options: dict[str, object], fault: dict[str, object], cause: str, number: int
) -> None:
    settings = replace(make_settings(kind, "aligned"), **options)  # type: ignore[arg-type]
    faulty = replace(settings, **fault)  # type: ignore[arg-type]
    if (number == 1 and cause in ("amsgrad", "centered", "nesterov", "beta2_decay")) or (
        number > 1 and cause in ("initial_accumulator_value", "clip_threshold")
    ):
        pytest.skip("the fault does not change this update, or others change it in the same way")
    update = train(settings, faulty, number)
    variant = find_rule_variant(update)
    assert variant is not None and variant.cause == cause, variant


@pytest.mark.parametrize(("scale", "cause"), [(2.0, "not_averaged"), (0.5, "averaged_twice")])
def test_wrong_sum_is_named(scale: float, cause: str) -> None:
    settings = make_settings("rmsprop", "aligned")
    variant = find_rule_variant(train(settings, settings, 5, scale))
    assert variant is not None and variant.cause == cause


@pytest.mark.parametrize(
    ("kind", "semantics"),
    [(kind, semantics) for kind in OPTIMIZERS for semantics in ("aligned", "keras")],
)
def test_right_update_has_no_error(kind: str, semantics: str) -> None:
    settings = make_settings(kind, semantics)
    errors = measure_errors(RuleVariant(settings, RATE), train(settings, settings, 3))
    assert {"update", *settings.slots} == errors.keys() and max(errors.values()) < 1e-12


def test_unknown_fault_is_not_explained() -> None:
    settings = make_settings("rmsprop", "aligned")
    assert find_rule_variant(train(settings, replace(settings, rho=0.123))) is None  # type: ignore[call-arg]
