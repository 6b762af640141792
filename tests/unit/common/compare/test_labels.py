from pathlib import Path
from typing import Any

import pytest

from common.compare.experiment import describe_environments
from common.compare.labels import make_labels_unique
from common.compare.pair import Tolerance
from common.compare.runs import load_run
from common.compare.verdict import compare
from tests.unit.common.compare.conftest import MakeRun

LABEL = "torch ddp x2"


def labels(*run_dirs: Path) -> list[str]:
    runs = [load_run(run_dir) for run_dir in run_dirs]
    make_labels_unique(runs)
    return [run.label for run in runs]


@pytest.mark.slow
def test_runs_of_a_sweep_are_distinguished_by_their_swept_keys(make_run: MakeRun) -> None:
    swept = [["train.seed=0"], ["train.seed=1"], ["train.seed=2", "optimizer.learning_rate=0.5"]]
    runs = [make_run(f"{index}", *overrides, f"run_dir={index}") for index, overrides in enumerate(swept)]
    assert labels(*runs[:2]) == [f"{LABEL} (train.seed=0)", f"{LABEL} (train.seed=1)"]
    assert labels(*runs)[2] == f"{LABEL} (optimizer.learning_rate=0.5, train.seed=2)"


def test_labels_that_differ_stay_as_they_are(make_run: MakeRun) -> None:
    runs = [make_run("a"), make_run("b", "train.seed=1", framework="tf"), make_run("c", "train.seed=2", replicas=4)]
    assert labels(*runs) == ["torch ddp x2", "tf ddp x2", "torch ddp x4"]


@pytest.mark.slow
def test_the_directory_distinguishes_runs_of_one_config(make_run: MakeRun) -> None:
    runs = [make_run("a"), make_run("b", "train.log_every=7"), make_run("c", "train.seed=1")]
    assert labels(*runs[:2]) == [f"{LABEL} (a)", f"{LABEL} (b)"]
    assert labels(*runs) == [f"{LABEL} (train.seed=0, a)", f"{LABEL} (train.seed=0, b)", f"{LABEL} (train.seed=1)"]


def test_versions_distinguish_runs_of_two_environments(make_run: MakeRun) -> None:
    runs = [load_run(make_run(name)) for name in ("a", "b")]
    for run, version in zip(runs, ("2.13.0", "2.14.1"), strict=True):
        run.summary["versions"] = {"python": "3.11", "torch": version}
    make_labels_unique(runs)
    assert [run.label for run in runs] == [f"{LABEL} (torch 2.13.0)", f"{LABEL} (torch 2.14.1)"]
    notes = describe_environments(runs[0], runs[1], has_equal_curves=True)
    assert notes == "the environments differ in torch (2.13.0 | 2.14.1); nothing exceeds the tolerance"
    assert (
        describe_environments(runs[0], runs[1], has_equal_curves=None)
        == "the environments differ in torch (2.13.0 | 2.14.1)"
    )
    assert describe_environments(runs[0], runs[0], has_equal_curves=True) == ""


def test_the_device_distinguishes_runs_of_two_hosts(make_run: MakeRun) -> None:
    environments: list[dict[str, Any]] = [{"device": device, "flags": {}} for device in ("cpu", "NVIDIA H100")]
    runs = [load_run(make_run(name, environment=each)) for name, each in zip("ab", environments, strict=True)]
    make_labels_unique(runs)
    assert [run.label for run in runs] == [f"{LABEL} (device cpu)", f"{LABEL} (device NVIDIA H100)"]


def test_a_change_of_the_environment_within_a_run_is_noted(make_run: MakeRun) -> None:
    change = {"step": 8, "changes": ["torch 2.13.0 to 2.14.1", "device cpu to H100"]}
    runs = [load_run(make_run("a")), load_run(make_run("b", environment_changed=[change]))]
    note = f"{LABEL} (b): another environment from step 8: torch 2.13.0 to 2.14.1, device cpu to H100"
    assert note in compare(runs, {"float32": Tolerance(1e-5, 1e-4)}).notes


def test_the_path_distinguishes_directories_of_one_name(make_run: MakeRun) -> None:
    runs = [make_run("one/a"), make_run("two/a")]
    assert labels(*runs) == [f"{LABEL} (a, {run})" for run in runs]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("overrides", "label"),
    [
        (["optimizer=sgd", "schedule=constant"], "optimizer.kind=sgd"),
        (["train.steps=7", "schedule.total_steps=7"], "train.steps=7"),
        (["train.eval_every=7"], "train.eval_every=7"),
    ],
)
def test_chosen_keys_come_before_derived_keys(make_run: MakeRun, overrides: list[str], label: str) -> None:
    a = ["schedule.total_steps=300"] if "train.steps=7" in overrides else []
    assert labels(make_run("a", *a), make_run("b", *overrides))[1] == f"{LABEL} ({label})"


def test_a_key_that_only_one_edition_writes_names_no_run(make_run: MakeRun) -> None:
    runs = [load_run(make_run(name)) for name in ("a", "b")]
    runs[0].config["train.of_old"] = 1
    make_labels_unique(runs)
    assert [run.label for run in runs] == [f"{LABEL} (a)", f"{LABEL} (b)"]


@pytest.mark.parametrize("directory", [True, False])
def test_long_names_are_shortened_and_stay_unique(make_run: MakeRun, directory: bool) -> None:
    middle = ["x" * 60 + name + "y" * 60 for name in "ab"]
    runs = [load_run(make_run(name if directory else str(index))) for index, name in enumerate(middle)]
    values: list[Any] = [f"/data/{name}" for name in middle]
    for run, value in zip(runs, values, strict=True):
        if not directory:
            run.config["data.path"] = value
    make_labels_unique(runs)
    assert len({run.label for run in runs}) == 2
    short = "x" * 20 + "…" + "y" * 20 if directory else f"data.path=/data/{'x' * 14}…{'y' * 20}"
    assert all(run.label.startswith(f"{LABEL} ({short}, ") for run in runs)
