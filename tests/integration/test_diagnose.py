"""python -m common.diagnose on whole trainings: a pair without a difference, planted causes, mistakes."""

import json
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks.diagnose.data import write
from benchmarks.diagnose.plants import FAULTY, TEXT, Plant, clean, plants, two_at_once
from examples.resnet import data as digits
from tests.conftest import ROOT, SMALL_CORPUS, SMALL_MODEL, in_matrix

BOTH = ("a=torch:single", "b=tf:single")
PLANTED = {each.name: each for each in plants()}
CHOSEN = ("mask_ignored in tf", "strategy: mean_of_means in torch")
IN_MATRIX = ("config: optimizer.weight_decay", "bert: query_key in torch", "bfloat16: norm_in_bfloat16 in torch")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("diagnose")
    write(directory)
    return directory


def diagnose(plant: Plant, data: Path) -> tuple[subprocess.CompletedProcess[str], dict[str, Any]]:
    output = data / "diagnosis"
    arguments = [*shlex.split(plant.arguments.format(data=data)), f"output={output}", f"cache_dir={data}/cache"]
    command = [sys.executable, "-m", "common.diagnose", *arguments]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=240)
    assert done.returncode in (0, 1), done.stderr
    return done, json.loads((output / "diagnosis.json").read_text())


def test_two_strategies_of_two_frameworks_are_the_same(data: Path) -> None:
    plant = next(each for each in clean() if each.name == "a=torch:ddp b=tf:mirrored x2, text with dropout")
    done, found = diagnose(plant, data)
    assert (done.returncode, found["equal"], found["first"], found["causes"]) == (0, True, None, [])
    assert done.stdout.startswith("no difference: A (torch ddp) and B (tf mirrored)")
    compared = {each["stage"] for each in found["ladder"] if each["verdict"] == "equal"}
    assert {"config", "batch", "initial weights", "activations", "loss", "gradients"} <= compared
    assert {"reduction", "optimizer", "state", "dropout", "evaluation"} <= compared


@pytest.mark.parametrize("name", [*CHOSEN, *map(in_matrix, IN_MATRIX)])
def test_a_planted_cause_is_named(name: str, data: Path) -> None:
    done, found = diagnose(PLANTED[name], data)
    assert (done.returncode, found["equal"]) == (1, False)
    assert [each["cause"] for each in found["causes"]] == list(PLANTED[name].causes)
    assert found["causes"][0]["confirmed"] and found["causes"][0]["side"] == "b"
    assert found["causes"][0]["sentence"] in done.stdout.splitlines()[0]


def test_two_causes_are_both_named(data: Path) -> None:
    name = "two: gelu_tanh in torch, strategy: averaged_twice in torch"
    (plant,) = [each for each in two_at_once() if each.name == name]
    done, found = diagnose(plant, data)
    assert done.returncode == 1
    assert [each["cause"] for each in found["causes"]] == [*plant.causes, *plant.others]
    assert all(each["confirmed"] for each in found["causes"])


def test_the_three_causes_of_a_naive_port_are_named(tmp_path: Path) -> None:
    """The story of docs/diagnosis.md."""
    digits.write(tmp_path)
    model = "model.torch=examples.resnet.model_torch:build model.tf=examples.resnet.naive_keras:build"
    files = "data=arrays data.train={data}/train.npz data.validation={data}/validation.npz 'data.channels=[images]'"
    plant = Plant("naive port", f"a=torch:single b=tf:single model=custom {model} {files}", ())
    _, found = diagnose(plant, tmp_path)
    causes = [each["cause"] for each in found["causes"]]
    assert {*causes} == {"epsilon", "same_padding_at_strides", "moving_statistics"}
    assert causes.count("epsilon") == 6


def test_two_runs_are_compared_from_the_checkpoint_before_they_come_apart(tmp_path: Path) -> None:
    """B goes on from A's checkpoint of step 5 with a compression that A does not have."""
    a, b = tmp_path / "a", tmp_path / "b"
    small = [*SMALL_CORPUS, *SMALL_MODEL, f"cache_dir={tmp_path / 'cache'}", "train.global_batch_size=8"]
    small += ["train.steps=9", "train.checkpoint_every=5", "schedule.total_steps=20", "strategy.replicas=2"]
    other = ["strategy.comm_hook=bf16", f"resume={a / 'checkpoints' / 'step-00000005'}"]
    for run_dir, overrides in ((a, []), (b, other)):
        command = [sys.executable, "-m", "torch_impl.train", "strategy=ddp", *small, *overrides, f"run_dir={run_dir}"]
        subprocess.run(command, cwd=ROOT, check=True, capture_output=True, timeout=240)
    command = [sys.executable, "-m", "common.diagnose", str(a), str(b), f"output={tmp_path / 'diagnosis'}"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=240)
    assert done.returncode == 1, done.stderr
    assert done.stdout.startswith(f"from {a / 'checkpoints' / 'step-00000005'}: 3 steps\n")
    found = json.loads((tmp_path / "diagnosis" / "diagnosis.json").read_text())
    assert [each["cause"] for each in found["causes"]] == ["reduced_in_bfloat16"], found["headline"]
    assert found["causes"][0]["sentence"].startswith("in B, step 6: ")
    equal = {each["stage"] for each in found["ladder"] if each["verdict"] == "equal"}
    assert {"config", "batch", "initial weights", "activations", "loss", "gradients", "optimizer"} <= equal


def test_runs_of_an_extension_are_diagnosed_by_their_directories(data: Path, tmp_path: Path) -> None:
    """B has the order of the first epoch again. The 24 examples are an epoch of four steps."""
    a, b = tmp_path / "a", tmp_path / "b"
    arguments = [*shlex.split(TEXT.format(data=data)), f"cache_dir={data}/cache", "train.steps=6"]
    for run_dir, fault in ((a, "none"), (b, "set_epoch")):
        own = ["strategy=faulty", *FAULTY.split(), f"strategy.fault={fault}", f"run_dir={run_dir}"]
        command = [sys.executable, "-m", "torch_impl.train", *own, *arguments]
        subprocess.run(command, cwd=ROOT, check=True, capture_output=True, timeout=240)
    command = [sys.executable, "-m", "common.diagnose", str(a), str(b), "steps=6", f"output={tmp_path / 'diagnosis'}"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=240)
    assert done.returncode == 1, done.stderr
    found = json.loads((tmp_path / "diagnosis" / "diagnosis.json").read_text())
    assert found["sides"] == {"a": "A (torch faulty)", "b": "B (torch faulty)"}
    assert [each["cause"] for each in found["causes"]] == ["epoch_not_reshuffled"], found["headline"]
    assert found["first"]["stage"] == "batch" and found["causes"][0]["confirmed"]


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ("a=torch:ddp", "b: has no value; give b=torch:ddp or another strategy"),
        ("a=torch:ddp b=tf:mirrored start=nowhere", "nowhere: no such checkpoint; choose another checkpoint"),
        (
            "a=torch:single b=tf:single train.sed=1",  # a mistake of both sides: either may say so first
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
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("error: ") and done.stderr.count("\n") == 1, done.stderr
    assert done.stderr.removeprefix("error: ").startswith(error), done.stderr
