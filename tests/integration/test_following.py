"""Tests of scripts that follow the record of another one: with other seeds and other data they compute the same."""

import json
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from common.diagnose.diagnosis import Diagnosis
from common.diagnose.recorded.walk import diagnose_records
from tests.conftest import ROOT
from tests.edited_scripts import edit_script

pytestmark = pytest.mark.slow
DRIVER = """
import json, runpy, sys
for arguments in json.loads(sys.argv[1]):
    sys.argv = arguments
    runpy.run_path(arguments[0], run_name="__main__")
"""
NO_DROPOUT = {
    "keras_fit.py": {
        "Dropout(0.25)": "Dropout(0)",
        " class_weight={0: 1.0, 1: 2.0},": "",
    },
    "keras_fit_mirrored.py": {"Dropout(0.1)": "Dropout(0)"},
    "tf_loop.py": {"Dropout(0.2)": "Dropout(0)"},
    "torch_loop.py": {"nn.Dropout(0.1)": "nn.Dropout(0)"},
    "trainer.py": {"BertConfig(\n": "BertConfig(\n        hidden_dropout_prob=0, attention_probs_dropout_prob=0,\n"},
    "torch_port.py": {},
}
OTHER_SEED = {
    "set_random_seed(42)": "set_random_seed(7)",
    "set_seed(0)": "set_seed(7)",
    "default_rng(0)": "default_rng(7)",
    "manual_seed(0)": "manual_seed(7)",
}
CALL = {
    "keras_fit.py": "FitRecorder(args.record",
    "keras_fit_mirrored.py": "FitRecorder(args.record",
    "tf_loop.py": "Recorder(args.record, model, optimizer",
    "torch_loop.py": "        Recorder(args.record, model, optimizer",
    "trainer.py": "TrainerRecorder(args.record",
}
BATCHES = {
    "tf_loop.py": {"in dataset:": "in recorder.batches(dataset):"},
    "torch_loop.py": {"enumerate(loader)": "enumerate(recorder.batches(loader))"},
}
TWO_NORMS = {
    "        self.fc2 =": "        self.norm2 = nn.LayerNorm(16)\n        self.fc2 =",
    "self.dropout(functional.relu(self.fc1(x)))": "self.norm2(functional.relu(self.fc1(x)))",
}
TWO_MISTAKES = TWO_NORMS | {
    "nn.BatchNorm2d(4)": "nn.BatchNorm2d(4, eps=1e-2)",
    "        self.fc2 =": "        self.norm2 = nn.LayerNorm(16, eps=1e-2)\n        self.fc2 =",
}
DROPOUT = {"nn.Dropout(0.1)": "nn.Dropout(0.3)"}
TF_SCRIPTS = ("keras_fit_mirrored.py", "keras_fit.py", "tf_loop.py")  # the first one configures the logical devices


def prepare(records: Path, name: str, record: str, edits: Mapping[str, str], follow: str = "") -> list[str]:
    """Return the arguments of a copy of a script that writes `record`. follow: the name of the record to follow."""
    text = (ROOT / "tests" / "scripts" / name).read_text()
    edits = {**NO_DROPOUT[name], **edits}
    options: list[str] = []
    if follow:
        edits |= {old: new for old, new in OTHER_SEED.items() if text.count(old) == 1} | BATCHES.get(name, {})
    if follow and name == "torch_port.py":
        options = ["--follow", str(records / follow)]
    elif follow:
        call = CALL[name]
        start = call.replace("        Recorder", "        recorder = Recorder")
        edits |= {f"{call})": f"{start}, follow={str(records / follow)!r})"}
    path = edit_script(name, edits, records / f"{record}-script")
    return [str(path), "--record", str(records / record), *options]


def run(*scripts: list[str]) -> None:
    """Run scripts of one framework in a process of their own."""
    subprocess.run(
        [sys.executable, "-c", DRIVER, json.dumps(scripts)],
        cwd=ROOT, stdout=subprocess.DEVNULL, check=True, timeout=300,
    )  # fmt: skip


@pytest.fixture(scope="module")
def records(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Record all scripts, and scripts that follow them."""
    path = tmp_path_factory.mktemp("following")
    whole_batches = {
        "per_device_train_batch_size=4": "per_device_train_batch_size=8",
        "gradient_accumulation_steps=2": "gradient_accumulation_steps=1",
    }
    run(
        prepare(path, "torch_port.py", "port", {}),
        prepare(path, "torch_loop.py", "torch_loop", {}),
        prepare(path, "torch_loop.py", "torch_loop-followed", {}, "torch_loop"),
        prepare(path, "torch_loop.py", "two_norms", TWO_NORMS),
        prepare(path, "torch_loop.py", "two_mistakes", TWO_MISTAKES, "two_norms"),
        prepare(path, "torch_loop.py", "dropout", DROPOUT),
        prepare(path, "torch_loop.py", "dropout-followed", DROPOUT, "dropout"),
        prepare(path, "trainer.py", "trainer", whole_batches),
        prepare(path, "trainer.py", "trainer-followed", whole_batches, "trainer"),
    )
    run(
        *(prepare(path, name, name[:-3], {}) for name in TF_SCRIPTS),
        *(prepare(path, name, f"{name[:-3]}-followed", {}, name[:-3]) for name in TF_SCRIPTS),
        prepare(path, "keras_fit.py", "port-followed", {}, "port"),
    )
    run(
        prepare(path, "torch_port.py", "keras_fit-ported", {}, "keras_fit"),
        prepare(path, "torch_port.py", "keras_fit-mistaken", {"eps=1e-3, ": ""}, "keras_fit"),
        prepare(path, "torch_port.py", "keras_fit-scaled", {"images / 255": "images"}, "keras_fit"),
    )
    return path


def diagnose(records: Path, a: str, b: str) -> Diagnosis:
    return diagnose_records(records / a, records / b)


@pytest.mark.parametrize(
    ("a", "b"),
    [
        ("torch_loop", "torch_loop-followed"),
        ("trainer", "trainer-followed"),
        ("keras_fit", "keras_fit-followed"),
        ("keras_fit_mirrored", "keras_fit_mirrored-followed"),
        ("tf_loop", "tf_loop-followed"),
        ("keras_fit", "keras_fit-ported"),
        ("port", "port-followed"),
    ],
)
def test_a_script_that_follows_computes_the_same(a: str, b: str, records: Path) -> None:
    diagnosis = diagnose(records, a, b)
    assert diagnosis.has_equal_stages, [cause.sentence for stage in diagnosis.stages for cause in stage.causes]
    checks = {stage.name: len(stage.checks) for stage in diagnosis.stages}
    assert checks["activations"] > 1
    assert checks["state"] > 2 * checks["initial weights"]  # of three steps, without counters


@pytest.mark.parametrize(
    ("b", "cause", "tensor"),
    [("keras_fit-mistaken", "epsilon", "norm"), ("keras_fit-scaled", "scale", "conv")],
)
def test_the_mistake_of_a_script_that_follows_is_named_first(b: str, cause: str, tensor: str, records: Path) -> None:
    diagnosis = diagnose(records, "keras_fit", b)
    first = next(cause for stage in diagnosis.stages for cause in stage.causes if cause.confirmed)
    assert (first.cause, first.tensor.endswith(tensor)) == (cause, True)


def test_every_layer_computes_on_what_its_counterpart_received(records: Path) -> None:
    diagnosis = diagnose(records, "two_norms", "two_mistakes")
    causes = [cause for stage in diagnosis.stages for cause in stage.causes]
    assert {(cause.cause, cause.tensor) for cause in causes if cause.confirmed} == {
        ("epsilon", "norm"),
        ("epsilon", "norm2"),
    }
    differing = [check.tensor for stage in diagnosis.stages for check in stage.checks if check.begins_here]
    assert "fc2" not in differing
    mistaken = diagnose(records, "keras_fit", "keras_fit-mistaken")
    (activations,) = [stage for stage in mistaken.stages if stage.name == "activations"]
    of_head = [check for check in activations.checks if check.tensor.endswith("| head")]
    assert [(check.tensor.startswith("input of "), check.differs) for check in of_head] == [
        (True, True),
        (False, False),
    ]


def test_other_dropout_masks_are_no_difference(records: Path) -> None:
    diagnosis = diagnose(records, "dropout", "dropout-followed")
    assert diagnosis.headline.startswith("not compared: activations, loss, gradients, state of A (")
    assert not diagnosis.is_equal
    assert [cause for stage in diagnosis.stages for cause in stage.causes] == []


def test_what_layers_computed_on_another_record_is_not_used(records: Path, tmp_path: Path) -> None:
    facts = json.loads((records / "two_mistakes" / "record.json").read_text())
    shutil.copytree(records / "two_mistakes", tmp_path / "copy")
    (tmp_path / "copy" / "record.json").write_text(json.dumps({**facts, "follows": "0" * 64}))
    diagnosis = diagnose_records(records / "two_norms", tmp_path / "copy")
    confirmed = {cause.tensor for stage in diagnosis.stages for cause in stage.causes if cause.confirmed}
    assert confirmed == {"norm"}
