"""The schedules of Lockstep and of Keras."""

from dataclasses import replace
from typing import Any

import keras
import numpy as np
import pytest

from common.config.compose import parse_config
from common.config.schedules import SCHEDULES
from common.training.schedule import compute_learning_rate
from tests.conftest import Compose

BASE = 0.3
STEPS = 45
# Keras's schedule with its arguments; our kind with our keys. Update s is Keras's step s - 1.
KERAS_PAIRS: list[tuple[str, dict[str, Any], str, int, dict[str, Any]]] = [
    ("CosineDecay", {"decay_steps": 20, "alpha": 0.1}, "cosine", 20, {"end_factor": 0.1}),
    (
        "CosineDecayRestarts",
        {"first_decay_steps": 7, "t_mul": 1.7, "m_mul": 0.8, "alpha": 0.05},
        "cosine_restarts",
        1,
        {"first_cycle_steps": 7, "cycle_multiplier": 1.7, "peak_multiplier": 0.8, "end_factor": 0.05},
    ),
    (
        "CosineDecayRestarts",
        {"first_decay_steps": 7, "t_mul": 1.0, "m_mul": 0.8},
        "cosine_restarts",
        1,
        {"first_cycle_steps": 7, "cycle_multiplier": 1.0, "peak_multiplier": 0.8, "end_factor": 0.0},
    ),
    (
        "PolynomialDecay",
        {"decay_steps": 20, "end_learning_rate": 0.03, "power": 2.5},
        "polynomial",
        20,
        {"power": 2.5, "end_factor": 0.1},
    ),
    (
        "ExponentialDecay",
        {"decay_steps": 6, "decay_rate": 0.7},
        "exponential",
        1,
        {"gamma": 0.7, "decay_steps": 6},
    ),
    (
        "ExponentialDecay",
        {"decay_steps": 6, "decay_rate": 0.7, "staircase": True},
        "step",
        1,
        {"step_size": 6, "gamma": 0.7},
    ),
    (
        "PiecewiseConstantDecay",
        {"boundaries": [5, 9, 30], "values": [0.3, 0.15, 0.6, 0.03]},
        "piecewise",
        1,
        {"boundaries": [5, 9, 30], "factors": [1.0, 0.5, 2.0, 0.1]},
    ),
]


@pytest.mark.parametrize(("name", "arguments", "kind", "total", "keys"), KERAS_PAIRS)
def test_schedules_of_keras(
    composed: Compose, name: str, arguments: dict[str, Any], kind: str, total: int, keys: dict[str, Any]
) -> None:
    config = parse_config(composed())
    if kind == "cosine":
        keys = {"cycles": 1, **keys}
    schedule = SCHEDULES[kind](kind, 0, total, None, 1, **keys)
    config = replace(config, schedule=schedule, optimizer=replace(config.optimizer, learning_rate=BASE))
    rates = [compute_learning_rate(config, step) for step in range(1, STEPS + 1)]
    if "values" not in arguments:
        arguments = {"initial_learning_rate": BASE, **arguments}
    keras_schedule = getattr(keras.optimizers.schedules, name)(**{key: to_double(x) for key, x in arguments.items()})
    assert rates == pytest.approx([float(keras_schedule(step)) for step in range(STEPS)], rel=1e-12)


def to_double(value: Any) -> Any:
    """Return a value whose floats TensorFlow does not round to float32."""
    if isinstance(value, list):
        return [to_double(item) for item in value]
    return np.float64(value) if isinstance(value, float) else value
