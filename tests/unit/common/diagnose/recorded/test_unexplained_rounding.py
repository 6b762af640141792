"""Small differences that no mistake explains, before a much larger one."""

from pathlib import Path

import numpy as np
import pytest

from common.diagnose.findings import Stage, TensorCheck
from common.diagnose.observation import Observation
from common.diagnose.recorded.record_pair import RecordPair
from common.diagnose.recorded.stages.activations import _LayerComparison
from common.diagnose.recorded.unexplained_rounding import find_unexplained_rounding
from common.diagnose.recorded.walk import diagnose_records
from tests.unit.common.recording.numpy_script import Arrays, NumpyScript

SMALL, LARGE = 5e-5, 0.5


def build_stage(*differences: float) -> Stage:
    """Return a stage in float32 whose first difference begins there, and whose later ones are inherited."""
    stage = Stage("activations", precision="float32")
    for index, difference in enumerate(differences):
        stage.checks.append(TensorCheck(f"{index}", difference, 0.0, not index, precision="float32"))
    return stage


def test_a_small_difference_before_a_much_larger_one_is_rounding() -> None:
    assert find_unexplained_rounding(build_stage(SMALL, LARGE)) == SMALL


def test_a_small_difference_without_a_much_larger_one_stays() -> None:
    assert find_unexplained_rounding(build_stage(SMALL, 500 * SMALL)) is None


def test_a_larger_difference_is_no_rounding() -> None:
    assert find_unexplained_rounding(build_stage(2e-4, LARGE)) is None


def test_a_difference_that_is_explained_is_no_rounding() -> None:
    stage = build_stage(SMALL, LARGE)
    stage.add_cause("layer", "b", "0", "the layer differs", confirmed=False)
    assert find_unexplained_rounding(stage) == SMALL
    stage.add_cause("epsilon", "b", "0", "the epsilons differ", confirmed=True)
    assert find_unexplained_rounding(stage) is None


def test_a_stage_without_a_difference_of_its_own_has_none() -> None:
    assert find_unexplained_rounding(build_stage()) is None
    assert find_unexplained_rounding(build_stage(1e-7)) is None
    stage = Stage("activations", precision="float32")
    stage.add_mismatch("outputs", may_begin_here=False)
    assert find_unexplained_rounding(stage) is None


class Rounding(NumpyScript):
    """A script whose first layer rounds coarsely."""

    error = SMALL
    shift = 0.0  # of what the second layer returns

    def forward(self, weights: Arrays, x: np.ndarray) -> Arrays:
        calls = super().forward(weights, x)
        noise = np.random.default_rng(1).standard_normal(calls["fc1/output"].shape)
        hidden = (calls["fc1/output"] * (1 + self.error * noise)).astype(self.dtype)
        active = self.activate(hidden).astype(self.dtype)
        outputs = (active @ weights["fc2.weight"].T + weights["fc2.bias"]).astype(self.dtype)
        shifted = outputs * (1 + self.shift * np.arange(outputs.shape[1])).astype(self.dtype)
        return {"fc1/input": x, "fc1/output": hidden, "fc2/input": active, "fc2/output": shifted}


class Mistaken(Rounding):
    shift = 1.0


class Coarse(Mistaken):
    error = 1e-2


@pytest.mark.parametrize(("script", "layer"), [(Mistaken, "fc2"), (Coarse, "fc1"), (Rounding, "fc1")])
def test_the_layer_of_the_larger_difference_is_named(script: type[Rounding], layer: str, tmp_path: Path) -> None:
    a, b = NumpyScript(optimizer="sgd"), script(optimizer="sgd")
    diagnosis = diagnose_records(a.write(tmp_path / "a"), b.write(tmp_path / "b"))
    stage = next(stage for stage in diagnosis.stages if stage.name == "activations")
    assert [check.tensor for check in stage.checks if check.begins_here] == [layer]
    assert {cause.tensor for cause in stage.causes} == {layer}
    assert len({check.tensor for check in stage.checks}) == len(stage.checks)


def test_the_second_comparison_remembers_each_equal_tensor_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pairs: list[RecordPair] = []

    def compare(stage: Stage, pair: RecordPair, *observations: Observation) -> _LayerComparison:
        pairs.append(pair)
        return _LayerComparison(stage, pair, *observations)

    monkeypatch.setattr("common.diagnose.recorded.stages.activations._LayerComparison", compare)
    a, b = NumpyScript(optimizer="sgd"), Mistaken(optimizer="sgd")
    diagnose_records(a.write(tmp_path / "a"), b.write(tmp_path / "b"))
    assert len(pairs) == 2
    assert pairs[1].equal_tensors
    assert len(pairs[1].equal_tensors) == len({*pairs[1].equal_tensors})
