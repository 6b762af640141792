"""Tests of gradients that differ because a number before a ReLU has another sign by rounding."""

from pathlib import Path

import numpy as np
import pytest

from common.diagnose.recorded.walk import diagnose_records
from tests.unit.common.recording.numpy_script import Arrays, NumpyScript

ROW, UNIT = 2, 1  # of the number that is close to 0
MEASURED = 0.05  # of the gradient through that number that the test lets pass the ReLU


class NearKink(NumpyScript):
    """A script whose first layer returns a number that is not surely positive."""

    sign = 1.0
    shown = True  # whether the record shows the sign

    def forward(self, weights: Arrays, x: np.ndarray) -> Arrays:
        hidden = (x @ weights["fc1.weight"].T + weights["fc1.bias"]).astype(self.dtype)
        hidden[ROW, UNIT] = 1e-9 if self.shown is False else self.sign * 1e-9
        outputs = (self.activate(hidden) @ weights["fc2.weight"].T + weights["fc2.bias"]).astype(self.dtype)
        return {"fc1/input": x, "fc1/output": hidden, "fc2/input": self.activate(hidden), "fc2/output": outputs}

    def backward(self, weights: Arrays, calls: Arrays, outputs_gradient: np.ndarray) -> Arrays:
        gradients = super().backward(weights, {**calls, "fc1/output": np.abs(calls["fc1/output"])}, outputs_gradient)
        through = (outputs_gradient @ weights["fc2.weight"]) * (calls["fc1/output"] > 0)
        through[ROW, UNIT] = self.sign * MEASURED * np.abs(through).max()
        gradients["fc1.weight"] = (through.T @ calls["fc1/input"]).astype(self.dtype)
        gradients["fc1.bias"] = through.sum(0).astype(self.dtype)
        return gradients


class OtherSign(NearKink):
    sign = -1.0


class HiddenSign(OtherSign):
    shown = False


@pytest.mark.parametrize(("script", "is_equal"), [(OtherSign, True), (HiddenSign, False)])
def test_a_small_difference_before_the_number_is_rounding(
    script: type[NearKink], is_equal: bool, tmp_path: Path
) -> None:
    a, b = NearKink("torch", optimizer="sgd", rate=1e-6), script("torch", optimizer="sgd", rate=1e-6)
    diagnosis = diagnose_records(a.write(tmp_path / "a"), b.write(tmp_path / "b"))
    stage = next(stage for stage in diagnosis.stages if stage.name == "gradients")
    assert any(check.difference > 1e-4 for check in stage.checks)
    assert any(check.differs for check in stage.checks if "step 1" in check.tensor) != is_equal
