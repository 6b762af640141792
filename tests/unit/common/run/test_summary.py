import json
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from common.config.schema import Config
from common.data import batch_plan
from common.run.recorder import Recorder
from common.run.summary import (
    RESTARTS_VARIABLE,
    Summary,
    _collect_facts,
    write_aborted_summary,
    write_running,
    write_summary,
)
from common.training.state import Position
from tests.conftest import MakeConfig
from tests.unit.common.run.conftest import evaluation, record, step


def summary(
    run_dir: Path, config: Config, status: str = "completed", error: str | None = None, **report: Any
) -> Summary:
    about = _collect_facts(config, "torch", {"token_cache": "1", "initial_weights": "2"})
    written = write_summary(run_dir, config, about, status, {"peak_memory_bytes": [5, 6], **report}, error)
    assert json.loads((run_dir / "summary.json").read_text()) == written
    assert not list(run_dir.glob("*.partial"))
    return written


def test_summary(run_dir: Path, config: Config) -> None:
    record(run_dir, [step(number, float(number)) for number in (1, 2, 3, 4)], [evaluation(2), evaluation(4, 0.0, 0.75)])
    written = summary(run_dir, config)
    assert {
        "framework": "torch",
        "strategy": "single",
        "replicas": 1,
        "restarts": 0,
        "status": "completed",
        "steps": 4,
        "examples_per_second": 4.0,
        "tokens_per_second": 40.0,
        "peak_memory_bytes": [5, 6],
        "final_loss": 0.25,
        "accuracy": 0.75,
        "fingerprints": {"token_cache": "1", "initial_weights": "2"},
        "plan_version": batch_plan.PLAN_VERSION,
    }.items() <= written.items()
    assert "error" not in written and "staleness" not in written
    assert {"python", "lockstep", "numpy", "torch", "transformers"} == written["versions"].keys()
    assert cast(int, written["hardware"]["cores"]) >= 1


def test_a_run_is_running_until_it_has_a_summary(run_dir: Path, config: Config) -> None:
    about = _collect_facts(config, "torch", {"token_cache": "a"})
    write_running(run_dir, about)
    assert json.loads((run_dir / "running.json").read_text()) == {**about, "status": "running"}
    write_summary(run_dir, config, about, "completed", {})
    assert not (run_dir / "running.json").exists() and (run_dir / "summary.json").exists()


def test_the_summary_of_a_run_whose_chief_crashed_has_the_environment_of_the_chief(
    run_dir: Path, config: Config
) -> None:
    facts = {"framework": "torch", "strategy": "ddp", "replicas": 2, "versions": {"torch": "2.99"}}
    write_running(run_dir, facts)  # type: ignore[arg-type]
    write_aborted_summary(run_dir, config, "torch", "failed", "rank 0 ended with SIGSEGV")
    summary = json.loads((run_dir / "summary.json").read_text())
    assert (summary["versions"], summary["status"]) == ({"torch": "2.99"}, "failed")
    write_aborted_summary(run_dir, replace(config, python="/old/python"), "torch", "failed", "it did not start")
    assert "versions" not in json.loads((run_dir / "summary.json").read_text())


def test_restarts_are_counted(run_dir: Path, config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(RESTARTS_VARIABLE, "2")
    assert summary(run_dir, config)["restarts"] == 2


def test_a_histogram_of_staleness(run_dir: Path, config: Config) -> None:
    stalenesses = [1, 0, 2, 1, 10]
    record(run_dir, [step(number, 1.0, staleness=each) for number, each in enumerate(stalenesses, 1)], [])
    assert list(summary(run_dir, config)["staleness"].items()) == [("0", 1), ("1", 2), ("2", 1), ("10", 1)]


@pytest.mark.parametrize(
    ("steps", "evals", "expected"),
    [
        ([9.0, 10.0, 10.5, 11.0], [], 8.0),  # the two untimed steps are left out
        ([9.0, 10.0, 15.5, 16.0], [evaluation(2, 5.0)], 8.0),  # an evaluation between timed steps is left out
        ([9.0, 10.0, 10.5, 16.0], [evaluation(3, 5.0)], 8.0),
        ([9.0, 10.0, 10.5, 11.0], [evaluation(1, 8.0), evaluation(4, 7.0)], 8.0),  # these are not between timed steps
        ([9.0, 10.0], [], None),
        ([], [], None),
        ([9.0, 10.0, 10.0], [], None),  # the timed steps take no time
    ],
)
def test_speed(
    run_dir: Path, config: Config, steps: list[float], evals: list[dict[str, Any]], expected: float | None
) -> None:
    record(run_dir, [step(number, seconds) for number, seconds in enumerate(steps, 1)], evals)
    written = summary(run_dir, config)
    assert written["examples_per_second"] == (expected and pytest.approx(expected))
    assert written["tokens_per_second"] == (expected and pytest.approx(10 * expected))


def test_speed_without_untimed_steps(make_config: MakeConfig, run_dir: Path) -> None:
    config = make_config("train.warmup_steps_untimed=0", "strategy.replicas=1")
    record(run_dir, [step(1, 1.0), step(2, 4.0)], [evaluation(1, 2.0)])
    assert summary(run_dir, config)["examples_per_second"] == pytest.approx(8 / 2)


def test_speed_of_a_resumed_run(run_dir: Path, config: Config) -> None:
    """The steps before the resume and the first steps after it are not timed."""
    record(run_dir, [step(number, seconds) for number, seconds in enumerate([1, 2, 3, 50, 60, 60.5], 1)], [])
    assert summary(run_dir, config, resumed_from=3)["examples_per_second"] == pytest.approx(8)


@pytest.mark.parametrize(
    ("replicas", "expected"),
    [
        ([3, 3, 2, 2, 4], [(1, 3), (3, 2), (5, 4)]),
        ([3, 2, 3], [(1, 3), (2, 2), (3, 3)]),
        ([2, 2, 2], []),
        ([None, None, 3, 2], [(3, 3), (4, 2)]),  # rows of an earlier version lack the number of replicas
        ([None, None, 2, 2], []),
        ([], []),
    ],
)
def test_where_the_number_of_replicas_changed(
    run_dir: Path, config: Config, replicas: list[int | None], expected: list[tuple[int, int]]
) -> None:
    known = [{} if each is None else {"replicas": each} for each in replicas]
    record(run_dir, [step(number, 1.0, **each) for number, each in enumerate(known, 1)], [])
    changes = summary(run_dir, config).get("replicas_changed", [])
    assert [(each["step"], each["replicas"]) for each in changes] == expected


def test_what_trained_a_run_that_went_on_in_another_framework(run_dir: Path, config: Config) -> None:
    rows = [step(number, 1.0) for number in (1, 2, 3)]
    record(run_dir, rows, [])
    assert "trained_by" not in summary(run_dir, config)
    recorder = Recorder(run_dir, Position(2, validation={"loss": 0.7}), "tf mirrored")
    recorder.record_steps([step(3, 1.5), step(4, 2.0)], [], 1.0)
    recorder.close()
    hops = [{"step": 1, "trained_by": "torch single"}, {"step": 3, "trained_by": "tf mirrored"}]
    assert summary(run_dir, config)["trained_by"] == hops
    recorder = Recorder(run_dir, Position(4, validation={"loss": 0.7}), "tf mirrored")
    recorder.record_steps([step(5, 2.5)], [], 1.0)
    recorder.close()
    assert summary(run_dir, config)["trained_by"] == hops, "a resume by the same strategy is no change"


def test_the_speed_is_that_of_the_last_number_of_replicas(run_dir: Path, config: Config) -> None:
    """The same holds if a killed command did not leave the step that it resumed from."""
    clocks, replicas = [1, 2, 3, 50, 60, 60.5], [3, 3, 3, 2, 2, 2]
    rows = zip(clocks, replicas, strict=True)
    record(run_dir, [step(number, at, replicas=each) for number, (at, each) in enumerate(rows, 1)], [])
    assert summary(run_dir, config)["examples_per_second"] == pytest.approx(8)


@pytest.mark.parametrize("status", ["interrupted", "failed"])
def test_summary_of_a_run_that_did_not_complete(run_dir: Path, config: Config, status: str) -> None:
    written = summary(run_dir, config, status, "rank 1 ended with exit code 3")
    assert (written["status"], written["steps"], written["error"]) == (status, 0, "rank 1 ended with exit code 3")
    assert (written["final_loss"], written["accuracy"], written["examples_per_second"]) == (None, None, None)
