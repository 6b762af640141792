"""The command common.diagnose on whole training runs: a pair without a difference, planted causes, mistakes."""

import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.diagnose.catalog import list_double_plants, list_single_plants
from benchmarks.diagnose.clean_pairs import list_clean_pairs
from benchmarks.diagnose.faulty_data import write_data
from benchmarks.diagnose.plant import FAULTY_STRATEGY, TEXT, Plant
from common.diagnose.diagnosis import DiagnosisRecord, read_diagnosis
from examples.resnet import data as digits
from tests.conftest import ROOT, SMALL_IMAGES, in_matrix

BOTH = ("a=torch:single", "b=tf:single")
PLANTS = {plant.name: plant for plant in [*list_single_plants(), *list_double_plants(), *list_clean_pairs()]}
CHOSEN = ("mask_ignored in tf",)  # and a reduction that differs, between two runs
IN_MATRIX = (
    "config: optimizer.weight_decay",
    "bert: query_key in torch",
    "bfloat16: norm_in_bfloat16 in torch",
    "strategy: mean_of_means in torch",
)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with faulty data, in which all diagnoses share a cache."""
    directory = tmp_path_factory.mktemp("diagnose")
    write_data(directory)
    return directory


def diagnose(plant: Plant, data: Path) -> tuple[subprocess.CompletedProcess[str], DiagnosisRecord]:
    """Run a diagnosis. Return its process and its record."""
    output = data / "diagnosis"
    arguments = [*shlex.split(plant.arguments.format(data=data)), f"output={output}", f"cache_dir={data}/cache"]
    command = [sys.executable, "-m", "common.diagnose", *arguments]
    completed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=240)
    assert completed.returncode in (0, 1), completed.stderr
    return completed, read_diagnosis(output / "diagnosis.json")


def test_two_strategies_of_two_frameworks_are_the_same(data: Path) -> None:
    completed, record = diagnose(PLANTS["a=torch:ddp b=tf:mirrored x2, text with dropout"], data)
    assert (completed.returncode, record["equal"], record["first"], record["causes"]) == (0, True, None, [])
    assert completed.stdout.startswith("no difference: A (torch ddp) and B (tf mirrored)")
    compared = {stage["stage"] for stage in record["ladder"] if stage["verdict"] == "equal"}
    assert {"config", "batch", "initial weights", "activations", "loss", "gradients"} <= compared
    assert {"reduction", "optimizer", "state", "dropout", "evaluation"} <= compared


@pytest.mark.parametrize("name", [*CHOSEN, *map(in_matrix, IN_MATRIX)])
def test_a_planted_cause_is_named(name: str, data: Path) -> None:
    completed, record = diagnose(PLANTS[name], data)
    assert (completed.returncode, record["equal"]) == (1, False)
    assert [cause["cause"] for cause in record["causes"]] == list(PLANTS[name].causes)
    assert record["causes"][0]["confirmed"] and record["causes"][0]["side"] == "b"
    assert record["causes"][0]["sentence"] in completed.stdout.splitlines()[0]


@pytest.mark.matrix
def test_two_causes_are_both_named(data: Path) -> None:
    name = "two: gelu_tanh in torch, strategy: averaged_twice in torch"
    plant = PLANTS[name]
    completed, record = diagnose(plant, data)
    assert completed.returncode == 1
    assert [cause["cause"] for cause in record["causes"]] == [*plant.causes, *plant.other_causes]
    assert all(cause["confirmed"] for cause in record["causes"])


@pytest.mark.matrix
def test_the_three_causes_of_a_naive_port_are_named(tmp_path: Path) -> None:
    """Test the story of docs/diagnosis.md."""
    digits.write(tmp_path)
    model = "model.torch=examples.resnet.model_torch:build model.tf=examples.resnet.naive_keras:build"
    files = "data=arrays data.train={data}/train.npz data.validation={data}/validation.npz 'data.channels=[images]'"
    plant = Plant("naive port", f"a=torch:single b=tf:single model=custom {model} {files}", ())
    _, record = diagnose(plant, tmp_path)
    causes = [cause["cause"] for cause in record["causes"]]
    assert {*causes} == {"epsilon", "same_padding_at_strides", "moving_statistics"}
    assert causes.count("epsilon") == 6


def test_two_runs_are_compared_from_the_checkpoint_before_they_diverge(tmp_path: Path) -> None:
    """Let B resume from A's checkpoint of step 5 with a compression that A does not have."""
    a, b = tmp_path / "a", tmp_path / "b"
    small = [*SMALL_IMAGES, f"cache_dir={tmp_path / 'cache'}"]
    small += ["train.steps=9", "train.checkpoint_every=5", "schedule.total_steps=20", "strategy.replicas=2"]
    other = ["strategy.comm_hook=bf16", f"resume={a / 'checkpoints' / 'step-00000005'}"]
    for run_dir, overrides in ((a, []), (b, other)):
        command = [sys.executable, "-m", "torch_impl.train", "strategy=ddp", *small, *overrides, f"run_dir={run_dir}"]
        subprocess.run(command, cwd=ROOT, check=True, capture_output=True, timeout=240)
    command = [sys.executable, "-m", "common.diagnose", str(a), str(b), f"output={tmp_path / 'diagnosis'}"]
    completed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=240)
    assert completed.returncode == 1, completed.stderr
    assert completed.stdout.startswith(f"from {a / 'checkpoints' / 'step-00000005'}: 3 steps\n")
    record = read_diagnosis(tmp_path / "diagnosis" / "diagnosis.json")
    assert [cause["cause"] for cause in record["causes"]] == ["reduced_in_bfloat16"], record["headline"]
    assert record["causes"][0]["sentence"].startswith("in B, step 6: ")
    equal = {stage["stage"] for stage in record["ladder"] if stage["verdict"] == "equal"}
    assert {"config", "batch", "initial weights", "activations", "loss", "gradients", "optimizer"} <= equal


@pytest.mark.matrix
def test_runs_of_an_extension_are_diagnosed_by_their_directories(data: Path, tmp_path: Path) -> None:
    """Let B repeat the order of the first epoch. The 24 examples are an epoch of four steps."""
    a, b = tmp_path / "a", tmp_path / "b"
    arguments = [*shlex.split(TEXT.format(data=data)), f"cache_dir={data}/cache", "train.steps=6"]
    for run_dir, fault in ((a, "none"), (b, "set_epoch")):
        overrides = ["strategy=faulty", *FAULTY_STRATEGY.split(), f"strategy.fault={fault}", f"run_dir={run_dir}"]
        command = [sys.executable, "-m", "torch_impl.train", *overrides, *arguments]
        subprocess.run(command, cwd=ROOT, check=True, capture_output=True, timeout=240)
    keys = ["steps=6", "trust=true", f"output={tmp_path / 'diagnosis'}"]
    command = [sys.executable, "-m", "common.diagnose", str(a), str(b), *keys]
    completed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=240)
    assert completed.returncode == 1, completed.stderr
    record = read_diagnosis(tmp_path / "diagnosis" / "diagnosis.json")
    assert record["sides"] == {"a": "A (torch faulty)", "b": "B (torch faulty)"}
    assert [cause["cause"] for cause in record["causes"]] == ["epoch_not_reshuffled"], record["headline"]
    assert record["first"] and record["first"]["stage"] == "batch" and record["causes"][0]["confirmed"]


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ("a=torch:ddp", "b: has no value; set b=torch:ddp or another strategy"),
        ("a=torch:ddp b=tf:mirrored start=nowhere", "nowhere: no such checkpoint; choose another checkpoint"),
        (
            "a=torch:single b=tf:single train.sed=1",  # both sides have the mistake, and either may report it first
            tuple(f"{side}: train.sed: no such key here; did you mean train.seed?" for side in BOTH),
        ),
        (
            "a=torch:single b=tf:single b.model.layers=0",
            "b=tf:single: model.layers=0: must be at least 1",
        ),
    ],
)
def test_a_mistake_is_an_error_of_one_line(arguments: str, error: str | tuple[str, ...], tmp_path: Path) -> None:
    command = [sys.executable, "-m", "common.diagnose", *arguments.split(), f"output={tmp_path}/diagnosis"]
    completed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert (completed.returncode, completed.stdout) == (2, "")
    assert completed.stderr.startswith("error: ") and completed.stderr.count("\n") == 1, completed.stderr
    assert completed.stderr.removeprefix("error: ").startswith(error), completed.stderr
