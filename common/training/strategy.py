"""What a strategy is to the loop, and what it returns."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol, SupportsFloat

from common.data.batches import GlobalBatch
from common.training.state import Saved, State


@dataclass(frozen=True)
class StepResult:
    """One update. `loss` (mean over `batch`) and `grad_norm` stay on the device until float() fetches them.

    staleness: the updates applied between the worker's read of the parameters and this one. worker: its index. Both are
    for asynchronous strategies. traffic: bytes that each replica moved, by kind, where the strategy counts them.
    """

    batch: GlobalBatch
    loss: SupportsFloat
    grad_norm: SupportsFloat
    staleness: int | None = None
    worker: int | None = None
    traffic: dict[str, list[int]] | None = None


@dataclass(frozen=True)
class Evaluation:
    """The examples' losses and metrics, each times its weight, the weights, all summed, and the number of examples."""

    summed_loss: float
    summed_metric: float
    weight: float
    count: int

    @property
    def loss(self) -> float:
        """The mean over the examples."""
        return self.summed_loss / self.weight

    @property
    def metric(self) -> float:
        """The mean of the task's metric: of accuracy the share of correct answers."""
        return self.summed_metric / self.weight


class Strategy(Protocol):
    """What a strategy is to the loop. Every rank of a synchronous strategy makes the same calls in the same order."""

    world_size: int
    is_chief: bool

    def train(self, batches: Iterable[GlobalBatch]) -> Iterator[StepResult]:
        """Update the parameters from each global batch. When it ends, all its work is joined."""

    def evaluate(self, batches: Iterable[GlobalBatch]) -> Evaluation:
        """Every example of the batches exactly once."""

    def state(self) -> State:
        """What it has trained so far. Every rank calls it: a sharded strategy gathers here. The chief writes it."""

    def load(self, checkpoint: Saved) -> None:
        """Resume from what a checkpoint holds. Every rank calls it, before anything is trained."""

    def report(self) -> dict[str, Any]:
        """What summary.json says of the strategy itself, joined from all ranks, each of which calls it.

        `peak_memory_bytes` is of each replica: of its GPU, or resident in its process, which replicas may share.
        """
