"""The two runs that are compared: a few steps of each strategy, with the state after every one of them."""

import json
import os
import re
import shutil
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from common.cluster.discovery import compose_config
from common.cluster.training_process import read_failure_reason, start_training, stop_training
from common.config.compose import load_config
from common.config.schema import Config
from common.config.strategies import ParameterServerSettings
from common.data.batches import GlobalBatch
from common.diagnose.arguments import SideArguments
from common.diagnose.from_run import quoted
from common.errors import UserError
from common.run.checkpoint import list_checkpoints, reopen_checkpoint
from common.run.checkpoint_writer import CheckpointWriter
from common.run.context import RunContext
from common.run.inputs import PreparedInputs, open_inputs
from common.run.prepare import prepare_inputs
from common.training.planned_batches import planned_batches
from common.training.rows import read_rows
from common.training.state import SavedState, State

POLL_SECONDS = 0.1
NOT_FINITE = r"step \d+: the loss is -?(nan|inf)"


@dataclass(frozen=True)
class Run:
    """A finished run of a few steps."""

    arguments: SideArguments
    directory: Path
    config: Config
    prepared: PreparedInputs
    ended: str = ""  # the step and the loss that was not finite, with which it ended early

    @property
    def name(self) -> str:
        return self.arguments.name

    @property
    def precision(self) -> str:
        return self.config.train.precision

    @property
    def replicas(self) -> int:
        return self.config.strategy.world_size

    @property
    def before(self) -> int:
        """The steps before the first that is looked at."""
        return self.prepared.start.plan_position

    @cached_property
    def batches(self) -> list[GlobalBatch]:
        """Of the steps that are looked at."""
        steps = range(self.before + 1, self.config.train.steps + 1)
        return list(planned_batches(self.config, self.prepared.cache.train, steps))

    @property
    def asynchronous(self) -> bool:
        """Whether its updates are not those of its steps."""
        return isinstance(self.config.strategy, ParameterServerSettings) and not self.config.strategy.synchronous

    @cached_property
    def states(self) -> list[State]:
        """Before the first step that is looked at and after each; of an asynchronous run the first and last."""
        found: list[SavedState] = [reopen_checkpoint(each) for each in list_checkpoints(self.directory)]
        if self.asynchronous:
            found = [*found[: bool(self.before)], found[-1]]
        states = [each.load() for each in found]
        if not self.before:
            states.insert(0, State(self.prepared.initial.weights(), {}))
        return [State(_as_float64(each.weights), _as_float64(each.slots)) for each in states]

    @cached_property
    def rows(self) -> list[dict[str, Any]]:
        """Of metrics.jsonl, of the steps that are looked at."""
        return [row for row in read_rows(self.directory / "metrics.jsonl") if row["step"] > self.before]

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
            processes.append(start_training(side.framework, _overrides(side, output), output / f"{side.name}.log"))
        while any(each.poll() is None for each in processes) and not which_failed(sides, processes, output):
            time.sleep(POLL_SECONDS)
        failed = which_failed(sides, processes, output)
    finally:
        for each in processes:
            stop_training(each)
    for side in failed:
        why = read_failure_reason(output / f"{side.name}.log", output / side.name)
        raise UserError(f"{side.name}={side.framework}:{side.strategy}: {why}")
    return [_open(side, output / side.name) for side in sides]


def which_failed(
    sides: Sequence[SideArguments], processes: Sequence[subprocess.Popen[bytes]], output: Path
) -> list[SideArguments]:
    """Those whose training failed; what ends because its loss is not finite is looked at like any other."""
    ended = [side for side, each in zip(sides, processes, strict=True) if each.poll()]
    return [side for side in ended if not not_finite(side, output)]


def _overrides(side: SideArguments, output: Path) -> list[str]:
    """Of its command. A checkpoint that it starts from is copied, with the side's own config and precision."""
    overrides = side.for_training
    if side.start is None:
        return overrides
    config, inputs = prepare_inputs(compose_config(side.framework, overrides, os.environ), None)
    checkpoint, directory = reopen_checkpoint(side.start), (output / f"{side.name}-start").absolute()
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir()
    dtype = np.float64 if config.train.precision == "float64" else np.float32
    state = checkpoint.load()
    arrays = [{name: each.astype(dtype) for name, each in part.items()} for part in (state.weights, state.slots)]
    copies = CheckpointWriter(RunContext(replace(config, run_dir=str(directory)), side.framework, inputs))
    copies.save(State(*arrays), checkpoint.position)
    copies.finish()
    copies.close()
    return [*overrides, f"resume={quoted(str(directory))}"]


def _open(side: SideArguments, directory: Path) -> Run:
    config = load_config(directory / "config.yaml")
    return Run(side, directory, config, open_inputs(config, directory), not_finite(side, directory.parent))


def not_finite(side: SideArguments, output: Path) -> str:
    """The step and the loss with which a training ended that was not finite; empty where it was."""
    summary = output / side.name / "summary.json"
    error = json.loads(summary.read_text()).get("error") if summary.exists() else None
    found = re.match(NOT_FINITE, error or "")
    return found[0] if found else ""


def _as_float64(arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {name: each.astype(np.float64) for name, each in arrays.items()}
