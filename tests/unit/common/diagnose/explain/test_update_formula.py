"""What an update made of its gradients, as numbers."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from common.config.compose import parse_config
from common.config.schema import Config
from common.diagnose.explain.update_formula import Formula, Update, compare_update
from common.diagnose.findings import Stage
from common.training.schedule import compute_learning_rate
from tests.conftest import Compose

BETAS, DECAY, RATE = (0.9, 0.999), 0.01, 2e-4
Arrays = dict[str, np.ndarray]


@pytest.fixture(scope="module")
def config(composed: Compose) -> Config:
    return parse_config(
        composed("train.precision=float64", "schedule=linear", "schedule.warmup_steps=6", "schedule.total_steps=50")
    )


def drawn(seed: int, scale: float = 1.0) -> Arrays:
    stream = np.random.default_rng(seed)
    return {"weight": scale * stream.standard_normal((5, 7)), "bias": scale * stream.standard_normal(5)}


def update_by(formula: Formula, config: Config, step: int = 2, replicas: int = 3) -> Update:
    """An update of Adam that a formula makes. Some gradients are as small as epsilon."""
    before, gradients = drawn(1), {"weight": drawn(2, 1e-3)["weight"], "bias": drawn(3, 1e-6)["bias"]}
    last: Arrays = {}
    for name, each in drawn(4, 1e-3).items():
        last |= {f"exp_avg.{name}": 0.1 * each * 1e-3, f"exp_avg_sq.{name}": 0.001 * (each * 1e-3) ** 2}
    slots: Arrays = {}
    for name, each in gradients.items():
        slots[f"exp_avg.{name}"] = 0.9 * last[f"exp_avg.{name}"] + 0.1 * each
        slots[f"exp_avg_sq.{name}"] = 0.999 * last[f"exp_avg_sq.{name}"] + 0.001 * each**2
    changes = formula.update(before, slots, BETAS, step)
    after = {name: before[name] + changes[name] for name in before}
    return Update(config, step, replicas, before, after, last, slots, gradients)


def correct(config: Config) -> Formula:
    return Formula("adam", compute_learning_rate(config, 2), 1e-8, decay=DECAY)


FAULTS = {
    "epsilon": lambda formula, config: replace(formula, epsilon=1e-7),
    "epsilon_place": lambda formula, config: replace(formula, place="before the bias correction"),
    "bias_correction": lambda formula, config: replace(formula, corrected=False),
    "no_weight_decay": lambda formula, config: replace(formula, decay=0.0),
    "weight_decay_on_biases": lambda formula, config: replace(formula, decays_vectors=False),
    "weight_decay_twice": lambda formula, config: replace(formula, decay=2 * DECAY),
    "weight_decay": lambda formula, config: replace(formula, decay=0.004),
    "weight_decay_without_rate": lambda formula, config: replace(formula, decay=DECAY / formula.rate),
    "learning_rate_scaled": lambda formula, config: replace(formula, rate=3 * formula.rate),
    "learning_rate_divided": lambda formula, config: replace(formula, rate=formula.rate / 3),
    "learning_rate_root": lambda formula, config: replace(formula, rate=3**0.5 * formula.rate),
    "schedule_late": lambda formula, config: replace(formula, rate=compute_learning_rate(config, 1)),
    "schedule_early": lambda formula, config: replace(formula, rate=compute_learning_rate(config, 3)),
    "no_schedule": lambda formula, config: replace(formula, rate=config.optimizer.learning_rate),
}


@pytest.mark.parametrize("cause", FAULTS)
def test_a_fault_is_named(cause: str, config: Config) -> None:
    if cause == "learning_rate_scaled":  # by 3 it would be the rate without a schedule's warm-up at step 2 of 6
        replicas = 5
        formula = replace(correct(config), rate=5 * compute_learning_rate(config, 2))
    else:
        replicas, formula = 3 if cause != "no_schedule" else 7, FAULTS[cause](correct(config), config)
    stage = Stage("optimizer")
    compare_update(stage, "b", update_by(formula, config, replicas=replicas))
    assert [each.cause for each in stage.causes] == [cause]
    assert stage.causes[0].side == "b" and stage.verdict == "differs"


def test_three_differences_of_one_optimizer_are_all_named(config: Config) -> None:
    """Those of Keras's AdamW."""
    formula = replace(correct(config), place="before the bias correction", epsilon=1e-7, decay=0.004)
    stage = Stage("optimizer")
    compare_update(stage, "b", update_by(formula, config))
    assert {each.cause for each in stage.causes} == {"epsilon", "epsilon_place", "weight_decay"}


def test_a_correct_update_has_no_cause(config: Config) -> None:
    stage = Stage("optimizer")
    compare_update(stage, "a", update_by(correct(config), config))
    assert stage.verdict == "equal" and not stage.causes


@pytest.mark.parametrize("fault", [None, "epsilon"])
def test_an_update_of_float32_weights_is_judged_by_their_rounding(fault: str | None, config: Config) -> None:
    formula = FAULTS[fault](correct(config), config) if fault else correct(config)
    formula = replace(formula, epsilon=1e-3) if fault else formula
    single = replace(config, train=replace(config.train, precision="float32"))
    update = update_by(formula, single)
    parts: dict[str, Any] = {
        name: {each: array.astype(np.float32).astype(np.float64) for each, array in getattr(update, name).items()}
        for name in ("before", "after", "slots_before", "slots")
    }
    stage = Stage("optimizer")
    compare_update(stage, "a", replace(update, **parts))
    assert [each.cause for each in stage.causes] == ([fault] if fault else [])


def test_a_second_moment_of_another_beta_is_named(config: Config) -> None:
    update = update_by(correct(config), config)
    first = {name: np.zeros_like(each) for name, each in update.slots_before.items()}
    slots: Arrays = {}
    for name, each in update.gradients.items():
        slots |= {f"exp_avg.{name}": 0.1 * each, f"exp_avg_sq.{name}": 0.01 * each**2}
    stage = Stage("optimizer")
    compare_update(stage, "a", replace(update, step=1, slots_before=first, slots=slots))
    assert stage.causes[0].cause == "beta2" and "beta2=0.99" in stage.causes[0].sentence


def test_a_parameter_that_stays_is_named(config: Config) -> None:
    update = update_by(correct(config), config)
    stage = Stage("optimizer")
    compare_update(stage, "a", replace(update, after={**update.after, "bias": update.before["bias"]}))
    assert [(each.cause, each.tensor) for each in stage.causes] == [("not_updated", "bias")]


def test_an_update_at_a_rate_of_zero_is_a_late_schedule(config: Config) -> None:
    update = update_by(correct(config), config)
    stage = Stage("optimizer")
    compare_update(stage, "a", replace(update, step=1, after=update.before))
    assert [each.cause for each in stage.causes][-1] == "schedule_late"
