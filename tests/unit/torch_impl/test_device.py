"""Tests that a replica computes on its own device only, and that a step never waits for it.

There is no GPU: a simulated device computes on the CPU.
"""

import json
from pathlib import Path

import pytest

from common.errors import UserError
from tests.conftest import Python
from torch_impl import device

pytestmark = pytest.mark.slow

# The process keeps the simulated device.
TRAIN = "from tests.unit.torch_impl.train_on_simulated_device import main; main()"
TOLERANCE = 1e-5  # some operations have other formulas on another device


def test_every_strategy_and_example_computes_on_its_device_without_waiting(python: Python, tmp_path: Path) -> None:
    report = json.loads(python(TRAIN, tmp_path))
    for name, result in report.items():
        if name.startswith("waits"):
            assert result == [], (name, result)
        elif name == "planted wait":
            assert "aten._to_copy.default" in result
        elif name.startswith("planted"):
            assert "at least two devices" in result, (name, result)
        else:
            assert isinstance(result, float) and result < TOLERANCE, (name, result)
    assert len(report) == 34


def test_a_framework_without_gpus_is_refused_if_the_run_wants_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device, "count_visible_gpus", lambda: 0)
    for wanted in ("auto", "cpu"):
        assert [str(selected) for selected in device.select_replica_devices(2, wanted)] == ["cpu", "cpu"]
    with pytest.raises(UserError, match=r"^train\.device=cuda: there is no visible NVIDIA GPU; set it to auto or cpu$"):
        device.select_replica_devices(2, "cuda")
    monkeypatch.setattr(device, "count_visible_gpus", lambda: 1)
    with pytest.raises(UserError, match=r"^this PyTorch cannot use the visible GPU\(s\); set train\.device=cpu or "):
        device.select_replica_devices(2, "auto")
