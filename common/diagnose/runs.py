"""The two runs that are compared: a few steps of each strategy, with the state after every one of them."""

import shutil
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from common.cluster.trainings import start_training, stop_training, why_it_failed
from common.config.compose import load
from common.config.schema import Config
from common.config.strategies import ParameterServer
from common.data.batches import GlobalBatch
from common.diagnose.arguments import SideArguments
from common.errors import UserError
from common.run.checkpoint import reopen_checkpoint
from common.run.prepare import Prepared, open_prepared
from common.run.rows import read_rows
from common.training.batches import planned_batches
from common.training.state import State

POLL_SECONDS = 0.1


@dataclass(frozen=True)
class Run:
    """A finished run of a few steps."""

    arguments: SideArguments
    directory: Path
    config: Config
    prepared: Prepared

    @property
    def name(self) -> str:
        return self.arguments.name

    @property
    def replicas(self) -> int:
        return self.config.strategy.world_size

    @cached_property
    def batches(self) -> list[GlobalBatch]:
        """Of steps 1, 2, ..."""
        steps = range(1, self.config.train.steps + 1)
        return list(planned_batches(self.config, self.prepared.cache.train, steps))

    @property
    def asynchronous(self) -> bool:
        """Whether its updates are not those of its steps."""
        return isinstance(self.config.strategy, ParameterServer) and not self.config.strategy.synchronous

    @cached_property
    def states(self) -> list[State]:
        """After steps 0, 1, ...: first the initial weights. Of an asynchronous run only the first and the last."""
        initial = {name: array.astype(np.float64) for name, array in self.prepared.initial.weights().items()}
        saved = sorted((self.directory / "checkpoints").glob("step-" + "[0-9]" * 8))
        if self.asynchronous:
            saved = saved[-1:]
        return [State(initial, {}), *(reopen_checkpoint(each).load() for each in saved)]

    @cached_property
    def rows(self) -> list[dict[str, Any]]:
        """Of metrics.jsonl."""
        return read_rows(self.directory / "metrics.jsonl")

    @cached_property
    def evaluation(self) -> dict[str, Any]:
        """The last row of evals.jsonl."""
        return read_rows(self.directory / "evals.jsonl")[-1]


def train(sides: Sequence[SideArguments], output: Path) -> list[Run]:
    """Train both sides at once. Raises UserError with what a training reports."""
    processes = []
    for side in sides:
        directory = output / side.name
        if directory.exists():
            if not (output / f"{side.name}.log").exists():
                raise UserError(f"output={output}: {directory} is not of this command; choose another place")
            shutil.rmtree(directory)
    output.mkdir(parents=True, exist_ok=True)
    try:
        for side in sides:
            overrides = [f"strategy={side.strategy}", *side.overrides]
            processes.append(start_training(side.framework, overrides, output / f"{side.name}.log"))
        while any(each.poll() is None for each in processes) and not any(each.poll() for each in processes):
            time.sleep(POLL_SECONDS)
        failed = [side for side, each in zip(sides, processes, strict=True) if each.poll()]
    finally:
        for each in processes:
            stop_training(each)
    for side in failed:
        why = why_it_failed(output / f"{side.name}.log", output / side.name)
        raise UserError(f"{side.name}={side.framework}:{side.strategy}: {why}")
    return [_open(side, output / side.name) for side in sides]


def _open(side: SideArguments, directory: Path) -> Run:
    config = load(directory / "config.yaml")
    return Run(side, directory, config, open_prepared(config, directory))
