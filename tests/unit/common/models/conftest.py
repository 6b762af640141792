"""Initial checkpoints of a small model with random weights and of a pretrained model."""

from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import pytest

from common.models.initial_weights import InitialCheckpoint
from common.run.prepare import prepare_inputs
from tests.conftest import SMALL_CORPUS, MakeConfig

OpenInitial = Callable[..., InitialCheckpoint]


@pytest.fixture
def open_random(small_config: MakeConfig) -> OpenInitial:
    """Open the initial checkpoint of a small model with random weights."""
    return lambda *overrides: prepare_inputs(small_config(*overrides), None)[1].initial


@pytest.fixture
def open_pretrained(make_config: MakeConfig, old_checkpoint: Path) -> OpenInitial:
    """Open the initial checkpoint of a pretrained model."""
    model = ("model=pretrained", f"model.checkpoint={old_checkpoint}", "train.max_length=32")
    return lambda *overrides: prepare_inputs(make_config(*SMALL_CORPUS, *model, *overrides), None)[1].initial


def list_equal_parameters(first: Mapping[str, np.ndarray], second: Mapping[str, np.ndarray]) -> set[str]:
    """Return the names of the parameters that have the same values in both."""
    return {name for name in first.keys() & second.keys() if np.array_equal(first[name], second[name])}
