"""Weights that scripts average or change within a step, or between two steps."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from common.diagnose.recorded.walk import diagnose_records
from common.recording.record_format import StepFacts
from tests.unit.common.recording.numpy_script import Arrays, NumpyScript, draw_weights

TARGET, SOURCE = "target.weight", "fc2.weight"


def draw_with_target() -> Arrays:
    weights = draw_weights()
    return {**weights, TARGET: weights[SOURCE] + np.float32(0.1)}


@dataclass
class Changing(NumpyScript):
    """A script with a target network of one layer, which it changes within or after each step."""

    share: float = 0.01  # of the way to the weights of the layer
    is_within_step: bool = False
    is_before_update: bool = False
    limit: float = np.inf  # of the trained weights' absolute values
    detour: float = 0.0  # what the script adds to the trained weights and subtracts again

    def __post_init__(self) -> None:
        self.weights, self.frozen = draw_with_target(), (TARGET,)
        self._has_updated = False

    def change(self, weights: Arrays, source: np.ndarray) -> Arrays:
        """Change weights in place, and return what has changed."""
        before = dict(weights)
        weights[TARGET] = weights[TARGET] + np.float32(self.share) * (source - weights[TARGET])
        weights[SOURCE] = np.clip(weights[SOURCE], -self.limit, self.limit)
        weights[SOURCE] = (weights[SOURCE] + np.float32(self.detour)) - np.float32(self.detour)
        return {name: array for name, array in weights.items() if not np.array_equal(array, before[name])}

    def update(self, step: int, weights: Arrays, slots: Arrays, gradients: Arrays) -> None:
        source = weights[SOURCE]
        super().update(step, weights, slots, gradients)
        self._source = source if self.is_before_update else weights[SOURCE]
        if self.is_within_step:
            self.change(weights, self._source)
        self._has_updated = True

    def _compute_rank(
        self, weights: Arrays, inputs: np.ndarray, labels: np.ndarray
    ) -> tuple[Arrays, Arrays, list[float | None]]:
        changed = self.change(weights, self._source) if self._has_updated and not self.is_within_step else {}
        self._changed = [*changed]
        arrays, gradients, losses = super()._compute_rank(weights, inputs, labels)
        return arrays | self._name("changed_weight", changed), gradients, losses

    def _build_facts(self, step: int, losses: list[float | None]) -> StepFacts:
        facts = super()._build_facts(step, losses)
        return facts | {"changed_weights": self._changed} if self._changed else facts


def diagnose(path: Path, a: NumpyScript, b: NumpyScript) -> list[tuple[str, str]]:
    causes = diagnose_records(a.write(path / "a"), b.write(path / "b")).causes
    return [(cause.cause, cause.sentence) for cause in causes]


@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
@pytest.mark.parametrize("within_a", [False, True])
@pytest.mark.parametrize("within_b", [False, True])
def test_equal_averages_are_no_difference(within_a: bool, within_b: bool, optimizer: str, tmp_path: Path) -> None:
    a, b = (Changing(optimizer=optimizer, is_within_step=within) for within in (within_a, within_b))
    assert diagnose(tmp_path, a, b) == []


@pytest.mark.parametrize("within_a", [False, True])
@pytest.mark.parametrize("within_b", [False, True])
def test_other_shares_are_named(within_a: bool, within_b: bool, tmp_path: Path) -> None:
    a, b = Changing(is_within_step=within_a), Changing(is_within_step=within_b, share=0.99)
    ((cause, sentence),) = diagnose(tmp_path, a, b)
    assert cause == "averaged_weights"
    assert sentence == (
        f"the script of A moves {TARGET} 0.01 of the way to {SOURCE} after a step, and that of B 0.99 of the way to "
        f"{SOURCE}"
    )


def test_a_target_that_begins_as_a_copy_is_named_with_both_shares(tmp_path: Path) -> None:
    a, b = Changing(), Changing(share=0.99)
    for script in (a, b):
        script.weights = {**script.weights, TARGET: script.weights[SOURCE]}
    ((cause, sentence),) = diagnose(tmp_path, a, b)
    assert cause == "averaged_weights"
    assert "0.01 of the way" in sentence
    assert "0.99 of the way" in sentence


def test_an_average_before_the_update_is_named(tmp_path: Path) -> None:
    a, b = Changing(share=0.5), Changing(share=0.5, is_before_update=True)
    ((cause, sentence),) = diagnose(tmp_path, a, b)
    assert cause == "averaged_weights"
    assert sentence.endswith(f"and that of B 0.5 of the way to {SOURCE} before the update")


@pytest.mark.parametrize("name", ["A", "B"])
def test_an_average_of_one_script_is_named(name: str, tmp_path: Path) -> None:
    scripts = [Changing(share=0.0), Changing(share=0.5)]
    ((cause, sentence),) = diagnose(tmp_path, *(scripts if name == "B" else scripts[::-1]))
    assert cause == "averaged_weights"
    assert sentence.startswith(f"the script of {name} moves {TARGET} 0.5 of the way")
    assert sentence.endswith("does not move it")


def test_trained_weights_that_both_scripts_clip_are_no_difference(tmp_path: Path) -> None:
    assert diagnose(tmp_path, Changing(limit=0.5), Changing(limit=0.5)) == []


def test_rounding_of_what_a_script_adds_and_subtracts_again_is_no_difference(tmp_path: Path) -> None:
    assert diagnose(tmp_path, Changing(), Changing(detour=1.0)) == []


def test_trained_weights_that_one_script_clips_are_named(tmp_path: Path) -> None:
    ((cause, sentence),) = diagnose(tmp_path, Changing(), Changing(limit=0.5))
    assert cause == "clipped_weights"
    assert sentence == f"the script of B keeps {SOURCE} within [-0.5, 0.5] after each update, and that of A does not"
