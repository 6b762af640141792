"""The short training run of one side of a diagnosis, A or B, read from its directory.

A diagnosis compares the steps of these runs, the "compared steps". A replica's part of a global batch is its shard, and
the slots are the optimizer's arrays, such as Adam's moments.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from common.config.compose import load_config
from common.config.saved_config import CONFIG
from common.config.schema import Config
from common.config.strategies import ParameterServerSettings
from common.data.batches import Arrays, GlobalBatch
from common.diagnose.arguments import SideArguments
from common.run.checkpoint import list_checkpoints, open_unverified_checkpoint
from common.run.inputs import PreparedInputs, open_inputs
from common.training.planned_batches import planned_batches
from common.training.rows import read_rows
from common.training.state import SavedState, State

Shards = list[list[Arrays]]  # the shards of all replicas: for each of them, the arrays of its micro-batches


@dataclass(frozen=True)
class SideRun:
    """A finished run of a few steps, which started from the initial weights or from a checkpoint.

    Attributes:
        arguments: Arguments of the command that trained it.
        directory: The run directory.
        nonfinite_loss: Step and loss that ended the run early because the loss was not finite; empty otherwise.
    """

    arguments: SideArguments
    directory: Path
    nonfinite_loss: str = ""

    @cached_property
    def config(self) -> Config:
        """The resolved config of the run."""
        return load_config(self.directory / CONFIG)

    @cached_property
    def prepared(self) -> PreparedInputs:
        """The data and the initial weights of the run."""
        return open_inputs(self.config, self.directory)

    @property
    def name(self) -> str:
        """The side: "a" or "b"."""
        return self.arguments.name

    @property
    def title(self) -> str:
        """Name of the side in reports, such as "A (torch ddp)"."""
        return self.arguments.title

    @property
    def precision(self) -> str:
        """Precision in which the side trained."""
        return self.config.train.precision

    @cached_property
    def recorded_precisions(self) -> set[str]:
        """Precisions of the run to repeat: train.precision, and train.matmul_precision if it is set."""
        if self.arguments.repeats is None:
            return set()
        train = load_config(self.arguments.repeats / CONFIG).train
        return {train.precision, train.matmul_precision or train.precision}

    @property
    def replicas(self) -> int:
        """Number of replicas of the strategy."""
        return self.config.strategy.world_size

    @property
    def shard_count(self) -> int:
        """Number of shards into which the diagnosis splits a global batch to compute gradients.

        The number of replicas, or 1 if BatchNorm or the task compute over the global batch.
        """
        is_whole = self.config.model.has_global_batch_norm or self.config.task.compares_examples
        return 1 if is_whole else self.replicas

    @property
    def steps_before(self) -> int:
        """Number of steps of the checkpoint that the run started from; 0 if it started from the initial weights."""
        return self.prepared.start.plan_position

    @property
    def is_asynchronous(self) -> bool:
        """Return whether workers update the weights independently, so that an update belongs to no step."""
        return isinstance(self.config.strategy, ParameterServerSettings) and not self.config.strategy.synchronous

    @cached_property
    def batches(self) -> list[GlobalBatch]:
        """Global batches of the compared steps, in order."""
        steps = range(self.steps_before + 1, self.config.train.steps + 1)
        return list(planned_batches(self.config, self.prepared.cache.train, steps))

    @cached_property
    def states(self) -> list[State]:
        """Weights and slots in float64: before the first compared step, and after each of the compared steps.

        An asynchronous run has no states between steps: the list holds its first and its last state.
        """
        checkpoints: list[SavedState] = [open_unverified_checkpoint(path) for path in list_checkpoints(self.directory)]
        if self.is_asynchronous:
            # A run without a start checkpoint gets the initial weights as its first state below
            first = checkpoints[:1] if self.steps_before else []
            checkpoints = [*first, checkpoints[-1]]
        states = [checkpoint.load() for checkpoint in checkpoints]
        if not self.steps_before:
            states.insert(0, State(self.prepared.initial.weights(), {}))
        return [State(_to_float64(state.weights), _to_float64(state.slots)) for state in states]

    @cached_property
    def plateau_factors(self) -> list[float]:
        """The factor of schedule=plateau for the learning rate of each compared step."""
        checkpoints = [open_unverified_checkpoint(path) for path in list_checkpoints(self.directory)]
        start = [] if self.steps_before else [1.0]
        return [*start, *(checkpoint.position.plateau_factor for checkpoint in checkpoints)]

    @cached_property
    def rows(self) -> list[Mapping[str, float]]:
        """Rows of metrics.jsonl for the compared steps."""
        return [row for row in read_rows(self.directory / "metrics.jsonl") if row["step"] > self.steps_before]

    @cached_property
    def evaluation(self) -> Mapping[str, float]:
        """The last row of evals.jsonl."""
        return read_rows(self.directory / "evals.jsonl")[-1]


def split_batch(batch: GlobalBatch, count: int) -> Shards:
    """Return a global batch as the shards of `count` replicas."""
    return [batch.shard(rank, count) for rank in range(count)]


def _to_float64(arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {name: array.astype(np.float64) for name, array in arrays.items()}
