"""Gradients of later steps, whose weights moved a little differently before."""

from dataclasses import dataclass
from pathlib import Path

import pytest

from common.diagnose.recorded.walk import diagnose_records
from tests.unit.common.recording.numpy_script import Arrays, NumpyScript


@dataclass
class Moving(NumpyScript):
    """A script whose first update and later gradients differ by a factor."""

    momentum: float = 0.0
    decay: float = 0.0
    optimizer: str = "sgd"
    rate: float = 1e-4
    move: float = 0.0  # relative difference of the first update
    gradient: float = 0.0  # relative difference of the gradients of later steps

    def find_rate(self, step: int) -> float:
        return self.rate

    def update(self, step: int, weights: Arrays, slots: Arrays, gradients: Arrays) -> None:
        factor = 1 + self.move * (step == 1)
        super().update(step, weights, slots, {name: factor * gradient for name, gradient in gradients.items()})

    def change_gradients(self, step: int, gradients: Arrays) -> Arrays:
        factor = 1 + self.gradient * (step > 1)
        return {name: (factor * gradient).astype(self.dtype) for name, gradient in gradients.items()}


@pytest.mark.parametrize(
    ("move", "gradient", "dtype", "differs"),
    [
        (0.0, 0.05, "float32", True),
        (3e-3, 0.05, "float32", False),
        (3e-3, 0.2, "float32", True),
        (3e-3, 0.05, "float64", True),
    ],
)
def test_gradients_may_differ_as_far_as_the_weights_moved_differently(
    move: float, gradient: float, dtype: str, differs: bool, tmp_path: Path
) -> None:
    a = Moving(dtype=dtype)
    b = Moving(dtype=dtype, move=move, gradient=gradient)
    for script in (a, b):
        script.weights = {name: array.astype(dtype) for name, array in script.weights.items()}
        script.batches = [(x.astype(dtype), y) for x, y in script.batches]
    diagnosis = diagnose_records(a.write(tmp_path / "a"), b.write(tmp_path / "b"))
    stage = next(stage for stage in diagnosis.stages if stage.name == "gradients")
    later = [check for check in stage.checks if check.tensor.startswith("step 2: ")]
    assert later
    assert any(check.differs for check in later) == differs
    assert not any(check.differs for check in stage.checks if check.tensor.startswith("step 1: "))
