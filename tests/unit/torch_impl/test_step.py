"""Tests of the parts of a step that its strategies share."""

import traceback

import pytest
import torch

from tests.conftest import MakeConfig
from torch_impl.step import seed_dropout


def test_native_dropout_depends_on_the_step_and_the_replica(small_config: MakeConfig) -> None:
    config, masks = small_config(), []
    for step, replica in ((1, 0), (2, 0), (2, 1), (2, 0)):
        torch.rand(step)
        seed_dropout(config, step, replica)
        masks.append(torch.nn.functional.dropout(torch.ones(64)).tolist())
    assert masks[1] == masks[3] and masks[0] != masks[1] != masks[2]


def test_a_seed_stores_no_stack_traces(small_config: MakeConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(traceback, "format_stack", lambda: pytest.fail("each kind of device stores a stack trace"))
    seed_dropout(small_config(), 1)
