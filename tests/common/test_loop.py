import math
import signal
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from common import loop
from common.config import Config
from common.data.batches import GlobalBatch
from common.data.cache import TokenCache
from common.data.plan import example_ids
from common.loop import Evaluation, NonFiniteLoss, StepResult
from common.processes import Interrupted, Stop
from common.record import Recorder, read_rows
from tests.conftest import MakeConfig, MakeSplit

TRAIN, VALIDATION = 10, 7


class OnDevice:
    """A number that remembers when it was fetched."""

    def __init__(self, value: float, fetched: Callable[[], None]) -> None:
        self.value, self.fetched = value, fetched

    def __float__(self) -> float:
        self.fetched()
        return self.value


class Fake:
    """A strategy in memory: the loss of step k is 1 / k, or what `losses` says."""

    world_size = 2
    is_chief = True

    def __init__(self, losses: dict[int, float] | None = None, before: Callable[[int], None] | None = None) -> None:
        self.losses, self.before = losses or {}, before
        self.calls: list[tuple[str, int]] = []
        self.trained: list[GlobalBatch] = []

    def train(self, batches: Iterable[GlobalBatch]) -> Iterator[StepResult]:
        for batch in batches:
            if self.before is not None:
                self.before(batch.step)
            self.trained.append(batch)
            self.calls.append(("train", batch.step))
            loss = self.losses.get(batch.step, 1 / batch.step)
            fetched = OnDevice(loss, lambda step=batch.step: self.calls.append(("fetch", step)))  # type: ignore[misc]
            yield StepResult(batch, fetched, 2.0 * batch.step)

    def evaluate(self, batches: Iterable[GlobalBatch]) -> Evaluation:
        ids = np.concatenate([batch.ids for batch in batches]).tolist()
        assert ids == list(range(VALIDATION))
        self.calls.append(("evaluate", len(self.trained)))
        return Evaluation(0.5 * len(ids), 0.25 * len(ids), len(ids))

    def state(self) -> dict[str, np.ndarray]:
        return {}

    def report(self) -> dict[str, Any]:
        return {"peak_memory_bytes": [1, 2]}


@pytest.fixture
def stop() -> Iterator[Stop]:
    stop = Stop()
    yield stop
    stop.restore()


@pytest.fixture
def cache(make_split: MakeSplit, tmp_path: Path) -> TokenCache:
    """Examples of 3, 4, 5, 3, ... tokens."""
    train, validation = (make_split([3 + index % 3 for index in range(count)]) for count in (TRAIN, VALIDATION))
    return TokenCache(tmp_path, "", train, validation, ["a", "b", "c"], 100, 0)


class Run:
    """Runs the loop and reads what it recorded."""

    def __init__(self, config: Config, cache: TokenCache, stop: Stop, directory: Path) -> None:
        self.config, self.cache, self.stop, self.directory = config, cache, stop, directory

    def __call__(self, strategy: Fake, record: bool = True, **train: Any) -> dict[str, Any]:
        for key, value in {"steps": 7, "global_batch_size": 4, "log_every": 3, **train}.items():
            assert hasattr(self.config.train, key)
            setattr(self.config.train, key, value)
        self.config.schedule.total_steps = self.config.train.steps
        recorder = Recorder(self.directory) if record else None
        try:
            return loop.run(self.config, strategy, self.cache, recorder, self.stop)
        finally:
            if recorder is not None:
                recorder.close()

    @property
    def steps(self) -> list[dict[str, Any]]:
        return read_rows(self.directory / "metrics.jsonl")

    @property
    def evals(self) -> list[dict[str, Any]]:
        return read_rows(self.directory / "evals.jsonl")


@pytest.fixture
def run(make_config: MakeConfig, cache: TokenCache, stop: Stop, tmp_path: Path) -> Run:
    directory = tmp_path / "run"
    directory.mkdir()
    return Run(
        make_config("schedule=linear", "schedule.warmup_steps=0", "optimizer.learning_rate=1e-3", "train.seed=7"),
        cache,
        stop,
        directory,
    )


@pytest.mark.parametrize("log_every", [1, 3, 7, 100])
@pytest.mark.parametrize("eval_every", [None, 1, 2, 100])
def test_every_step_is_recorded_once(run: Run, log_every: int, eval_every: int | None) -> None:
    fake = Fake()
    assert run(fake, log_every=log_every, eval_every=eval_every) == {"peak_memory_bytes": [1, 2]}
    rows = run.steps
    assert [row["step"] for row in rows] == list(range(1, 8))
    assert [row["loss"] for row in rows] == [1 / step for step in range(1, 8)]
    assert [row["grad_norm"] for row in rows] == [2 * step for step in range(1, 8)]
    assert [row["learning_rate"] for row in rows] == pytest.approx([1e-3 * (1 - k / 7) for k in range(7)])
    assert [row["examples"] for row in rows] == [4, 8, 10, 14, 18, 20, 24]
    assert [row["tokens"] for row in rows] == np.cumsum([batch.tokens for batch in fake.trained]).tolist()
    assert rows[2]["tokens"] == run.cache.train.offsets[-1], "an epoch"
    seconds = [row["seconds"] for row in rows]
    assert seconds == sorted(seconds) and seconds[0] > 0
    assert rows[0].keys() == {"step", "loss", "examples", "tokens", "learning_rate", "grad_norm", "seconds"}


def test_the_batches_are_the_plans(run: Run) -> None:
    fake = Fake()
    run(fake, eval_every=2)
    for batch in fake.trained:
        assert batch.ids.tolist() == example_ids(TRAIN, 4, 7, batch.step).tolist()


@pytest.mark.parametrize(
    ("eval_every", "expected"), [(None, [7]), (2, [2, 4, 6, 7]), (7, [7]), (100, [7]), (1, [1, 2, 3, 4, 5, 6, 7])]
)
def test_evaluates_at_the_right_steps(run: Run, eval_every: int | None, expected: list[int]) -> None:
    fake = Fake()
    run(fake, eval_every=eval_every)
    assert [step for what, step in fake.calls if what == "evaluate"] == expected
    assert [row["step"] for row in run.evals] == expected
    assert [row["examples"] for row in run.evals] == [run.steps[step - 1]["examples"] for step in expected]
    row = run.evals[-1]
    assert (row["loss"], row["accuracy"], row["count"]) == (0.5, 0.25, VALIDATION)


def test_losses_are_fetched_in_blocks(run: Run) -> None:
    fake = Fake()
    run(fake)
    train, fetch = ([(what, step) for step in range(1, 8)] for what in ("train", "fetch"))
    assert fake.calls == [*train[:3], *fetch[:3], *train[3:6], *fetch[3:6], train[6], fetch[6], ("evaluate", 7)]


@pytest.mark.parametrize("loss", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("step", [1, 2, 5, 7])
def test_a_loss_that_is_not_finite(run: Run, loss: float, step: int) -> None:
    with pytest.raises(NonFiniteLoss) as raised:
        run(Fake({step: loss}))
    ids = example_ids(TRAIN, 4, 7, step).tolist()
    assert str(raised.value) == f"step {step}: the loss is {loss}; training examples {ids}"
    assert [row["step"] for row in run.steps] == list(range(1, step)), "everything before it is kept"
    assert run.evals == []


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
def test_a_stop_request_ends_training(run: Run, signum: signal.Signals) -> None:
    fake = Fake(before=lambda step: signal.raise_signal(signum) if step == 5 else None)
    with pytest.raises(Interrupted) as raised:
        run(fake)
    assert raised.value.exit_code == 128 + signum
    assert str(raised.value) == f"stopped by {signum.name}"
    assert [row["step"] for row in run.steps] == [1, 2, 3, 4, 5], "the step that was under way is the last"
    assert run.evals == []


def test_a_stop_request_ends_evaluation(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def evaluate(batches: Iterable[GlobalBatch]) -> Evaluation:
        seen = 0
        for batch in batches:
            seen += batch.size
            signal.raise_signal(signal.SIGTERM)
        assert seen == 4, "one batch"
        return Evaluation(0.5 * seen, 0.5 * seen, seen)

    fake = Fake()
    monkeypatch.setattr(fake, "evaluate", evaluate)
    with pytest.raises(Interrupted):
        run(fake)
    assert len(run.steps) == 7
    assert run.evals == [], "half an evaluation is none"


def test_other_ranks_train_and_evaluate_and_record_nothing(run: Run) -> None:
    fake = Fake()
    fake.is_chief = False
    run(fake, record=False, eval_every=4)
    assert [step for what, step in fake.calls if what == "evaluate"] == [4, 7]
    assert not list(run.directory.iterdir())
    with pytest.raises(NonFiniteLoss):
        run(Fake({2: math.nan}), record=False)
