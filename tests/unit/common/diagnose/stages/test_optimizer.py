"""Updates against the formula of the config."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from common.config.compose import parse_config
from common.config.schema import Config
from common.diagnose.explain.update_formula import OptimizerUpdate, UpdateFormula
from common.diagnose.explain.update_settings import BEFORE_CORRECTION, read_update_settings
from common.diagnose.findings import Stage
from common.diagnose.stages.optimizer import compare_optimizer
from common.training.schedule import compute_learning_rate
from tests.conftest import Compose
from tests.unit.common.diagnose.parameters import add_prefix, draw_parameters, multiply, round_to_float32

BETAS, DECAY, STEP = (0.9, 0.999), 0.01, 2


@pytest.fixture(scope="module")
def config(composed: Compose) -> Config:
    overrides = ("schedule=linear", "schedule.warmup_steps=6", "schedule.total_steps=50")
    return parse_config(composed("train.precision=float64", *overrides))


@pytest.fixture(scope="module")
def formula(config: Config) -> UpdateFormula:
    """Return the correct formula."""
    return UpdateFormula("adam", compute_learning_rate(config, STEP), 1e-8, decay=DECAY)


def make_update(formula: UpdateFormula, config: Config, replicas: int = 3) -> OptimizerUpdate:
    """Return the second update of Adam by a formula. Some gradients are as small as epsilon."""
    weights = draw_parameters(1)
    gradients = {"weight": draw_parameters(2, 1e-3)["weight"], "bias": draw_parameters(3, 1e-6)["bias"]}
    old = draw_parameters(4, 1e-6)
    first = {name: 0.1 * gradient for name, gradient in old.items()}
    second = {name: 0.001 * gradient**2 for name, gradient in old.items()}
    new_first = {name: 0.9 * first[name] + 0.1 * gradient for name, gradient in gradients.items()}
    new_second = {name: 0.999 * second[name] + 0.001 * gradient**2 for name, gradient in gradients.items()}
    slots = add_prefix("exp_avg", first) | add_prefix("exp_avg_sq", second)
    new_slots = add_prefix("exp_avg", new_first) | add_prefix("exp_avg_sq", new_second)
    changes = formula.compute_changes(weights, new_slots, BETAS, STEP)
    new_weights = {name: weight + changes[name] for name, weight in weights.items()}
    settings = read_update_settings(config, STEP)
    return OptimizerUpdate(settings, STEP, replicas, weights, new_weights, slots, new_slots, gradients)


def compare(update: OptimizerUpdate) -> Stage:
    stage = Stage("optimizer")
    compare_optimizer(stage, "b", update)
    return stage


def list_causes(update: OptimizerUpdate) -> list[str]:
    return [known.cause for known in compare(update).causes]


Fault = Callable[[UpdateFormula, Config], UpdateFormula]
FAULTS: dict[str, Fault] = {
    "epsilon": lambda formula, config: replace(formula, epsilon=1e-7),
    "epsilon_place": lambda formula, config: replace(formula, epsilon_place=BEFORE_CORRECTION),
    "bias_correction": lambda formula, config: replace(formula, has_bias_correction=False),
    "no_weight_decay": lambda formula, config: replace(formula, decay=0.0),
    "weight_decay_on_biases": lambda formula, config: replace(formula, decays_vectors=False),
    "weight_decay_twice": lambda formula, config: replace(formula, decay=2 * DECAY),
    "weight_decay": lambda formula, config: replace(formula, decay=0.004),
    "weight_decay_without_rate": lambda formula, config: replace(formula, decay=DECAY / formula.rate),
    "learning_rate_scaled": lambda formula, config: replace(formula, rate=5 * formula.rate),
    "learning_rate_divided": lambda formula, config: replace(formula, rate=formula.rate / 3),
    "learning_rate_root": lambda formula, config: replace(formula, rate=3**0.5 * formula.rate),
    "schedule_late": lambda formula, config: replace(formula, rate=compute_learning_rate(config, 1)),
    "schedule_early": lambda formula, config: replace(formula, rate=compute_learning_rate(config, 3)),
    "no_schedule": lambda formula, config: replace(formula, rate=config.optimizer.learning_rate),
}
# With three replicas these would also be a constant rate, or a scaled one: step 2 of 6 warm-up steps has a third of it.
REPLICAS = {"learning_rate_scaled": 5, "no_schedule": 7}


@pytest.mark.parametrize("cause", FAULTS)
def test_a_fault_is_named(cause: str, formula: UpdateFormula, config: Config) -> None:
    stage = compare(make_update(FAULTS[cause](formula, config), config, REPLICAS.get(cause, 3)))
    assert [(known.cause, known.side) for known in stage.causes] == [(cause, "b")]
    assert stage.verdict == "differs"


def test_the_three_differences_of_keras_adamw_are_named(formula: UpdateFormula, config: Config) -> None:
    keras_formula = replace(formula, epsilon_place=BEFORE_CORRECTION, epsilon=1e-7, decay=0.004)
    assert {*list_causes(make_update(keras_formula, config))} == {"epsilon", "epsilon_place", "weight_decay"}


def test_a_correct_update_has_no_cause(formula: UpdateFormula, config: Config) -> None:
    stage = compare(make_update(formula, config))
    assert stage.verdict == "equal" and not stage.causes


@pytest.mark.parametrize("fault", [None, "epsilon"])
def test_the_rounding_of_float32_weights_is_no_fault(fault: str | None, formula: UpdateFormula, config: Config) -> None:
    if fault:
        formula = replace(formula, epsilon=1e-3)
    update = make_update(formula, replace(config, train=replace(config.train, precision="float32")))
    rounded = replace(
        update,
        weights_before=round_to_float32({**update.weights_before}),
        weights_after=round_to_float32({**update.weights_after}),
        slots_before=round_to_float32({**update.slots_before}),
        slots_after=round_to_float32({**update.slots_after}),
    )
    assert list_causes(rounded) == ([fault] if fault else [])


def test_a_second_moment_of_another_beta_is_named(formula: UpdateFormula, config: Config) -> None:
    update = make_update(formula, config)
    empty = {name: np.zeros_like(slot) for name, slot in update.slots_before.items()}
    gradients = {**update.gradients}
    squares = {name: 0.01 * gradient**2 for name, gradient in gradients.items()}
    slots = add_prefix("exp_avg", multiply(gradients, 0.1)) | add_prefix("exp_avg_sq", squares)
    stage = compare(replace(update, step=1, slots_before=empty, slots_after=slots))
    assert stage.causes[0].cause == "beta2" and "beta2=0.99" in stage.causes[0].sentence


def test_a_constant_in_float32_is_no_other_beta(formula: UpdateFormula, config: Config) -> None:
    update = make_update(formula, config)
    rounded = 1 - float(np.float32(BETAS[1]))  # 1.3e-5 off: PyTorch's fused Adam on a GPU
    slots = {**update.slots_after}
    for name, gradient in update.gradients.items():
        slots[f"exp_avg_sq.{name}"] = slots[f"exp_avg_sq.{name}"] + (rounded - (1 - BETAS[1])) * gradient**2
    changes = formula.compute_changes(update.weights_before, slots, BETAS, STEP)
    weights = {name: weight + changes[name] for name, weight in update.weights_before.items()}
    assert not list_causes(replace(update, slots_after=slots, weights_after=weights))


def test_a_parameter_that_is_not_updated_is_named(formula: UpdateFormula, config: Config) -> None:
    update = make_update(formula, config)
    weights = {**update.weights_after, "bias": update.weights_before["bias"]}
    stage = compare(replace(update, weights_after=weights))
    assert [(known.cause, known.tensor) for known in stage.causes] == [("not_updated", "bias")]


def test_an_update_at_a_rate_of_zero_is_a_late_schedule(formula: UpdateFormula, config: Config) -> None:
    update = make_update(formula, config)
    settings = read_update_settings(config, 1)
    unchanged = replace(update, settings=settings, step=1, weights_after=update.weights_before)
    assert list_causes(unchanged)[-1] == "schedule_late"
