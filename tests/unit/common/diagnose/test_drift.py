"""The distance that rounding moves weights in a few steps."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from common.config.compose import parse_config
from common.config.schema import Config
from common.diagnose.drift import RoundingDrift
from common.training.schedule import compute_learning_rate
from tests.conftest import Compose

GRADIENTS, NOISE = {"weight": np.ones(4)}, {"weight": 2e-7}


@pytest.fixture(scope="module")
def config(composed: Compose) -> Config:
    return parse_config(composed("schedule=constant", "schedule.warmup_steps=0"))


def make_run(config: Config, second_moments: list[np.ndarray]) -> Any:
    """Return a run whose weights have the norm 4, with Adam's second moment after each step."""
    weights = {"weight": np.full(4, 2.0), "norm.running_mean": np.ones(4)}
    states = [SimpleNamespace(weights=weights, slots={})]
    states += [SimpleNamespace(weights=weights, slots={"exp_avg_sq.weight": moment}) for moment in second_moments]
    batches = [SimpleNamespace(step=step) for step in range(1, len(second_moments) + 1)]
    return SimpleNamespace(config=config, batches=batches, states=states)


def test_an_element_that_holds_only_rounding_moves_by_the_learning_rate(config: Config) -> None:
    squares = np.array([1e-20, 1.0, 1.0, 0.0])
    drift = RoundingDrift(make_run(config, [0.001 * squares, 0.001999 * squares]), GRADIENTS, NOISE)
    rate = compute_learning_rate(config, 1)
    assert drift.compute_weight_drift(0, "weight") == 0.0
    assert drift.compute_weight_drift(1, "weight") == pytest.approx(rate / 4.0, rel=0.1), "one of four elements moves"
    assert drift.compute_weight_drift(2, "weight") == pytest.approx(
        2 * drift.compute_weight_drift(1, "weight"), rel=0.1
    )
    assert drift.compute_weight_drift(1, "norm.running_mean") == drift.compute_weight_drift(1, "weight")
    assert drift.compute_loss_drift(1, 0.5) == pytest.approx(2.0 * rate / 0.5, rel=0.1)


def test_other_elements_move_by_their_share_of_rounding(config: Config) -> None:
    drift = RoundingDrift(make_run(config, [0.001 * np.ones(4)]), GRADIENTS, NOISE)
    assert drift.compute_weight_drift(1, "weight") == pytest.approx(
        compute_learning_rate(config, 1) * 2e-7 / 4.0, rel=1e-3
    )


def test_steps_of_adafactor_are_relative_to_the_weights(composed: Compose) -> None:
    overrides = ("optimizer=adafactor", "optimizer.epsilon=1e-7", "schedule=constant", "schedule.warmup_steps=0")
    config = parse_config(composed(*overrides))
    weights = {"weight": np.full((2, 2), 3.0)}
    slots = {"row_var.weight": np.array([[0.25], [0.75]]), "col_var.weight": np.array([[0.5, 0.5]])}
    states = [SimpleNamespace(weights=weights, slots={}), SimpleNamespace(weights=weights, slots=slots)]
    run: Any = SimpleNamespace(config=config, batches=[SimpleNamespace(step=1)], states=states)
    drift = RoundingDrift(run, {"weight": np.ones((2, 2))}, NOISE)
    changes = 3.0 * 1e-7 / np.sqrt([0.25, 0.25, 0.75, 0.75])  # variances: rows x columns / mean of rows
    expected = compute_learning_rate(config, 1) * float(np.linalg.norm(changes)) / 6.0
    assert drift.compute_weight_drift(1, "weight") == pytest.approx(expected, rel=1e-3)


def test_gradients_that_are_rounding_move_weights_by_keras_adafactor(composed: Compose) -> None:
    overrides = ("optimizer=adafactor", "optimizer.semantics=keras", "schedule=constant", "schedule.warmup_steps=0")
    config = parse_config(composed(*overrides))
    config = replace(config, optimizer=config.optimizer.resolve(1e-7))
    weights, squares = {"weight": np.full((2, 2), 3.0)}, np.full((2, 2), 1e-24, np.float32)
    slots = {"row_var.weight": squares[:, :1], "col_var.weight": squares[:1]}
    states = [SimpleNamespace(weights=weights, slots={}), SimpleNamespace(weights=weights, slots=slots)]
    run: Any = SimpleNamespace(config=config, batches=[SimpleNamespace(step=1)], states=states)
    drift = RoundingDrift(run, {"weight": np.ones((2, 2))}, {"weight": 2e-12})
    assert drift.compute_weight_drift(1, "weight") == pytest.approx(compute_learning_rate(config, 1), rel=1e-3)
