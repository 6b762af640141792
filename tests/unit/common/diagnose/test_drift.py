"""What rounding does to weights in a few steps."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from common.config.compose import parse_config
from common.config.schema import Config
from common.diagnose.drift import Drift
from common.training.schedule import compute_learning_rate
from tests.conftest import Compose


@pytest.fixture(scope="module")
def config(composed: Compose) -> Config:
    return parse_config(composed("schedule=constant", "schedule.warmup_steps=0"))


def run(config: Config, seconds: list[np.ndarray]) -> Any:
    weights = {"weight": np.full(4, 2.0), "norm.running_mean": np.ones(4)}
    states = [SimpleNamespace(weights=weights, slots={})]
    states += [SimpleNamespace(weights=weights, slots={"exp_avg_sq.weight": each}) for each in seconds]
    batches = [SimpleNamespace(step=step) for step in range(1, len(seconds) + 1)]
    return SimpleNamespace(config=config, batches=batches, states=states)


def test_an_element_that_is_nothing_but_rounding_moves_by_the_learning_rate(config: Config) -> None:
    first, second = 0.001 * np.array([1e-20, 1.0, 1.0, 0.0]), 0.001999 * np.array([1e-20, 1.0, 1.0, 0.0])
    drift = Drift(run(config, [first, second]), {"weight": np.ones(4)}, {"weight": 2e-7})
    rate = compute_learning_rate(config, 1)
    assert drift.of(0, "weight") == 0.0
    assert drift.of(1, "weight") == pytest.approx(rate / 4.0, rel=0.1), "of 1 element of 4, whose norm is 4"
    assert drift.of(2, "weight") == pytest.approx(2 * drift.of(1, "weight"), rel=0.1)
    assert drift.of(1, "norm.running_mean") == drift.of(1, "weight")
    assert drift.of_loss(1, 0.5) == pytest.approx(2.0 * rate / 0.5, rel=0.1)


def test_ordinary_elements_move_by_their_part_of_rounding(config: Config) -> None:
    drift = Drift(run(config, [0.001 * np.ones(4)]), {"weight": np.ones(4)}, {"weight": 2e-7})
    assert drift.of(1, "weight") == pytest.approx(compute_learning_rate(config, 1) * 2e-7 / 4.0, rel=1e-3)
