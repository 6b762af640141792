"""Diagnoses of records in which a part of the training is not recorded: they find no difference, and are not equal."""

from pathlib import Path
from typing import Any

import pytest

from common.recording.record_writer import draw_sample
from tests.unit.common.diagnose.recorded.test_walk import DROPOUT, diagnose
from tests.unit.common.recording.numpy_script import Arrays, NumpyScript


def test_the_headline_names_what_is_not_compared(tmp_path: Path) -> None:
    dropout: dict = {**DROPOUT, "training": True}
    script = NumpyScript(extra_layers=(dropout,))  # type: ignore[arg-type]
    diagnosis = diagnose(tmp_path, script, script)
    assert not diagnosis.is_equal
    assert diagnosis.headline.startswith("not compared: activations, loss, gradients, state of A (")
    assert "such as dropout masks, in " in diagnosis.headline
    assert diagnosis.headline.endswith("; no difference in what was compared")


class SampledInputs(NumpyScript):
    """A script in whose record samples stand for the inputs of the second micro-batch."""

    def _compute_rank(self, *args: Any) -> Any:
        arrays, *others = super()._compute_rank(*args)
        sample: Any = draw_sample(arrays["batch/1/input/0"])
        return arrays | {"batch/1/input/0": sample}, *others


def test_a_sample_of_an_input_is_no_smaller_batch(tmp_path: Path) -> None:
    diagnosis = diagnose(tmp_path, SampledInputs(micro_batches=2), NumpyScript(micro_batches=2))
    assert diagnosis.causes == []
    note = next(stage.note for stage in diagnosis.stages if stage.name == "data")
    assert note.startswith("not compared: the inputs of A (")
    assert note.endswith(") in step 1 are recorded as samples only")
    assert not diagnosis.is_equal


class WithoutGradients(NumpyScript):
    def _name(self, prefix: str, arrays: Arrays) -> Arrays:
        return {} if prefix == "gradient" else super()._name(prefix, arrays)


class WithoutInputs(NumpyScript):
    def _compute_rank(self, *args: Any) -> Any:
        arrays, *others = super()._compute_rank(*args)
        return {name: x for name, x in arrays.items() if not name.startswith("batch/0/input")}, *others


class WithoutLosses(NumpyScript):
    def _compute_rank(self, *args: Any) -> Any:
        *others, losses = super()._compute_rank(*args)
        return *others, [None for _ in losses]


class WithoutLaterWeights(NumpyScript):
    is_started = False

    def _name_state(self, *args: Any) -> Arrays:
        state = {} if self.is_started else super()._name_state(*args)
        self.is_started = True
        return state


@pytest.mark.parametrize(
    ("script", "stage", "reason"),
    [
        (WithoutGradients, "gradients", "no gradients are recorded, or every update was skipped"),
        (WithoutInputs, "data", "the inputs of B ({tmp_path}/b, torch) in step 1 are not recorded"),
        (WithoutLosses, "loss", "the recorders did not see the loss of step 1"),
        (WithoutLaterWeights, "state", "no weights are recorded after an update"),
    ],
)
def test_what_is_not_recorded_is_not_equal(script: type[NumpyScript], stage: str, reason: str, tmp_path: Path) -> None:
    diagnosis = diagnose(tmp_path, NumpyScript(), script())
    assert diagnosis.causes == []
    assert not diagnosis.is_equal
    assert {omitted.name: omitted.omission for omitted in diagnosis.omitted_stages}[stage] == reason.format(
        tmp_path=tmp_path
    )
    assert diagnosis.headline.startswith("not compared: ")
    assert stage in diagnosis.headline.partition(" of A (")[0]


def test_inputs_that_are_not_recorded_are_not_said_to_differ(tmp_path: Path) -> None:
    diagnosis = diagnose(tmp_path, NumpyScript(), WithoutInputs())
    notes = {stage.name: stage.note for stage in diagnosis.stages}
    for name in ("activations", "loss", "gradients", "state"):
        assert notes[name] == f"not compared: the inputs of B ({tmp_path}/b, torch) in step 1 are not recorded", name


class SampledVariables(NumpyScript):
    """A script in whose record samples stand for the whole weights, or gradients, of the second layer."""

    kind, first_step, factor = "weight", 0, 1.0

    def _name(self, prefix: str, arrays: Arrays) -> Arrays:
        self.count = getattr(self, "count", -1) + (prefix == self.kind)
        named: Any = super()._name(prefix, arrays)
        if prefix == self.kind and self.count >= self.first_step:
            name = f"{prefix}/fc2.weight"
            named[name] = draw_sample(self.factor * named[name])
        return named


class SampledGradients(SampledVariables):
    kind, first_step = "gradient", 0


class SampledLaterWeights(SampledVariables):
    first_step = 2


@pytest.mark.parametrize(
    ("script", "stage", "name"),
    [
        (SampledVariables, "initial weights", "fc2.weight"),
        (SampledLaterWeights, "state", "fc2.weight"),
        (SampledGradients, "gradients", "the gradient of fc2.weight"),
    ],
)
def test_samples_of_variables_are_equal_only_if_the_whole_ones_are(
    script: type[SampledVariables], stage: str, name: str, tmp_path: Path
) -> None:
    assert diagnose(tmp_path / "equal", script(), script()).is_equal
    other = script()
    other.factor = 2.0
    diagnosis = diagnose(tmp_path, script(), other)
    assert diagnosis.causes == []
    assert not diagnosis.is_equal
    reason = f"{name} is recorded as a sample only: raise max_bytes= of the recorders"
    assert {omitted.name: omitted.omission for omitted in diagnosis.omitted_stages}[stage] == reason.format(
        tmp_path=tmp_path
    )
