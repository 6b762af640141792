"""Tests of `train_rank` as the chief and as another rank, with a strategy that trains nothing."""

import errno
import json
import math
import os
import signal
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from common.config.schema import Config
from common.data.batches import GlobalBatch
from common.errors import PeerTimeout, UserError
from common.run import summary
from common.run.checkpoint import find_newest_checkpoint
from common.run.context import RunContext
from common.run.inputs import PreparedInputs
from common.run.worker import SideRuntime, train_rank
from common.training.rows import read_rows
from common.training.state import SavedState, State
from common.training.stop import Stop
from common.training.strategy import Evaluation, StepResult, Strategy
from tests.conftest import MakeConfig
from tests.unit.common.run.conftest import MakeRun

pytestmark = pytest.mark.usefixtures("kept")


class Fake(Strategy):
    """A strategy in memory. The loss of step k is 1 / k unless `losses` has another value."""

    world_size, is_chief = 2, True

    def __init__(self, losses: dict[int, float], before: Callable[[int], None]) -> None:
        self.losses, self.before = losses, before
        self.calls: list[str] = []

    def train(self, batches: Iterable[GlobalBatch]) -> Iterator[StepResult]:
        for batch in batches:
            self.before(batch.step)
            self.calls.append(f"train {batch.step}")
            yield StepResult(batch, self.losses.get(batch.step, 1 / batch.step), 1.0)

    def evaluate(self, batches: Iterable[GlobalBatch]) -> Evaluation:
        count = sum(batch.size for batch in batches)
        return Evaluation(0.5 * count, 0.25 * count, count, count)

    def state(self) -> State:
        self.calls.append("state")
        return State({"a": np.full(2, len(self.calls), np.float32)}, {"exp_avg.a": np.ones(2, np.float32)})

    def load(self, checkpoint: SavedState) -> None:
        self.calls.append(f"load {checkpoint.position.step}")

    def report(self) -> dict[str, Any]:
        self.calls.append("report")
        return {"peak_memory_bytes": [1, 2]}


class FakeChannel:
    def __init__(self) -> None:
        self.calls: list[str] = []

    def attach(self, stop: Stop) -> None:
        self.calls.append("attach")

    def wait(self, seconds: float) -> bool:
        self.calls.append("wait")
        return True

    def close(self) -> None:
        self.calls.append("close")


class FakeGroup:
    rank = 0

    def __init__(self, channel: FakeChannel | None) -> None:
        self.channel = channel


class Rank:
    """A rank that runs `train_rank` with the strategy `fake`. `channel` connects its stop."""

    def __init__(self, config: Config, inputs: PreparedInputs, run_dir: Path) -> None:
        train = replace(config.train, steps=6, checkpoint_every=2, log_every=1, warmup_steps_untimed=0)
        schedule = replace(config.schedule, total_steps=6, warmup_steps=0)
        self.config = replace(config, train=train, schedule=schedule, run_dir=str(run_dir))
        self.inputs, self.run_dir, self.channel = inputs, run_dir, FakeChannel()
        self.fake = Fake({}, lambda step: None)
        self.profiled: list[Path] = []

    def __call__(
        self,
        losses: dict[int, float] | None = None,
        before: Callable[[int], None] = lambda step: None,
        is_chief: bool = True,
        problem: Exception | None = None,
    ) -> int:
        self.fake = Fake(losses or {}, before)

        def join_group(context: RunContext) -> FakeGroup:
            if problem is not None:
                raise problem
            return FakeGroup(self.channel)

        def make_strategy(context: RunContext, group: FakeGroup) -> Fake:
            return self.fake

        context = RunContext(self.config, "torch", self.inputs, is_chief)
        return train_rank(context, SideRuntime(join_group, make_strategy, self.profile, self.compilations, dict))

    def compilations(self) -> dict[str, Any]:
        return {"compilations": 3}

    @contextmanager
    def profile(self, path: Path) -> Iterator[None]:
        self.profiled.append(path)
        yield

    @property
    def summary(self) -> dict[str, Any]:
        written: dict[str, Any] = json.loads((self.run_dir / "summary.json").read_text())
        return written


@pytest.fixture
def rank(context: RunContext, run_dir: Path) -> Rank:
    return Rank(context.config, context.inputs, run_dir)


@pytest.mark.parametrize("compiled", [False, True])
def test_the_summary_counts_compilations(rank: Rank, compiled: bool) -> None:
    rank.config = replace(rank.config, train=replace(rank.config.train, compile=compiled))
    assert rank() == 0
    assert rank.summary.get("compilations") == (3 if compiled else None)


def test_a_run_that_completes(rank: Rank) -> None:
    assert rank() == 0
    summary = rank.summary
    assert (summary["status"], summary["steps"], summary["resumed_from"]) == ("completed", 6, 0)
    assert (summary["peak_memory_bytes"], summary["accuracy"]) == ([1, 2], 0.25)
    assert summary["fingerprints"] == {
        "token_cache": rank.inputs.cache.fingerprint,
        "initial_weights": rank.inputs.initial.fingerprint,
    }
    assert [row["step"] for row in read_rows(rank.run_dir / "metrics.jsonl")] == [1, 2, 3, 4, 5, 6]
    checkpoint = find_newest_checkpoint(rank.run_dir)
    assert checkpoint is not None and checkpoint.position.step == 6
    assert (rank.run_dir / "model" / "model.safetensors").exists()
    assert rank.fake.calls[-1] == "report"
    assert rank.channel.calls == ["attach", "close"]
    assert "step 6/6  loss 0.166667" in (rank.run_dir / "train.log").read_text()


@pytest.mark.parametrize("is_chief", [True, False])
def test_every_rank_writes_a_profile_where_it_is_asked_for(rank: Rank, is_chief: bool) -> None:
    for profile, expected in ((False, []), (True, [rank.run_dir / "profile" / "rank-0.json.gz"])):
        rank.config = replace(rank.config, train=replace(rank.config.train, profile=profile, steps=12))
        assert rank(is_chief=is_chief) == 0
        assert rank.profiled == expected


def test_another_rank_makes_the_same_calls_and_writes_nothing(rank: Rank) -> None:
    assert rank() == 0
    chief = rank.fake.calls
    written = sorted(rank.run_dir.rglob("*"))
    assert rank(is_chief=False) == 0
    assert rank.fake.calls == chief
    assert chief.count("state") == 3
    assert sorted(rank.run_dir.rglob("*")) == written


@pytest.mark.slow
@pytest.mark.parametrize("is_chief", [True, False])
def test_every_rank_loads_the_checkpoint(make_run: MakeRun, small_config: MakeConfig, is_chief: bool) -> None:
    run_dir = make_run("run", "schedule.total_steps=6")
    checkpoint = find_newest_checkpoint(run_dir)
    config = small_config("schedule.total_steps=6", "strategy.replicas=1")
    rank = Rank(config, PreparedInputs(*_opened(config), checkpoint), run_dir)
    assert rank(is_chief=is_chief) == 0
    assert rank.fake.calls == ["load 4", "train 5", "train 6", "state", "report"]
    if is_chief:
        assert rank.summary["resumed_from"] == 4
        assert [row["step"] for row in read_rows(run_dir / "metrics.jsonl")] == [1, 2, 3, 4, 5, 6]


def test_a_users_error_before_training(rank: Rank, capsys: pytest.CaptureFixture[str]) -> None:
    problem = UserError("rank 1 differs from rank 0 in data; use the same on every host")
    assert rank(problem=problem) == 2
    assert capsys.readouterr().err == f"error: {problem}\n"
    assert (rank.summary["status"], rank.summary["error"]) == ("failed", str(problem))
    (rank.run_dir / "summary.json").unlink()
    assert rank(problem=problem, is_chief=False) == 2
    assert not (rank.run_dir / "summary.json").exists()


@pytest.mark.parametrize("is_chief", [True, False])
def test_an_error_of_a_framework_before_training(rank: Rank, is_chief: bool) -> None:
    with pytest.raises(RuntimeError, match="no device"):
        rank(problem=RuntimeError("no device"), is_chief=is_chief)
    assert (rank.run_dir / "train.log").exists() == is_chief
    assert not (rank.run_dir / "summary.json").exists()  # another rank may have failed before
    if is_chief:
        lines = (rank.run_dir / "train.log").read_text().splitlines()
        assert lines[0].startswith("Traceback")
        assert lines[-1].startswith(f"failed: RuntimeError: no device ({os.path.relpath(__file__)}, line ")


def test_a_summary_that_cannot_be_written_fails_the_run(
    rank: Rank, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def write_to_a_full_disk(path: Path, text: str) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(summary, "replace_text", write_to_a_full_disk)
    assert rank() == 1
    message = f"failed: {rank.run_dir / 'summary.json'}: cannot be written (No space left on device); "
    assert message in capsys.readouterr().err


def test_rows_that_cannot_be_continued_are_an_error_before_training(
    rank: Rank, capsys: pytest.CaptureFixture[str]
) -> None:
    (rank.run_dir / "metrics.jsonl").mkdir()
    assert rank() == 2
    assert capsys.readouterr().err == f"error: {rank.run_dir}/metrics.jsonl: cannot be read: Is a directory\n"


@pytest.mark.parametrize("is_chief", [True, False])
def test_another_rank_does_not_arrive(rank: Rank, capsys: pytest.CaptureFixture[str], is_chief: bool) -> None:
    """A scheduler may retry. The command prints the error in the chief's summary, so the chief does not print it."""
    problem = PeerTimeout("cluster.timeout=1: rank 1 did not arrive in time")
    assert rank(problem=problem, is_chief=is_chief) == 1
    assert capsys.readouterr().err == ("" if is_chief else f"error: {problem}\n")
    if is_chief:
        assert (rank.summary["status"], rank.summary["error"]) == ("failed", str(problem))


def test_an_interrupted_chief(rank: Rank) -> None:
    rank.channel = None  # type: ignore[assignment]
    assert rank(before=lambda step: signal.raise_signal(signal.SIGTERM) if step == 3 else None) == 143
    assert (rank.summary["status"], rank.summary["error"]) == ("interrupted", "stopped by SIGTERM")
    checkpoint = find_newest_checkpoint(rank.run_dir)
    assert checkpoint is not None and checkpoint.position.step == 3
    assert not (rank.run_dir / "model").exists()
    assert "report" not in rank.fake.calls


def test_another_rank_waits_until_the_chief_has_saved(rank: Rank, monkeypatch: pytest.MonkeyPatch) -> None:
    def decide(stop: Stop) -> None:
        stop.decide(stop.freeze(signal.SIGTERM) + 3)

    monkeypatch.setattr(rank.channel, "attach", decide)
    assert rank(is_chief=False) == 143
    assert rank.fake.calls == ["train 1", "train 2", "state"]
    assert rank.channel.calls == ["wait", "close"]


def test_a_loss_that_is_not_finite(rank: Rank) -> None:
    assert rank({5: math.nan}) == 1
    assert rank.summary["status"] == "failed"
    assert rank.summary["error"].startswith("step 5: the loss is nan; training examples [")
    checkpoint = find_newest_checkpoint(rank.run_dir)
    assert checkpoint is not None and checkpoint.position.step == 4


def test_a_summary_that_cannot_be_written(
    rank: Rank, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The command reads the end of the run from the summary. Without a summary the chief prints it."""

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("common.run.summary.replace_text", full)
    assert rank({5: math.nan}) == 1
    assert capsys.readouterr().err.startswith("failed: step 5: the loss is nan; ")


@pytest.mark.slow
def test_an_error_of_a_framework(rank: Rank, capsys: pytest.CaptureFixture[str]) -> None:
    def crash(step: int) -> None:
        if step == 3:
            raise RuntimeError("out of memory\nwhile allocating")

    assert rank(before=crash) == 1
    place = f" ({os.path.relpath(__file__)}, line "  # of the code outside of Lockstep that raised it
    assert rank.summary["error"].startswith("RuntimeError: out of memory while allocating" + place)
    assert "Traceback" in (rank.run_dir / "train.log").read_text()
    assert rank.channel.calls == ["attach", "close"]


def test_a_checkpoint_that_cannot_be_written(rank: Rank, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("common.run.checkpoint_writer.write_tensors", fail)
    assert rank() == 1
    assert rank.summary["status"] == "failed"
    assert "step-00000002: cannot be written (No space left on device)" in rank.summary["error"]


def _opened(config: Config) -> tuple[Any, Any]:
    from common.run.prepare import prepare_inputs

    _, prepared = prepare_inputs(config, None)
    return prepared.cache, prepared.initial
