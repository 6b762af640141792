"""A diagnosis as text, JSON and a page."""

import json
from pathlib import Path

import numpy as np
import pytest

from common.diagnose.findings import Check, Diagnosis, Stage
from common.diagnose.report import print_diagnosis, write_diagnosis

TITLES = {"a": "A (torch ddp)", "b": "B (tf <script>)"}


def diagnosis() -> Diagnosis:
    batch = Stage("batch", [Check("step 1: ids", 0.0)])
    layers = Stage("activations", [Check("norm", 1e-3, 1e-16), Check("fc", 1e-14, 1e-15), Check("x", np.inf)])
    layers.compare("pooler", np.arange(6.0).reshape(2, 3), np.array([[0, 1, 2], [3, np.inf, 50.0]]))
    layers.blame("epsilon", "b", "norm", "norm: epsilon is 1e-05 in A and 0.001 in B")
    state = Stage("state", [Check("step 1: norm", 1e-4, culprit=False)])
    return Diagnosis(TITLES, [batch, layers, state, Stage("dropout", note="the models have no dropout")], ["tail"])


def test_the_files(tmp_path: Path) -> None:
    page, data = write_diagnosis(diagnosis(), tmp_path)
    found = json.loads(data.read_text())
    assert found["equal"] is False
    assert found["first"] == {"stage": "activations", "tensor": "x"}
    assert found["causes"] == [
        {
            "cause": "epsilon",
            "side": "b",
            "stage": "activations",
            "tensor": "norm",
            "sentence": "norm: epsilon is 1e-05 in A and 0.001 in B",
            "confirmed": True,
        }
    ]
    verdicts = [each["verdict"] for each in found["ladder"]]
    assert verdicts == ["equal", "differs", "inherited", "not compared"]
    text = page.read_text()
    assert "<script>" not in text and "&lt;script&gt;" in text
    assert "norm: epsilon is 1e-05 in A and 0.001 in B" in text and "http" not in text
    assert "What to do: give it on both sides: a normalization has 1e-3 in Keras" in text
    assert text.count("<svg") == 1 and "farthest apart, at [1, 1]" in text, "values of what has them"


def test_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    print_diagnosis(diagnosis())
    first, cause, remedy, *_ = capsys.readouterr().out.splitlines()
    assert first == "A (torch ddp) and B (tf <script>) differ: norm: epsilon is 1e-05 in A and 0.001 in B"
    assert cause.startswith("cause: epsilon, activations, norm: ") and cause.endswith("(confirmed)")
    assert remedy.startswith("  what to do: give it on both sides")


def test_nothing_differs(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    equal = Diagnosis(TITLES, [Stage("batch", [Check("step 1: ids", 0.0)]), Stage("dropout", note="none")])
    print_diagnosis(equal)
    assert capsys.readouterr().out.startswith(
        "no difference: A (torch ddp) and B (tf <script>) are the same at every stage, in float64"
    )
    _, data = write_diagnosis(equal, tmp_path)
    found = json.loads(data.read_text())
    assert (found["equal"], found["first"], found["causes"]) == (True, None, [])


def test_the_precision_and_what_is_not_compared_in_it_are_said(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    stage = Stage(
        "gradients", [Check("fc.weight", 1e-8, precision="float32")], note="not compared in float32: key.bias"
    )
    found = Diagnosis(TITLES, [stage], precision="float32")
    print_diagnosis(found)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].endswith("are the same at every stage, in float32")
    assert lines[-2:] == ["compared in float32", "gradients: not compared in float32: key.bias"]
    page, data = (each.read_text() for each in write_diagnosis(found, tmp_path))
    assert json.loads(data)["precision"] == "float32"
    assert json.loads(data)["ladder"][0]["note"] == "not compared in float32: key.bias"
    assert "compared in float32" in page and "gradients: not compared in float32: key.bias" in page
