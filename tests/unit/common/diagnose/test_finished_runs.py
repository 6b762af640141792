"""Comparison of a repeated run with the curve and the environment that a finished run recorded."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from common.config.compose import parse_config, save_config
from common.diagnose.arguments import SideArguments
from common.diagnose.finished_runs import compare_with_finished, find_other_environment
from common.diagnose.side_run import SideRun
from common.hardware import describe_hardware
from common.versions import find_versions
from tests.conftest import Compose

VERSIONS, HARDWARE = find_versions(["torch", "numpy"]), describe_hardware()
HARDWARE_OF_EARLIER_VERSIONS = {name: value for name, value in HARDWARE.items() if name != "gpu"}
HARDWARE_OF_EARLIER_VERSIONS["processor"] = HARDWARE["machine"]
FACTS = {"framework": "torch", "strategy": "single", "replicas": 1, "status": "completed"}
PRESENT: dict[str, object] = {"versions": VERSIONS, "hardware": HARDWARE}
LOSSES = {step: 1.0 / step for step in range(1, 6)}


def write_rows(directory: Path, losses: dict[int, float]) -> None:
    directory.mkdir(exist_ok=True)
    rows = [{"step": step, "loss": loss, "grad_norm": 2.0} for step, loss in losses.items()]
    (directory / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def write_summary(directory: Path, summary: dict[str, object]) -> None:
    directory.mkdir(exist_ok=True)
    (directory / "summary.json").write_text(json.dumps({**FACTS, **summary}))


CHANGES: dict[str, tuple[dict[str, object], list[str] | None]] = {  # what the run recorded, what is said
    "the same": ({}, []),
    "another memory": ({"hardware": {**HARDWARE, "memory_bytes": 1}}, []),
    "another version": (
        {"versions": {**VERSIONS, "numpy": "1.0"}},
        [f"numpy 1.0 (here {find_versions(['numpy'])['numpy']})"],
    ),
    "a missing package": ({"versions": {"no-such-package": "3"}}, ["no-such-package 3 (here not installed)"]),
    "another Python": ({"versions": {"python": "3.1"}}, None),
    "a checkout": ({"versions": {"lockstep": "0.0"}}, None),
    "GPUs": ({"hardware": {**HARDWARE, "gpus": 99}}, [f"gpus 99 (here {HARDWARE['gpus']})"]),
    "another GPU": ({"hardware": {**HARDWARE, "gpu": "H100"}}, [f"gpu H100 (here {HARDWARE['gpu']})"]),
    "an earlier version": ({"hardware": HARDWARE_OF_EARLIER_VERSIONS}, []),
    "nothing": ({"versions": {}}, ["versions (not recorded)"]),
    "escape sequences": ({"versions": {"torch": "\x1b[31m2\n"}}, None),
}


@pytest.mark.parametrize("change", CHANGES)
def test_another_environment_is_found(change: str, tmp_path: Path) -> None:
    changes, expected = CHANGES[change]
    write_summary(tmp_path, {**PRESENT, **changes})
    differences = find_other_environment(tmp_path)
    assert all(text.isprintable() for text in differences)
    if expected is not None:
        assert differences == expected
    elif change == "a checkout":
        assert not differences or "lockstep" in find_versions(["lockstep"])
    else:
        assert len(differences) == 1


def test_the_environment_of_a_side_is_that_of_its_interpreter(tmp_path: Path) -> None:
    for name, version in (("recorded", "2.1"), ("repeated", "2.2")):
        write_summary(tmp_path / name, {**PRESENT, "versions": {"torch": version}})
    assert find_other_environment(tmp_path / "recorded", tmp_path / "repeated") == ["torch 2.1 (here 2.2)"]


def test_the_device_and_the_hardware_of_a_side_are_those_that_its_run_saw(tmp_path: Path) -> None:
    facts = {"versions": VERSIONS, "hardware": {**HARDWARE, "gpus": 7, "gpu": "H100"}}
    for name, device in (("recorded", "H100"), ("repeated", "H100"), ("hidden", "cpu")):
        write_summary(tmp_path / name, {**facts, "environment": {"device": device, "flags": {}}})
    assert find_other_environment(tmp_path / "recorded", tmp_path / "repeated") == []
    assert find_other_environment(tmp_path / "recorded", tmp_path / "hidden") == ["device H100 (here cpu)"]


def make_runs(
    composed: Compose, tmp_path: Path, recorded: dict[int, float], repeated: dict[int, float]
) -> list[SideRun]:
    """Return repeated runs of steps 1 to 3; A reproduces its curve exactly."""
    config = parse_config(composed("train.steps=3", "train.precision=float64"))
    runs = []
    for name, recorded_losses, losses in (("a", LOSSES, LOSSES), ("b", recorded, repeated)):
        directory, new = tmp_path / name, tmp_path / f"new-{name}"
        write_summary(directory, PRESENT)
        write_rows(directory, recorded_losses)
        save_config(replace(config, train=replace(config.train, precision="float32")), directory / "config.yaml")
        run = SideRun(SideArguments(name, "torch", "single", [], None, directory), new)
        vars(run).update(config=config)
        write_rows(new, {step: losses[step] for step in (1, 2, 3)})
        runs.append(run)
    return runs


@pytest.fixture(autouse=True)
def _start_at_the_first_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SideRun, "steps_before", 0)


def test_a_curve_that_is_reproduced(composed: Compose, tmp_path: Path) -> None:
    almost = {step: loss + 1e-7 for step, loss in LOSSES.items()}
    assert compare_with_finished(make_runs(composed, tmp_path, almost, LOSSES)).unreproduced == []


def test_a_curve_that_is_reproduced_in_another_environment(composed: Compose, tmp_path: Path) -> None:
    runs = make_runs(composed, tmp_path, LOSSES, LOSSES)
    write_summary(tmp_path / "b", {**PRESENT, "versions": {"python": "3.1"}})
    recorded = compare_with_finished(runs)
    (sentence,) = recorded.environment
    assert sentence.startswith(f"B ({tmp_path / 'b'}) was made in another environment, python 3.1 (here ")
    assert sentence.endswith(", and its curve is reproduced here") and not recorded.unreproduced


def test_a_recorded_change_of_the_environment_is_reported(composed: Compose, tmp_path: Path) -> None:
    runs = make_runs(composed, tmp_path, LOSSES, LOSSES)
    changes = [{"step": 3, "changes": ["torch 2.13 to \x1b2.14"]}]
    write_summary(tmp_path / "b", {**PRESENT, "environment_changed": changes})
    (sentence,) = compare_with_finished(runs).environment
    assert sentence == f"B ({tmp_path / 'b'}) was trained in another environment from step 3, torch 2.13 to 2.14"


@pytest.mark.parametrize(
    ("recorded", "expected"),
    [
        (
            {**LOSSES, 2: 0.6},
            "B's recorded curve is not reproduced here: step 2 has loss 0.6 and grad_norm 2 there and loss 0.5 and "
            "grad_norm 2 here; try precision=float32",
        ),
        ({**LOSSES, 2: float("nan")}, "step 2 has loss nan and "),
        ({1: 1.0}, "B's recorded curve is not reproduced here: it has no step 2"),
        (
            {**LOSSES, 5: 0.6},
            "the recorded curves diverge at step 5, and only steps 1 to 3 were repeated; save checkpo",
        ),
    ],
)
def test_a_curve_that_is_not_reproduced(
    composed: Compose, tmp_path: Path, recorded: dict[int, float], expected: str
) -> None:
    sentences = compare_with_finished(make_runs(composed, tmp_path, recorded, LOSSES)).unreproduced
    assert any(expected in sentence for sentence in sentences)


def test_a_run_of_fewer_steps_than_are_repeated_is_reproduced(composed: Compose, tmp_path: Path) -> None:
    runs = make_runs(composed, tmp_path, {1: 1.0, 2: 0.5}, LOSSES)
    write_summary(tmp_path / "b", {**PRESENT, "steps": 2})
    assert not [sentence for sentence in compare_with_finished(runs).unreproduced if "not reproduced" in sentence]


def test_runs_that_repeat_none_have_nothing_to_say(composed: Compose, tmp_path: Path) -> None:
    runs = make_runs(composed, tmp_path, LOSSES, LOSSES)
    fresh = [replace(run, arguments=replace(run.arguments, repeats=None)) for run in runs]
    recorded = compare_with_finished(fresh)
    assert (recorded.environment, recorded.unreproduced) == ([], [])
