import logging
import math
import signal
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from common.cluster.stop_member import StopMember
from common.cluster.stop_server import StopServer
from common.config.schema import Config
from common.data.batch_plan import select_example_ids
from common.data.batches import GlobalBatch
from common.data.text.token_cache import TokenCache
from common.errors import Interrupted
from common.models.initial_weights import InitialCheckpoint
from common.models.task_outputs import OutputLayout
from common.run.checkpoint import Checkpoint, find_newest_checkpoint, list_checkpoints, open_checkpoint
from common.run.checkpoint_writer import CheckpointWriter
from common.run.context import RunContext
from common.run.inputs import PreparedInputs
from common.run.recorder import Recorder
from common.training.loop import Loop, NonFiniteLossError
from common.training.observer import Observer
from common.training.rows import read_rows
from common.training.state import Position, State
from common.training.state import SavedState as SavedState
from common.training.stop import Stop
from common.training.strategy import Evaluation, StepResult, Strategy
from tests.conftest import MakeConfig, MakeSplit
from tests.unit.common.training import sharded
from tests.unit.common.training.sharded import Collectives, MismatchError, Sharded, run_together

TRAIN, VALIDATION = 10, 7


class OnDevice:
    """A number that remembers when it was fetched."""

    def __init__(self, value: float, fetched: Callable[[], None]) -> None:
        self.value, self.fetched = value, fetched

    def __float__(self) -> float:
        self.fetched()
        return self.value


class Fake(Strategy):
    """A strategy in memory. The loss of step k is 1 / k unless `losses` has another value."""

    world_size = 2
    is_chief = True
    optimizer: SimpleNamespace

    def __init__(
        self,
        losses: dict[int, float] | None = None,
        before: Callable[[int], None] | None = None,
        validation: Iterable[tuple[float, float]] = (),
    ) -> None:
        self.losses, self.before = losses or {}, before
        self.validation = iter(validation)
        self.calls: list[tuple[str, int]] = []
        self.states = 0
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
        assert sorted(ids) == list(range(VALIDATION))
        self.calls.append(("evaluate", len(self.trained)))
        loss, accuracy = next(self.validation, (0.5, 0.25))
        return Evaluation(loss * len(ids), accuracy * len(ids), len(ids), len(ids))

    def state(self) -> State:
        self.states += 1
        return State({}, {})

    def load(self, checkpoint: SavedState) -> None:
        raise NotImplementedError

    def report(self) -> dict[str, Any]:
        raise NotImplementedError


@pytest.fixture
def cache(make_split: MakeSplit, tmp_path: Path) -> TokenCache:
    """Return a cache of examples that have 3, 4, 5, 3, ... tokens."""
    train, validation = (make_split([3 + index % 3 for index in range(count)]) for count in (TRAIN, VALIDATION))
    return TokenCache(tmp_path, "", train, validation, ["a", "b", "c"], 100, 0)


class Positions(Observer):
    """An observer that collects the positions of checkpoints."""

    def __init__(self) -> None:
        self.positions: list[Position] = []

    def save(self, state: State, position: Position) -> None:
        self.positions.append(replace(position))


@dataclass(frozen=True)
class Inputs:
    """The inputs of a run with one output."""

    cache: TokenCache
    start: Position
    output_layouts: tuple[OutputLayout, ...] = ()


class Run:
    """A run of the loop, with the rows and the checkpoints that it writes."""

    def __init__(self, config: Config, cache: TokenCache, stop: Stop, directory: Path) -> None:
        self.config, self.cache, self.stop, self.directory = config, cache, stop, directory
        self.saved = Positions()

    def __call__(self, strategy: Fake, record: bool = True, start: Position | None = None, **train: Any) -> None:
        config = with_train(self.config, **{"steps": 7, "global_batch_size": 4, "log_every": 3, **train})
        start = start or Position()
        recorder = Recorder(self.directory, start, "torch single") if record else None
        observers: list[Observer] = [recorder, self.saved] if recorder is not None else []
        try:
            Loop(config, strategy, Inputs(self.cache, start), self.stop, observers).run()
        finally:
            if recorder is not None:
                recorder.close()

    @property
    def steps(self) -> list[dict[str, Any]]:
        """Return the rows of the steps, without the field that the recorder adds to the first row after each start."""
        rows = read_rows(self.directory / "metrics.jsonl")
        return [{key: value for key, value in row.items() if key != "trained_by"} for row in rows]

    @property
    def evals(self) -> list[dict[str, Any]]:
        return read_rows(self.directory / "evals.jsonl")

    @property
    def saved_steps(self) -> list[int]:
        return [position.step for position in self.saved.positions]

    def clear_stop(self) -> None:
        """Replace the stop, as a new process would."""
        self.stop.restore()
        self.stop = Stop()


def with_train(config: Config, **train: Any) -> Config:
    """Return the config with other values of `train`. The schedule ends with the run."""
    changed = replace(config.train, **train)
    return replace(config, train=changed, schedule=replace(config.schedule, total_steps=changed.steps))


@pytest.fixture
def run(config: Config, cache: TokenCache, tmp_path: Path) -> Iterator[Run]:
    directory = tmp_path / "run"
    directory.mkdir()
    run = Run(config, cache, Stop(), directory)
    yield run
    run.stop.restore()


@pytest.fixture
def config(make_config: MakeConfig) -> Config:
    return make_config("schedule=linear", "schedule.warmup_steps=0", "optimizer.learning_rate=1e-3", "train.seed=7")


@pytest.mark.parametrize("log_every", [1, 3, 7, 100])
@pytest.mark.parametrize("eval_every", [None, 1, 2, 100])
def test_every_step_is_recorded_once(run: Run, log_every: int, eval_every: int | None) -> None:
    fake = Fake()
    run(fake, log_every=log_every, eval_every=eval_every)
    rows = run.steps
    assert [row["step"] for row in rows] == list(range(1, 8))
    assert [row["loss"] for row in rows] == [1 / step for step in range(1, 8)]
    assert [row["grad_norm"] for row in rows] == [2 * step for step in range(1, 8)]
    assert [row["learning_rate"] for row in rows] == pytest.approx([1e-3 * (1 - k / 7) for k in range(7)])
    assert [row["examples"] for row in rows] == [4, 8, 10, 14, 18, 20, 24]
    assert [row["tokens"] for row in rows] == np.cumsum([batch.tokens for batch in fake.trained]).tolist()
    assert rows[2]["tokens"] == run.cache.train.offsets[-1], "the first three steps are one epoch"
    seconds = [row["seconds"] for row in rows]
    assert seconds == sorted(seconds) and seconds[0] > 0
    keys = {"step", "loss", "examples", "tokens", "learning_rate", "grad_norm", "seconds", "replicas"}
    assert rows[0].keys() == keys and {row["replicas"] for row in rows} == {fake.world_size}


def test_the_batches_are_the_plans(run: Run) -> None:
    fake = Fake()
    run(fake, eval_every=2)
    for batch in fake.trained:
        assert batch.ids.tolist() == select_example_ids(TRAIN, 4, 7, batch.step).tolist()


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
    first_calls = [train[0], fetch[0]]  # at once, so that the user soon sees progress
    later_calls = [*train[1:3], *fetch[1:3], *train[3:6], *fetch[3:6], train[6], fetch[6], ("evaluate", 7)]
    assert fake.calls == [*first_calls, *later_calls]


@pytest.mark.parametrize("loss", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("step", [1, 2, 5, 7])
def test_a_loss_that_is_not_finite(run: Run, loss: float, step: int) -> None:
    with pytest.raises(NonFiniteLossError) as raised:
        run(Fake({step: loss}))
    ids = select_example_ids(TRAIN, 4, 7, step).tolist()
    assert str(raised.value) == f"step {step}: the loss is {loss}; training examples {ids}"
    assert [row["step"] for row in run.steps] == list(range(1, step)), "the steps before the loss must be recorded"
    assert run.evals == []


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
def test_a_stop_request_ends_training(run: Run, signum: signal.Signals) -> None:
    fake = Fake(before=lambda step: signal.raise_signal(signum) if step == 5 else None)
    with pytest.raises(Interrupted) as raised:
        run(fake)
    assert raised.value.exit_code == 128 + signum
    assert str(raised.value) == f"stopped by {signum.name}"
    assert [row["step"] for row in run.steps] == [1, 2, 3, 4, 5], "the run must end after the current step"
    assert run.evals == []
    assert run.saved_steps == [5]


def test_a_stop_request_ends_evaluation(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def evaluate(batches: Iterable[GlobalBatch]) -> Evaluation:
        seen = 0
        for batch in batches:
            seen += batch.size
            signal.raise_signal(signal.SIGTERM)
            assert seen == 4, "the evaluation must end after one batch"
        raise AssertionError("an all-reduce, which the other ranks would enter later")

    fake = Fake()
    monkeypatch.setattr(fake, "evaluate", evaluate)
    with pytest.raises(Interrupted):
        run(fake)
    run.clear_stop()
    assert len(run.steps) == 7
    assert run.evals == [], "an interrupted evaluation must not be recorded"
    assert [(position.step, position.validation) for position in run.saved.positions] == [(7, None)]
    resumed = Fake()
    run(resumed, start=run.saved.positions[-1])
    assert resumed.calls == [("evaluate", 0)], "the resumed run must make the missing evaluation"
    assert [row["step"] for row in run.evals] == [7] and len(run.steps) == 7
    assert [(position.step, position.validation) for position in run.saved.positions[1:]] == [
        (7, {"loss": 0.5, "accuracy": 0.25})
    ]


def test_other_ranks_train_and_evaluate_and_record_nothing(run: Run) -> None:
    fake = Fake()
    fake.is_chief = False
    run(fake, record=False, eval_every=4, checkpoint_every=3)
    assert [step for what, step in fake.calls if what == "evaluate"] == [4, 7]
    assert fake.states == 3, "a sharded strategy gathers its state at steps 3, 6 and 7"
    assert not list(run.directory.iterdir())
    with pytest.raises(NonFiniteLossError):
        run(Fake({2: math.nan}), record=False)


# Checkpoints


@pytest.mark.parametrize(
    ("checkpoint_every", "expected"), [(None, [7]), (2, [2, 4, 6, 7]), (7, [7]), (100, [7]), (1, [1, 2, 3, 4, 5, 6, 7])]
)
def test_saves_at_the_right_steps(run: Run, checkpoint_every: int | None, expected: list[int]) -> None:
    run(Fake(), checkpoint_every=checkpoint_every, eval_every=4)
    assert run.saved_steps == expected
    assert [position.step for position in run.saved.positions if position.validation] == sorted({4, 7} & {*expected})
    for position in run.saved.positions:
        row = run.steps[position.step - 1]
        assert (position.plan_position, position.examples, position.tokens) == (
            row["step"],
            row["examples"],
            row["tokens"],
        )
        assert position.seconds >= row["seconds"]


def test_rows_are_on_the_disk_before_the_checkpoint_after_them(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[int] = []  # the number of rows at each checkpoint
    monkeypatch.setattr("os.fsync", lambda descriptor: synced.append(len(run.steps)))
    run(Fake(), checkpoint_every=2)
    # fsync is called for metrics.jsonl and for evals.jsonl
    assert synced[::2] == synced[1::2] == run.saved_steps == [2, 4, 6, 7]


@pytest.mark.parametrize("at", range(1, 7))
def test_continues_from_every_position(run: Run, at: int) -> None:
    """The rows equal those of an uninterrupted run. Rows past the position are written again, once."""
    run(Fake(), checkpoint_every=1, eval_every=2)
    whole, evals, positions = run.steps, run.evals, run.saved.positions
    run.saved = Positions()
    fake = Fake()
    run(fake, checkpoint_every=1, eval_every=2, start=positions[at - 1])
    assert [batch.step for batch in fake.trained] == list(range(at + 1, 8))
    timeless = [[{**row, "seconds": 0} for row in rows] for rows in (whole, run.steps)]
    assert timeless[0] == timeless[1]
    seconds = [row["seconds"] for row in run.steps]
    assert seconds == sorted(seconds)
    assert [row["step"] for row in run.evals] == [row["step"] for row in evals]
    assert [replace(position, seconds=0) for position in run.saved.positions] == [
        replace(position, seconds=0) for position in positions[at:]
    ]


def test_nothing_is_left_to_do(run: Run) -> None:
    run(Fake())
    (position,) = run.saved.positions
    fake = Fake()
    run(fake, start=position)
    assert fake.calls == [] and len(run.saved.positions) == 1
    assert len(run.steps) == 7 and len(run.evals) == 1


@pytest.mark.parametrize(("steps", "eval_every"), [(20, None), (20, 4), (13, None), (15, 15), (10, None)])
def test_some_steps_are_profiled(run: Run, steps: int, eval_every: int | None) -> None:
    profiled: list[int] = []
    inside = False

    @contextmanager
    def profile() -> Iterator[None]:
        nonlocal inside
        inside = True
        yield
        inside = False

    def train(batches: Iterable[GlobalBatch]) -> Iterator[StepResult]:
        for batch in batches:
            if inside:
                profiled.append(batch.step)
            yield StepResult(batch, 1.0, 1.0)

    strategy = Fake()
    strategy.train = train  # type: ignore[method-assign]
    config = with_train(run.config, steps=steps, eval_every=eval_every, global_batch_size=4, log_every=3)
    Loop(config, strategy, Inputs(run.cache, Position()), run.stop, profile=profile).run()
    assert profiled == [step for step in range(11, 16) if step <= steps] and not inside


def test_a_loss_that_is_not_finite_saves_nothing_more(run: Run) -> None:
    with pytest.raises(NonFiniteLossError):
        run(Fake({6: math.nan}), checkpoint_every=4)
    assert run.saved_steps == [4]


class Clock:
    """A replacement of the module `time`. A step takes 10 s, an evaluation 50 s and a checkpoint 30 s."""

    def __init__(self, strategy: Fake) -> None:
        self.now = 0.0
        for name, seconds in (("evaluate", 50.0), ("state", 30.0)):
            setattr(strategy, name, self._lasting(seconds, getattr(strategy, name)))
        strategy.before = lambda step: self._pass(10.0)

    def perf_counter(self) -> float:
        return self.now

    def _pass(self, seconds: float) -> None:
        self.now += seconds

    def _lasting(self, seconds: float, call: Callable[..., Any]) -> Callable[..., Any]:
        def last(*arguments: Any) -> Any:
            self._pass(seconds)
            return call(*arguments)

        return last


@pytest.mark.parametrize(
    ("checkpoint_seconds", "others", "expected"),
    [
        (None, {}, [7]),
        (1, {}, [1, 2, 3, 4, 5, 6, 7]),
        (10, {}, [1, 2, 3, 4, 5, 6, 7]),
        (10.5, {}, [2, 4, 6, 7]),
        (25, {}, [3, 6, 7]),  # the seconds count from the end of a checkpoint
        (100, {}, [7]),
        (25, {"checkpoint_every": 2}, [2, 4, 6, 7]),  # every checkpoint starts the count again
        (15, {"checkpoint_every": 3}, [2, 3, 5, 6, 7]),
        (25, {"eval_every": 2}, [3, 5, 7]),
        (25, {"eval_every": 1}, [2, 4, 6, 7]),
        (25, {"log_every": 100}, [3, 6, 7]),
        (15, {"virtual_epoch_examples": 10}, [2, 3, 5, 6, 7]),
    ],
)
def test_saves_by_the_clock(
    run: Run,
    monkeypatch: pytest.MonkeyPatch,
    checkpoint_seconds: float | None,
    others: dict[str, Any],
    expected: list[int],
) -> None:
    fake = Fake()
    monkeypatch.setattr("common.training.loop.time", Clock(fake))
    run(fake, checkpoint_seconds=checkpoint_seconds, **{"checkpoint_every": None, **others})
    assert run.saved_steps == expected
    assert [batch.step for batch in fake.trained] == [row["step"] for row in run.steps] == list(range(1, 8))
    assert all(position.plan_position == position.step for position in run.saved.positions)


def test_the_clock_starts_anew_where_a_run_is_resumed(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = Fake()
    monkeypatch.setattr("common.training.loop.time", Clock(fake))
    run(fake, checkpoint_seconds=25, checkpoint_every=None, start=Position(seconds=1000.0))
    assert run.saved_steps == [3, 6, 7]


def test_the_clock_of_another_rank_decides_nothing(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = Fake()
    fake.is_chief = False
    monkeypatch.setattr("common.training.loop.time", Clock(fake))
    run(fake, record=False, checkpoint_seconds=1, checkpoint_every=None)
    assert fake.states == 1, "the state must be gathered only at the end"


# Virtual epochs and early stopping


@pytest.mark.parametrize(
    ("examples", "expected"),
    [(10, [3, 6, 7]), (8, [2, 5, 7]), (20, [6, 7]), (3, [1, 2, 3, 4, 5, 7]), (1000, [7])],
)
def test_virtual_epochs_count_examples(run: Run, examples: int, expected: list[int]) -> None:
    """The global batches have 4, 4, 2, 4, 4, 2 and 4 examples."""
    run(Fake(), virtual_epoch_examples=examples, eval_every=1, checkpoint_every=1)
    assert [row["step"] for row in run.evals] == run.saved_steps == expected


@pytest.mark.parametrize(
    ("stopping", "validation", "last"),
    [
        ({"patience": 2}, [(0.5, 0), (0.4, 0), (0.4, 0), (0.41, 0), (0.1, 0)], 4),
        ({"patience": 1}, [(0.5, 0), (0.4, 0), (0.3, 0), (0.2, 0), (0.3, 0)], 5),
        ({"patience": 1, "min_delta": 0.15}, [(0.5, 0), (0.4, 0), (0.1, 0)], 2),
        ({"patience": 2, "min_delta": 0.15}, [(0.5, 0), (0.4, 0), (0.3, 0), (0.3, 0), (0.2, 0)], 5),
        ({"patience": 2, "metric": "accuracy"}, [(0.1, 0.5), (0.2, 0.6), (0.1, 0.6), (0.0, 0.5)], 4),
        ({"patience": 9}, [(0.5, 0)] * 7, 7),
    ],
)
@pytest.mark.parametrize("stops_at", [None, 1, 2])
def test_early_stopping(
    run: Run,
    stopping: dict[str, Any],
    validation: list[tuple[float, float]],
    last: int,
    stops_at: int | None,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The same holds if the run was interrupted on the way."""
    run.config = with_train(run.config, early_stopping=replace(run.config.train.early_stopping, **stopping))
    before: Callable[[int], None] | None = None
    if stops_at is not None:
        before = lambda step: signal.raise_signal(signal.SIGTERM) if step == stops_at else None  # noqa: E731
        with pytest.raises(Interrupted):
            run(Fake(before=before, validation=validation), eval_every=1)
        run.clear_stop()
    done = len(run.evals)
    start = run.saved.positions[-1] if stops_at else None
    with caplog.at_level(logging.INFO, "lockstep"):
        run(Fake(validation=validation[done:]), eval_every=1, start=start)
    assert ("stopping early" in caplog.text) == (last < 7)
    assert [row["step"] for row in run.steps] == [row["step"] for row in run.evals] == list(range(1, last + 1))
    assert run.saved_steps[-1] == last


# A strategy that shards the parameters


class ShardedRun:
    """A run of two ranks with a loop each. The first rank records and saves in `directory`."""

    def __init__(self, config: Config, cache: TokenCache, directory: Path) -> None:
        optimizer = replace(config.optimizer, learning_rate=0.05)
        values = {"steps": 7, "global_batch_size": 4, "eval_every": 3, "checkpoint_every": 2, "log_every": 2}
        self.config = with_train(replace(config, optimizer=optimizer), **values)
        self.cache, self.directory = cache, directory
        directory.mkdir()
        initial = directory.parent / "initial"
        initial.mkdir(exist_ok=True)
        self.inputs = PreparedInputs(cache, InitialCheckpoint(initial, "initial"), None)
        self.ranks: list[Sharded] = []

    def __call__(
        self,
        checkpoint: Checkpoint | None = None,
        units: int | None = None,
        loop: type[Loop] = Loop,
        connected: bool = False,
    ) -> list[BaseException | None]:
        """Run both loops. Return the error that each rank raised.

        Args:
            checkpoint: The checkpoint to resume from.
            units: The number of units after which both ranks stop; None for no stop.
            loop: The class of the loop.
            connected: Whether a channel connects the stops of the ranks.
        """
        collectives, start = Collectives(), checkpoint.position if checkpoint else Position()
        self.ranks = [Sharded(self.config, collectives, rank) for rank in (0, 1)]
        stops = [Stop(), Stop()]
        context = RunContext(replace(self.config, run_dir=str(self.directory)), "torch", self.inputs)
        recorder, checkpoints = (
            Recorder(self.directory, start, "torch single"),
            CheckpointWriter(context),
        )
        observers: list[list[Observer]] = [[recorder, checkpoints], []]
        stack = ExitStack()
        try:
            if connected:
                server = stack.enter_context(closing(StopServer("127.0.0.1")))
                stack.enter_context(closing(StopMember(server.address, "rank 1"))).attach(stops[1])
                server.attach(stops[0])
            for rank, stop in zip(self.ranks, stops, strict=True):
                if checkpoint is not None:
                    rank.load(checkpoint)
                if units is not None:
                    stop.freeze(signal.SIGTERM)
                    stop.decide(units)
            loops = [
                loop(self.config, self.ranks[rank], Inputs(self.cache, start), stops[rank], observers[rank])
                for rank in (0, 1)
            ]
            return run_together(loops)
        finally:
            stack.close()
            checkpoints.close()
            recorder.close()
            for stop in reversed(stops):
                stop.restore()

    @property
    def curve(self) -> list[dict[str, Any]]:
        """Return the rows of the steps and of the evaluations, without the fields of time."""
        rows = read_rows(self.directory / "metrics.jsonl") + read_rows(self.directory / "evals.jsonl")
        return [{name: row[name] for name in row if name not in ("seconds", "duration", "trained_by")} for row in rows]


@pytest.fixture
def sharded_run(config: Config, cache: TokenCache, tmp_path: Path) -> Callable[[str], ShardedRun]:
    return lambda name: ShardedRun(config, cache, tmp_path / name)


@pytest.mark.parametrize(
    ("units", "states"),
    [
        (1, [1]),
        (3, [2]),  # a checkpoint was due there; it is saved once
        (5, [2, 3]),  # the stop comes before an evaluation
        (6, [2, 3]),  # the stop comes during the evaluation
        (7, [2, 3]),  # the stop comes after the evaluation
        (9, [2, 4]),
        (10, [2, 4, 5]),
    ],
)
def test_a_sharded_state_is_gathered_by_all_ranks_and_resumed(
    sharded_run: Callable[[str], ShardedRun], units: int, states: list[int]
) -> None:
    """The curve equals that of an uninterrupted run. All ranks gather the state at the same positions."""
    whole = sharded_run("whole")
    assert whole() == [None, None]
    assert whole.ranks[0].states == whole.ranks[1].states == [2, 4, 6, 7]
    assert len({row["loss"] for row in whole.curve}) == len(whole.curve), "a loss depends on all steps before"

    part = sharded_run("part")
    raised = part(units=units)
    assert [str(error) for error in raised] == ["stopped by SIGTERM"] * 2
    assert part.ranks[0].states == part.ranks[1].states == states
    checkpoint = find_newest_checkpoint(part.directory)
    assert checkpoint is not None and checkpoint.position.step == states[-1]
    loaded = checkpoint.load()
    for rank, name in zip(part.ranks, sharded.NAMES, strict=True):
        assert loaded.weights[name] == rank.parameter
        assert loaded.slots[f"momentum_buffer.{name}"] == rank.momentum

    assert part(checkpoint) == [None, None]
    assert part.curve == whole.curve
    assert part.ranks[0].states == part.ranks[1].states == [step for step in (2, 4, 6, 7) if step > states[-1]]
    ends = [find_newest_checkpoint(run.directory) for run in (whole, part)]
    assert ends[0] is not None and ends[1] is not None
    assert ends[0].load().weights == ends[1].load().weights


class ChiefGathers(Loop):
    """A faulty loop in which only the chief asks for the state."""

    def save(self) -> None:
        if self.observers:
            super().save()


@pytest.mark.slow
@pytest.mark.parametrize(("units", "call"), [(None, "state after step 2"), (1, "state after step 1")])
def test_a_state_that_only_the_chief_gathers_is_noticed(
    sharded_run: Callable[[str], ShardedRun], monkeypatch: pytest.MonkeyPatch, units: int | None, call: str
) -> None:
    """The test above would fail: at a checkpoint, and when the run is interrupted."""
    monkeypatch.setattr(sharded, "SECONDS", 1.0)
    raised = sharded_run("run")(units=units, loop=ChiefGathers)
    assert isinstance(raised[0], MismatchError)
    assert call in str(raised[0])


@pytest.fixture
def timed_run(sharded_run: Callable[[str], ShardedRun]) -> Callable[[str, float | None], ShardedRun]:
    """Return a function that makes a longer run. Its checkpoints are due by the clock and at the end."""

    def make(name: str, checkpoint_seconds: float | None) -> ShardedRun:
        run = sharded_run(name)
        values = {"steps": 30, "checkpoint_every": None, "keep_checkpoints": 99}
        run.config = with_train(run.config, **values, checkpoint_seconds=checkpoint_seconds)
        return run

    return make


@pytest.mark.slow
def test_ranks_save_the_same_steps_by_the_clock_of_the_chief(
    timed_run: Callable[[str, float | None], ShardedRun],
) -> None:
    """Ranks save after almost every step. Neither the checkpoints nor a resume from one changes the curve."""
    whole, timed = timed_run("whole", None), timed_run("timed", 1e-9)
    assert whole() == [None, None]
    assert whole.ranks[0].states == [30]
    assert timed(connected=True) == [None, None]
    assert timed.curve == whole.curve
    steps = timed.ranks[0].states
    assert steps == timed.ranks[1].states and steps[-1] == 30 and len(steps) > 5
    assert [open_checkpoint(path).position.step for path in list_checkpoints(timed.directory)] == steps
    checkpoint = open_checkpoint(list_checkpoints(timed.directory)[len(steps) // 2])
    assert timed(checkpoint, connected=True) == [None, None]
    assert timed.curve == whole.curve


def test_ranks_whose_clocks_decide_alone_are_noticed(
    timed_run: Callable[[str, float | None], ShardedRun], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The test above would fail if the ranks did not agree."""
    monkeypatch.setattr(sharded, "SECONDS", 1.0)
    raised = timed_run("run", 1e-9)()
    assert isinstance(raised[0], MismatchError) and "state after step 1" in str(raised[0])


@pytest.mark.parametrize("stops_at", [None, 1, 2, 3, 5])
def test_plateaus_lower_the_rate(run: Run, make_config: MakeConfig, stops_at: int | None) -> None:
    """The same holds if the run was interrupted on the way, or ended there first, with one more evaluation."""
    keys = ("schedule.patience=0", "schedule.factor=0.5", "schedule.threshold=0", "train.eval_every=2")
    run.config = make_config("schedule=plateau", *keys, "optimizer.learning_rate=1.0")
    losses = {2: 0.5, 4: 0.5, 6: 0.4}
    start, fakes = None, []
    for steps in (7,) if stops_at is None else (stops_at, 7):
        first = 0 if start is None else start.step
        validation = [(losses.get(step, 0.9), 0.0) for step in range(first + 1, steps + 1) if step in (2, 4, 6, steps)]
        fake = Fake(validation=validation)
        fake.optimizer = SimpleNamespace(plateau_factor=1.0 if start is None else start.plateau_factor)
        fakes.append(fake)
        run(fake, start=start, steps=steps, eval_every=2)
        start = run.saved.positions[-1]
    assert [row["learning_rate"] for row in run.steps] == [1, 1, 1, 1, 0.5, 0.5, 0.5]
    assert fakes[-1].optimizer.plateau_factor == 0.5
    assert start is not None and start.plateau == {"factor": 0.5, "best": 0.4, "bad_evaluations": 0, "cooldown": 0}


def test_a_validation_loss_that_is_not_finite_is_a_warning(run: Run, caplog: pytest.LogCaptureFixture) -> None:
    run(Fake(validation=[(0.5, 0.25), (math.nan, 0.25)]), eval_every=4)
    assert [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING] == [
        "step 7: the validation loss is nan"
    ]


class Averaging(Fake):
    """A strategy whose average has another loss than its weights."""

    def __init__(self) -> None:
        super().__init__()
        self.averaged = False
        self.optimizer = SimpleNamespace(swap_averages=self.swap_averages)

    def swap_averages(self) -> None:
        self.averaged = not self.averaged

    def evaluate(self, batches: Iterable[GlobalBatch]) -> Evaluation:
        # The weights get worse and their average gets better.
        loss, accuracy = (1 / len(self.trained), 0.75) if self.averaged else (float(len(self.trained)), 0.25)
        self.validation = iter([(loss, accuracy)])
        return super().evaluate(batches)


@pytest.mark.parametrize("evaluate_average", [False, True])
def test_both_evaluations_of_a_row(run: Run, evaluate_average: bool) -> None:
    """All decisions follow the evaluation without a prefix."""
    strategy = Averaging()
    run(strategy, eval_every=3, evaluate_both=True, evaluate_average=evaluate_average)
    assert not strategy.averaged
    weights, average = ("raw_", "") if evaluate_average else ("", "average_")
    for row, step in zip(run.evals, (3, 6, 7), strict=True):
        assert {name: row[name] for name in row if name.endswith(("loss", "accuracy"))} == {
            f"{weights}loss": step,
            f"{weights}accuracy": 0.25,
            f"{average}loss": pytest.approx(1 / step),
            f"{average}accuracy": 0.75,
        }
    last = run.saved.positions[-1]
    assert last.validation == {name: run.evals[-1][name] for name in ("loss", "accuracy")}
    assert last.best == pytest.approx(1 / 7 if evaluate_average else 3)


def test_one_evaluation_has_no_second_values(run: Run) -> None:
    run(Averaging(), evaluate_average=True)
    assert list(run.evals[-1]) == ["step", "examples", "loss", "accuracy", "count", "duration"]
