"""Tests of the clipping of gradients in records that hold samples of some of them."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from common.diagnose.recorded.clipping import NORM, PER_VARIABLE, VALUE, Clipping, find_clipping
from common.diagnose.recorded.record_pair import RecordPair
from common.diagnose.recorded.recorded_side import RecordedSide
from common.diagnose.recorded.walk import diagnose_records
from common.errors import UserError
from common.recording.record_format import StepFacts
from common.recording.record_reader import open_record
from common.recording.record_writer import draw_sample
from tests.unit.common.recording.numpy_script import Arrays, NumpyScript


class Sampled(NumpyScript):
    """A script in whose record a sample stands for a clipped gradient."""

    sampled = "fc1.weight"

    def _name(self, prefix: str, arrays: Arrays) -> Arrays:
        named = super()._name(prefix, arrays)
        if prefix == "gradient":
            named[f"gradient/{self.sampled}"] = draw_sample(named[f"gradient/{self.sampled}"])  # type: ignore[assignment]
        return named


class ClippedByValue(Sampled):
    def clip(self, gradients: Arrays) -> Arrays:
        return {name: np.clip(array, -0.01, 0.01) for name, array in gradients.items()}

    def _build_facts(self, step: int, losses: list[float | None]) -> StepFacts:
        return {**super()._build_facts(step, losses), "max_norm": None}


class ClippedApart(NumpyScript):
    def _build_facts(self, step: int, losses: list[float | None]) -> StepFacts:
        return {**super()._build_facts(step, losses), "clipped_apart": True}


def open_pair(tmp_path: Path, script: NumpyScript) -> RecordPair:
    path = script.write(tmp_path)
    return RecordPair(RecordedSide("a", open_record(path)), RecordedSide("b", open_record(path)))


def test_a_gradient_before_clipping_without_the_clipped_one(tmp_path: Path) -> None:
    pair = open_pair(tmp_path, ClippedByValue(max_norm=1.0))
    assert "fc1.weight" in pair.a.gradients.read(1, "gradient_unclipped")
    assert "fc1.weight" not in pair.a.gradients.read(1)
    assert not pair.a.gradients.are_changed_by_script
    assert find_clipping(pair, pair.a) == Clipping(VALUE, None)  # the sampled gradient may be larger


def test_clipping_of_each_parameter_by_itself_is_that_of_each_variable(tmp_path: Path) -> None:
    pair = open_pair(tmp_path / "apart", ClippedApart(max_norm=1.0))
    assert find_clipping(pair, pair.a) == Clipping(PER_VARIABLE, 1.0)
    pair = open_pair(tmp_path / "whole", NumpyScript(max_norm=1.0))
    assert find_clipping(pair, pair.a) == Clipping(NORM, 1.0)


def test_a_part_of_the_gradients_has_another_norm_than_all(tmp_path: Path) -> None:
    a, b = NumpyScript(max_norm=0.1).write(tmp_path / "a"), Sampled(max_norm=0.1).write(tmp_path / "b")
    diagnosis = diagnose_records(a, b)
    assert diagnosis.causes == []
    note = next(stage.note for stage in diagnosis.stages if stage.name == "reduction")
    assert "clipping not compared, because gradients are recorded as samples only" in note


def test_a_factor_without_a_gradient_is_refused(tmp_path: Path) -> None:
    NumpyScript(max_norm=0.1).write(tmp_path)
    file = tmp_path / "record.json"
    file.write_text(file.read_text().replace('"fc1.weight": 0.', '"other.weight": 0.', 1))
    side = RecordedSide("a", open_record(tmp_path))
    with pytest.raises(UserError, match=r"has no gradient/other\.weight, which has a factor in record\.json"):
        side.gradients.read(1, "gradient_unclipped")


class WithoutGradient(ClippedByValue):
    """A script whose gradients are 0, as those of a triplet loss, so that only rounding errors are recovered."""

    def reduce(self, local: Sequence[Arrays]) -> Arrays:
        return {name: np.zeros_like(array) for name, array in super().reduce(local).items()}

    def clip(self, gradients: Arrays) -> Arrays:
        return {name: array + 1e-9 for name, array in gradients.items()}


def test_gradients_of_zero_do_not_show_a_clipping(tmp_path: Path) -> None:
    pair = open_pair(tmp_path, WithoutGradient(max_norm=1.0))
    assert "fc2.bias" in pair.a.gradients.read(1, "gradient_unclipped")
    assert find_clipping(pair, pair.a) is None


class SmallGradients(NumpyScript):
    """A script whose gradients have a norm to which PyTorch's epsilon of the clipping adds a visible share."""

    def backward(self, weights: Arrays, calls: Arrays, outputs_gradient: np.ndarray) -> Arrays:
        return {name: 0.001 * x for name, x in super().backward(weights, calls, outputs_gradient).items()}

    def clip(self, gradients: Arrays) -> Arrays:
        if self.framework == "torch":
            return super().clip(gradients)
        assert self.max_norm is not None
        norm = float(np.sqrt(sum(float((gradient**2).sum()) for gradient in gradients.values())))
        return {name: gradient * min(1.0, self.max_norm / norm) for name, gradient in gradients.items()}


@pytest.mark.parametrize("framework", ["torch", "tensorflow"])
def test_the_epsilon_of_a_clipping_is_no_fault(framework: str, tmp_path: Path) -> None:
    a, b = (SmallGradients(name, optimizer="sgd", rate=1e-4, decay=0.0, max_norm=1e-4) for name in ("torch", framework))
    diagnosis = diagnose_records(a.write(tmp_path / "a"), b.write(tmp_path / "b"))
    assert not diagnosis.causes, [cause.sentence for cause in diagnosis.causes]
