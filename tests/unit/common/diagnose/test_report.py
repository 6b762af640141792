"""The report of a diagnosis as text, JSON and a page."""

from pathlib import Path

import numpy as np
import pytest
from markupsafe import escape

from common.diagnose.diagnosis import Diagnosis, read_diagnosis
from common.diagnose.findings import Stage, TensorCheck
from common.diagnose.finished_runs import FinishedRuns
from common.diagnose.report import print_diagnosis, write_report

TITLES = {"a": "A (torch ddp)", "b": "B (tf <script>)"}
EPSILON = "norm: epsilon is 1e-05 in A and 0.001 in B"


@pytest.fixture(scope="module")
def diagnosis() -> Diagnosis:
    batch = Stage("batch", [TensorCheck("step 1: ids", 0.0)])
    checks = [TensorCheck("norm", 1e-3, 1e-16), TensorCheck("fc", 1e-14, 1e-15), TensorCheck("x", np.inf)]
    layers = Stage("activations", checks)
    layers.compare_arrays("pooler", np.arange(6.0).reshape(2, 3), np.array([[0, 1, 2], [3, np.inf, 50.0]]))
    layers.add_cause("epsilon", "b", "norm", EPSILON)
    state = Stage("state", [TensorCheck("step 1: norm", 1e-4, may_begin_here=False)])
    return Diagnosis(TITLES, [batch, layers, state, Stage("dropout", note="the models have no dropout")], ["tail"])


def test_the_files(diagnosis: Diagnosis, tmp_path: Path) -> None:
    page, data = write_report(diagnosis, tmp_path)
    record = read_diagnosis(data)
    assert record["equal"] is False
    assert record["first"] == {"stage": "activations", "tensor": "x"}
    assert record["causes"] == [
        {
            "cause": "epsilon",
            "side": "b",
            "stage": "activations",
            "tensor": "norm",
            "sentence": EPSILON,
            "confirmed": True,
        }
    ]
    assert [row["verdict"] for row in record["ladder"]] == ["equal", "differs", "inherited", "not compared"]
    text = page.read_text()
    assert "<script>" not in text and "&lt;script&gt;" in text
    assert EPSILON in text and "http" not in text
    assert "What to do: set the same epsilon on both sides: the default of a normalization is 1e-3 in Keras" in text
    assert text.count("<svg") == 1 and "largest difference, at [1, 1]" in text, "values of the one tensor that has some"


def test_the_page_marks_code(tmp_path: Path) -> None:
    stage = Stage("loss", [TensorCheck("loss", 1.0)])
    stage.add_cause("operation", "b", "loss", "B computes mean in <b>.py:3 `x < y`")
    page, _ = write_report(Diagnosis(TITLES, [stage]), tmp_path)
    assert page.read_text().count("B computes mean in &lt;b&gt;.py:3 <code>x &lt; y</code>") == 2  # headline and cause


def test_the_terminal(diagnosis: Diagnosis, capsys: pytest.CaptureFixture[str]) -> None:
    print_diagnosis(diagnosis)
    first, cause, remedy, *_ = capsys.readouterr().out.splitlines()
    assert first == f"A (torch ddp) and B (tf <script>) differ: {EPSILON}"
    assert cause.startswith("cause: epsilon, activations, norm: ") and cause.endswith("(confirmed)")
    assert remedy.startswith("  what to do: set the same epsilon on both sides")


def test_nothing_differs(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    equal = Diagnosis(TITLES, [Stage("batch", [TensorCheck("step 1: ids", 0.0)]), Stage("dropout", note="none")])
    print_diagnosis(equal)
    assert capsys.readouterr().out.startswith(
        "no difference: A (torch ddp) and B (tf <script>) are the same at every stage, in float64"
    )
    _, data = write_report(equal, tmp_path)
    record = read_diagnosis(data)
    assert (record["equal"], record["first"], record["causes"]) == (True, None, [])


def test_a_stage_that_rounding_hides_is_not_called_the_same() -> None:
    lost = Stage("gradients", [TensorCheck("key.bias", 0.5, 0.3, precision="bfloat16")], precision="bfloat16")
    diagnosis = Diagnosis(TITLES, [Stage("batch", [TensorCheck("step 1: ids", 0.0)]), lost], precision="bfloat16")
    assert "at every stage except gradients, which has only rounding errors, in bfloat16" in diagnosis.headline


@pytest.mark.parametrize("environment", [[], ["A was made in another environment, torch 2.1 (here 2.2)"]])
@pytest.mark.parametrize("unreproduced", [[], ["B's recorded curve is not reproduced here: step 2 has ..."]])
def test_other_environments_come_first_and_nothing_unreproduced_is_equal(
    environment: list[str], unreproduced: list[str], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    recorded = FinishedRuns(environment, unreproduced)
    equal = Diagnosis(TITLES, [Stage("batch", [TensorCheck("step 1: ids", 0.0)])], recorded=recorded)
    print_diagnosis(equal)
    headline = capsys.readouterr().out.splitlines()[0]
    assert headline.startswith("; ".join([*environment, *unreproduced]))
    assert ("no difference" in headline) == (not unreproduced)
    page, data = write_report(equal, tmp_path)
    record = read_diagnosis(data)
    assert (record["equal"], record["headline"]) == (not unreproduced, headline)
    assert (record["environment"], record["unreproduced"]) == (environment, unreproduced)
    assert all(escape(sentence) in page.read_text() for sentence in (*environment, *unreproduced))
    differs = Diagnosis(TITLES, [Stage("batch", [TensorCheck("step 1: ids", 1.0)])], recorded=recorded)
    first = [*environment, *unreproduced, "A (torch ddp) and B"] if environment else ["A (torch ddp) and B"]
    assert differs.headline.startswith("; ".join(first)) and not differs.is_equal


def test_the_precision_and_its_limits_are_reported(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    checks = [TensorCheck("fc.weight", 1e-8, precision="float32")]
    stage = Stage("gradients", checks, note="not compared in float32: key.bias")
    diagnosis = Diagnosis(TITLES, [stage], precision="float32")
    print_diagnosis(diagnosis)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].endswith("are the same at every stage, in float32")
    assert lines[-2:] == ["compared in float32", "gradients: not compared in float32: key.bias"]
    page, data = write_report(diagnosis, tmp_path)
    record = read_diagnosis(data)
    assert (record["precision"], record["ladder"][0]["note"]) == ("float32", "not compared in float32: key.bias")
    assert "trained in float32" in page.read_text()
    assert "gradients: not compared in float32: key.bias" in page.read_text()


def test_terminal_and_page_name_few_of_many_tensors(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    names = [f"conv{number}/bias" for number in range(1, 9)]
    stage = Stage("layers")
    for name in names:
        stage.add_mismatch(name)
        stage.add_cause(
            "missing_parameter", "b", name, f"{name}: A has no counterpart of this bias of a layer (Conv2D)"
        )
    diagnosis = Diagnosis(TITLES, [stage], unpaired=names)
    print_diagnosis(diagnosis)
    lines = capsys.readouterr().out.splitlines()
    assert sum(line.startswith("cause: ") for line in lines) == 1
    assert "; the same in 7 more places (confirmed)" in lines[1]
    others = f"also: {', '.join(names[1:6])} and 2 more (see diagnosis.json)"
    unpaired = f"{', '.join(names[:5])} and 3 more (see diagnosis.json)"
    assert (lines[2], lines[-1]) == (f"  {others}", f"not paired: {unpaired}")
    page, data = write_report(diagnosis, tmp_path)
    assert others in page.read_text()
    assert unpaired in page.read_text()
    assert names[-1] in data.read_text()


def test_confirmed_causes_come_first_and_the_same_cause_is_one_row(capsys: pytest.CaptureFixture[str]) -> None:
    stage = Stage("activations", [TensorCheck("x", 1.0)])
    stage.add_cause("code_between_layers", "b", "x", "between x and y: the code computes another array", False)
    for layer in ("norm1", "norm2", "norm3"):
        stage.add_cause("epsilon", "b", layer, f"{layer}: epsilon is 1e-05 in A and 0.001 in B")
    diagnosis = Diagnosis(TITLES, [stage])
    assert [cause.tensor for cause in diagnosis.causes] == ["norm1", "norm2", "norm3", "x"]
    print_diagnosis(diagnosis)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].endswith("differ: norm1: epsilon is 1e-05 in A and 0.001 in B")
    assert lines[1].endswith("epsilon is 1e-05 in A and 0.001 in B; the same in 2 more places (confirmed)")
    assert lines[2] == "  also: norm2, norm3"
    assert [line for line in lines if line.startswith("cause: ")][1].startswith("cause: code_between_layers, ")
    assert sum(line.startswith("  what to do: ") for line in lines) == 1, "an unknown cause has no advice"
