"""Fixtures that write run directories as a run's chief does, without training."""

import logging
import shutil
import signal
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from common.config.compose import parse_config
from common.config.schema import Config
from common.run.checkpoint_writer import CheckpointWriter
from common.run.context import RunContext, open_context
from common.run.files import ROW_FILES
from common.run.prepare import open_run, prepare_inputs
from common.run.recorder import Recorder
from common.training.rows import read_rows
from common.training.state import Position, State
from common.training.stop import SIGNALS
from tests.composition import compose_quickly
from tests.conftest import SMALL_CORPUS, SMALL_MODEL, MakeConfig

STEPS = (2, 4)  # steps of the checkpoints of `make_run`

MakeRun = Callable[..., Path]


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the working directory of a test, in which runs/ is created."""
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    return tmp_path / "here"


@pytest.fixture
def kept() -> Iterator[None]:
    """Restore the log and the signal handlers after the test."""
    log = logging.getLogger("lockstep")
    handlers, level, propagate, raises = log.handlers, log.level, log.propagate, logging.raiseExceptions
    signals = {signum: signal.getsignal(signum) for signum in SIGNALS}
    yield
    for each in set(log.handlers) - set(handlers):
        each.close()
    log.handlers, log.level, log.propagate, logging.raiseExceptions = handlers, level, propagate, raises
    for signum, handler in signals.items():
        signal.signal(signum, handler)


@pytest.fixture(scope="session")
def filled_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache with the tokens and the initial weights of `small_config`, which take 0.1 seconds to make."""
    cache_dir = tmp_path_factory.mktemp("cache")
    prepare_inputs(parse_config(compose_quickly(*SMALL_CORPUS, *SMALL_MODEL, f"cache_dir={cache_dir}")), None)
    return cache_dir


@pytest.fixture
def small_config(small_config: MakeConfig, filled_cache: Path, tmp_path: Path) -> MakeConfig:
    """A function that returns a config with a small corpus and model, whose cache is a copy of `filled_cache`."""
    shutil.copytree(filled_cache, tmp_path / "cache")
    return small_config


@pytest.fixture
def config(small_config: MakeConfig) -> Config:
    return small_config("train.keep_checkpoints=2", "train.warmup_steps_untimed=2", "strategy.replicas=1")


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    (tmp_path / "run").mkdir()
    return tmp_path / "run"


@pytest.fixture
def context(config: Config, run_dir: Path) -> RunContext:
    """Return the context of a run in `run_dir`. Its inputs are prepared but not saved."""
    config, inputs = prepare_inputs(replace(config, run_dir=str(run_dir)), None)
    return RunContext(config, "torch", inputs)


@pytest.fixture
def checkpoints(context: RunContext) -> Iterator[CheckpointWriter]:
    """Yield the writer of the checkpoints of `run_dir`."""
    writer = CheckpointWriter(context)
    yield writer
    writer.close()


def make_state(value: float) -> State:
    return State(
        {"a.weight": np.full((2, 3), value, np.float32)}, {"exp_avg.a.weight": np.full((2, 3), -value, np.float64)}
    )


def save_step(checkpoints: CheckpointWriter, step: int, loss: float | None = None) -> Position:
    """Save a checkpoint and wait for it."""
    validation = None if loss is None else {"loss": loss, "accuracy": 0.5}
    position = Position(step, step, 32 * step, 400 * step, 1.5 * step, validation, loss, 1)
    checkpoints.save(make_state(step), position)
    checkpoints.finish()
    return position


def step(number: int, seconds: float, **values: float) -> dict[str, Any]:
    """Return a row of metrics.jsonl. Each step has 4 examples and 40 tokens."""
    row = {"step": number, "loss": 1 / number, "examples": 4 * number, "tokens": 40 * number}
    return {**row, "learning_rate": 1e-3, "grad_norm": 2.0, "seconds": seconds, **values}


def evaluation(number: int, duration: float = 0.0, accuracy: float = 0.5) -> dict[str, Any]:
    row = {"step": number, "examples": 4 * number, "loss": 0.7, "accuracy": accuracy, "count": 12}
    return {**row, "duration": duration}


def record(run_dir: Path, steps: list[dict[str, Any]], evals: list[dict[str, Any]]) -> None:
    recorder = Recorder(run_dir, Position(), "torch single")
    recorder.record_steps(steps[:2], [], 1.0)
    recorder.record_steps(steps[2:], [], 1.0)
    for row in evals:
        recorder.record_evaluation(row)
    recorder.close()


@pytest.fixture
def make_run(small_config: MakeConfig, tmp_path: Path) -> MakeRun:
    """Return a function that makes the directory of a run that was interrupted after step 5.

    The run has checkpoints and evaluations at steps 2 and 4. Keywords are additional fields of its rows of steps.
    """

    def make(name: str, *overrides: str, **values: float) -> Path:
        config = small_config(f"run_dir={tmp_path / name}", *overrides)
        with open_run(config, "torch") as context:
            run_dir = context.run_dir
            checkpoints, recorder = CheckpointWriter(context), Recorder(run_dir, Position(), "torch single")
            for number in range(1, 6):
                recorder.record_steps(
                    [step(number, 0.1 * number, **values)], [{"step": number, "gathered": [number]}], 1.0
                )
                if number in STEPS:
                    recorder.record_evaluation(evaluation(number))
                    weights = {name: array + number for name, array in context.inputs.initial.weights().items()}
                    position = Position(number, number, 4 * number, validation={"loss": 0.7, "accuracy": 0.5})
                    checkpoints.save(State(weights, {}), position)
            checkpoints.finish()
            checkpoints.close()
            recorder.close()
            (run_dir / "summary.json").write_text("{}")
        return run_dir

    return make


def resume(config: Config) -> int:
    """Do what the command and then the run's chief do. Return the step after which the run starts."""
    with open_run(config, "torch") as context:
        start = open_context(context.run_dir, "torch", is_chief=True).inputs.start
        Recorder(context.run_dir, start, "torch single").close()
        return start.step


def recorded(run_dir: Path) -> list[list[int]]:
    """Return the steps of the rows of metrics.jsonl, evals.jsonl and traffic.jsonl."""
    return [[row["step"] for row in read_rows(run_dir / name)] for name in ROW_FILES]
