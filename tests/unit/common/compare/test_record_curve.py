"""Records of training scripts as external runs."""

from pathlib import Path

import pytest

from common.compare.external.load import load_external_run
from common.compare.pair import Tolerance
from common.compare.run_files import check_run_files
from common.compare.verdict import compare
from common.errors import UserError
from common.report.answers import answer_questions, list_next_steps
from tests.unit.common.recording.numpy_script import NumpyScript

TOLERANCES = {"float32": Tolerance(loss=1e-5, grad_norm=1e-4)}


def test_the_curves_of_two_records(tmp_path: Path) -> None:
    NumpyScript().write(tmp_path / "old")
    NumpyScript(ranks=2, rates=[0.02, 0.01, 0.005]).write(tmp_path / "new")
    old, new = (load_external_run(name, tmp_path / name, {}) for name in ("old", "new"))
    assert old.steps.tolist() == new.steps.tolist() == [1, 2, 3]
    assert new.metrics["learning_rate"].tolist() == [0.02, 0.01, 0.005]
    assert old.metrics["loss"][0] == pytest.approx(new.metrics["loss"][0], rel=1e-6)
    assert "new: its loss is the mean over micro-batches and processes" in new.notes
    comparison = compare([old, new], TOLERANCES)
    assert "diverge at step 2 of 3" in comparison.sentence
    assert answer_questions(comparison)[2].short == "unknown"  # records do not tell their precision
    assert list_next_steps(comparison) == [f"python -m common.diagnose {tmp_path}/old {tmp_path}/new"]


def test_a_record_is_no_run_directory(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="the record of a script; pass NAME="):
        check_run_files(NumpyScript().write(tmp_path / "old"))
