"""Initial checkpoints: of a small model with random weights, and of a pretrained one."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from common.models.initial_weights import InitialCheckpoint
from common.run.prepare import prepare_inputs
from tests.conftest import MakeConfig

Open = Callable[..., InitialCheckpoint]


@pytest.fixture
def drawn(small_config: MakeConfig) -> Open:
    """The initial checkpoint of a small model with random weights."""
    return lambda *overrides: prepare_inputs(small_config(*overrides), None)[1].initial


@pytest.fixture
def pretrained(make_config: MakeConfig, old_checkpoint: Path) -> Open:
    """The initial checkpoint made from a pretrained one."""
    overrides = ("data.train_examples=60", "data.validation_examples=12", "train.max_length=32")
    model = ("model=pretrained", f"model.checkpoint={old_checkpoint}")
    return lambda *more: prepare_inputs(make_config(*overrides, *model, *more), None)[1].initial


def equal(first: dict[str, np.ndarray], second: dict[str, np.ndarray]) -> set[str]:
    """Names under which both have the same values."""
    return {name for name in first.keys() & second.keys() if np.array_equal(first[name], second[name])}
