"""Tests of losses of several backward passes through one forward pass."""

from pathlib import Path

import numpy as np
import pytest

from common.diagnose.recorded.walk import diagnose_records
from common.recording.record_format import StepFacts
from tests.unit.common.recording.numpy_script import NumpyScript

ADDED = (0.25, 0.5)  # losses whose backward passes reach the outputs of the model, too


class SeveralPasses(NumpyScript):
    """A script that does not detach the outputs from which it computes further losses."""

    def compute_loss(self, outputs: np.ndarray, labels: np.ndarray) -> tuple[float, np.ndarray]:
        loss, gradient = super().compute_loss(outputs, labels)
        self.first = loss
        return loss + sum(ADDED), gradient + 0.01

    def _build_facts(self, step: int, losses: list[float | None]) -> StepFacts:
        return {**super()._build_facts(step, losses), "pass_losses": [[ADDED[0], self.first, ADDED[1]]]}


class OtherPasses(SeveralPasses):
    """A script with several passes, whose first loss is another one."""

    def compute_loss(self, outputs: np.ndarray, labels: np.ndarray) -> tuple[float, np.ndarray]:
        loss, gradient = super().compute_loss(1.1 * outputs, labels)
        return loss, 1.1 * gradient


@pytest.mark.parametrize("side", ["A", "B"])
def test_the_losses_of_added_backward_passes_are_named_if_they_explain_the_difference(
    side: str, tmp_path: Path
) -> None:
    for script, is_explained in ((SeveralPasses(), True), (OtherPasses(), False)):
        scripts = [script, NumpyScript()]
        a, b = scripts if side == "A" else scripts[::-1]
        (cause,) = diagnose_records(a.write(tmp_path / "a"), b.write(tmp_path / "b")).causes
        assert (cause.cause == "added_backward_pass") == is_explained
        assert cause.confirmed == is_explained
        assert (f"that of {side} also from 0.25 and 0.5, in another backward pass" in cause.sentence) == is_explained
        assert cause.side == side.lower() or not is_explained
