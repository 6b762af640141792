"""Tests that recorders leave the training of whole TensorFlow scripts unchanged, and see what the scripts compute."""

import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from tests.conftest import ROOT, in_matrix, selected_values

# With the mirrored scripts first: they configure the logical devices
SCRIPTS = {
    "keras_fit_mirrored": [],
    "tf_loop_mirrored": [],
    "keras_fit": [],
    "keras_fit_xla": ["--jit"],
    "tf_loop": [],
    "keras_hub_finetune": [],
}
DRIVER = """
import json, runpy, sys
for line in json.loads(sys.argv[1]):
    print("##", line[0], flush=True)
    sys.argv = line[1:]
    runpy.run_path(line[1], run_name="__main__")
"""
OF_OTHER_TESTS = {"keras_fit_mirrored", "keras_hub_finetune"}
# CI diagnoses records of XLA and of a mirrored loop in test_clean_pairs.py
IN_MATRIX = ("tf_loop_mirrored", "keras_fit_xla")
NOISE = 1e-4  # of a recovered float32 gradient


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> tuple[dict[str, str], Path]:
    """Run the scripts of this session without and with a recorder in one process, which imports TensorFlow once."""
    records, lines = tmp_path_factory.mktemp("records"), []
    names = OF_OTHER_TESTS | selected_values(request, "name")
    for name, options in ((name, options) for name, options in SCRIPTS.items() if name in names):
        script = str(ROOT / f"tests/scripts/{name.removesuffix('_xla')}.py")
        lines.append([f"{name} plain", script, *options])
        lines.append([f"{name} recorded", script, *options, "--record", str(records / name)])
    done = subprocess.run(
        [sys.executable, "-c", DRIVER, json.dumps(lines)],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    parts = re.split(r"^## (.*)\n", done.stdout, flags=re.MULTILINE)[1:]
    return dict(zip(parts[::2], parts[1::2], strict=True)), records


@pytest.mark.slow
@pytest.mark.parametrize("name", [in_matrix(name) if name in IN_MATRIX else name for name in SCRIPTS])
def test_a_recorded_script_prints_the_same_and_its_record_is_complete(
    name: str, runs: tuple[dict[str, str], Path]
) -> None:
    outputs, records = runs
    assert "loss" in outputs[f"{name} plain"]
    assert outputs[f"{name} recorded"] == outputs[f"{name} plain"]
    facts = json.loads((records / name / "record.json").read_text())
    assert (facts["complete"], facts["not_recorded"]) == (True, [])
    assert [step["step"] for step in facts["steps"]] == [1, 2, 3]
    assert facts["loss"] is not None
    assert facts["optimizer"]["missing"] == []
    first = load_file(records / name / "step-00000001.safetensors")
    names = {*first, *facts["aliases"].get("step-00000001.safetensors", {})}
    replicas = facts["environment"]["flags"]["replicas"]
    kinds = {key.partition("/")[0] for key in names}
    assert kinds - {"gradient_unclipped"} == {"batch", "layer", "gradient", "weight", "slot"}
    assert {f"batch/{replica}/label/y_true" for replica in range(replicas)} <= names
    trainable = {key for key, variable in facts["model"]["variables"].items() if variable["trainable"]}
    assert {key.partition("/")[2] for key in first if key.startswith("gradient/")} == trainable
    unclipped = {key.partition("/")[2] for key in names if key.startswith("gradient_unclipped/")}
    factors = facts["steps"][0].get("clip_factors", {})
    is_clipped = name in ("keras_fit", "keras_fit_xla", "tf_loop")
    assert unclipped | factors.keys() == (trainable if is_clipped else set())
    assert len(factors) >= len(unclipped)
    paths = [layer["path"] for layer in facts["model"]["layers"]]
    assert paths[0] == "model"
    assert {f"layer/{path}/output" for path in paths} <= names


@pytest.mark.slow
def test_the_recorded_gradients_explain_the_update(runs: tuple[dict[str, str], Path]) -> None:
    _, records = runs
    steps = [load_file(records / "keras_fit_mirrored" / f"step-0000000{step}.safetensors") for step in (1, 2, 3)]
    start = load_file(records / "keras_fit_mirrored" / "start.safetensors")
    for name in (key.partition("/")[2] for key in steps[0] if key.startswith("gradient/")):
        update = steps[0][f"weight/{name}"] - start[f"weight/{name}"]
        np.testing.assert_allclose(update, -0.05 * steps[0][f"gradient/{name}"], rtol=NOISE, atol=1e-6)


@pytest.mark.slow
def test_decay_is_excluded_in_a_group_of_its_own(runs: tuple[dict[str, str], Path]) -> None:
    _, records = runs
    groups = json.loads((records / "keras_hub_finetune" / "record.json").read_text())["optimizer"]["groups"]
    assert [group["hyperparameters"]["weight_decay"] for group in groups] == [pytest.approx(0.01), None]
    assert all(name.endswith(("bias", "gamma", "beta")) for name in groups[1]["parameters"])
