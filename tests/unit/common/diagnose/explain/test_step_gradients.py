"""Gradients that are recovered from the slots of an optimizer."""

from dataclasses import replace

import numpy as np
import pytest

from common.config.compose import parse_config
from common.diagnose.explain.step_gradients import recover_gradients
from common.diagnose.explain.update_settings import read_update_settings
from tests.conftest import Compose
from tests.unit.common.diagnose.parameters import add_prefix, draw_parameters


@pytest.mark.parametrize(
    ("kind", "slot", "decay", "share"), [("adamw", "exp_avg", 0.9, 0.1), ("sgd", "momentum_buffer", 0.9, 1)]
)
def test_gradients_are_recovered(kind: str, slot: str, decay: float, share: float, composed: Compose) -> None:
    config = parse_config(composed("schedule=constant", "schedule.warmup_steps=0"))
    config = replace(config, optimizer=replace(config.optimizer, kind=kind, momentum=0.9, weight_decay=0.0))
    gradients, old = draw_parameters(0), draw_parameters(3)
    new = {name: decay * old[name] + share * gradient for name, gradient in gradients.items()}
    recovered = recover_gradients(
        read_update_settings(config, 2), add_prefix(slot, old), add_prefix(slot, new), draw_parameters(7)
    )
    assert all(np.allclose(recovered[name], gradient, rtol=1e-12) for name, gradient in gradients.items())
