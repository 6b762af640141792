"""Interface between the training loop and a strategy, and the results that a strategy yields.

A strategy is one way to train data-parallel, such as DDP. It turns global batches into updates of the parameters.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import ClassVar, Generic, SupportsFloat, get_args, get_origin

import numpy as np
from typing_extensions import TypeVar, get_original_bases

from common.config.import_object import import_object
from common.config.schema import Config
from common.config.strategies import StrategySettings
from common.data.batches import GlobalBatch
from common.errors import UserError
from common.metrics.predictions import Predictions
from common.training.state import SavedState, State

T = TypeVar("T", bound=StrategySettings)
SettingsT = TypeVar("SettingsT", bound=StrategySettings, default=StrategySettings, covariant=True)


@dataclass(frozen=True)
class StepResult:
    """The result of one update. The loss and the norm stay on the device until float() fetches them."""

    batch: GlobalBatch  # the batch from which the update was computed
    # Mean over the batch, or this rank's part of it, which `Strategy.sum_losses` adds up. If the model has several
    # outputs, a tensor [outputs] of weight * loss.
    loss: SupportsFloat
    grad_norm: SupportsFloat  # global L2 norm of the gradient, before clipping
    # Asynchronous strategies: updates applied between the worker's read of the parameters and this update.
    staleness: int | None = None
    worker: int | None = None  # asynchronous strategies: index of the worker that computed the gradient
    traffic: dict[str, list[int]] | None = None  # kind, such as "gathered" -> bytes of each replica; if counted


@dataclass(frozen=True)
class Evaluation:
    """The result of an evaluation: sums over all validation examples, and the predictions if a metric needs them."""

    # If there are several outputs, each of the first three values is an array, float64 [outputs].
    summed_loss: float | np.ndarray  # each loss times the weight of its example
    summed_metric: float | np.ndarray  # each metric times the weight of its example
    weight: float | np.ndarray  # sum of the weights
    count: int  # number of examples
    predictions: Predictions | None = None  # None unless a metric or train.predictions needs them

    @property
    def loss(self) -> float | np.ndarray:
        """Return the weighted mean of the losses."""
        return self.summed_loss / self.weight

    @property
    def metric(self) -> float | np.ndarray:
        """Return the weighted mean of the task's metric, such as the accuracy."""
        return self.summed_metric / self.weight


class Strategy(ABC, Generic[SettingsT]):
    """Interface between the training loop and a strategy, generic over the settings of the strategy.

    `class DDP(Strategy[DdpSettings])` has `self.settings` of type DdpSettings. Every rank of a synchronous strategy
    makes the same calls in the same order.

    Attributes:
        config: the config of the run.
        settings: `config.strategy`, of the type that the subclass names.
        rank: number of this process; 0 is the chief.
        world_size: number of replicas of the whole run.
        is_chief: whether this process reports results and decides for all ranks.
        optimizer: the optimizer of this process.
    """

    settings_type: ClassVar[type[StrategySettings]] = StrategySettings
    world_size: int
    is_chief: bool

    def __init_subclass__(cls) -> None:
        """Set `settings_type` to the argument of the generic base class, if the subclass names one."""
        super().__init_subclass__()
        for base in get_original_bases(cls):
            origin = get_origin(base)
            if isinstance(origin, type) and issubclass(origin, Strategy):
                (argument,) = get_args(base)
                if isinstance(argument, type):  # a class that stays generic has a TypeVar here
                    cls.settings_type = argument

    def __init__(self, config: Config, rank: int) -> None:
        """Keep the config and the settings. Raise UserError if the settings are of another strategy."""
        self.config = config
        self.settings: SettingsT = require_settings(config.strategy, self.settings_type)  # type: ignore[assignment]
        self.rank = rank
        self.world_size = self.settings.world_size
        self.is_chief = rank == 0

    @abstractmethod
    def train(self, batches: Iterable[GlobalBatch]) -> Iterator[StepResult]:
        """Update the parameters from each global batch. All work is finished when the iterator ends."""

    def sum_losses(self, results: Sequence[StepResult]) -> Sequence[SupportsFloat]:
        """Return the losses of results of `train`, summed over the ranks. Every rank calls it for the same steps.

        A strategy overrides this method if its ranks yield parts of the losses. Updates do not need the sums, so one
        message adds up the losses of many steps.
        """
        return [result.loss for result in results]

    @abstractmethod
    def evaluate(self, batches: Iterable[GlobalBatch]) -> Evaluation:
        """Evaluate every example of the batches exactly once. Every rank returns the same values."""

    def share(self, values: np.ndarray) -> np.ndarray:
        """Return the chief's values, float64, on every rank. Every rank calls it with the same number of values.

        A strategy overrides this method if several of its ranks run the training loop.
        """
        return values

    @abstractmethod
    def state(self) -> State:
        """Return the parameters and optimizer slots. Every rank calls it, so that a sharded strategy can gather."""

    @abstractmethod
    def load(self, checkpoint: SavedState) -> None:
        """Load the state of a checkpoint. Every rank calls it before anything is trained."""

    def set_plateau_factor(self, factor: float) -> None:
        """Multiply the learning rate of all later updates by this factor. Every rank calls it, but not during `train`.

        `load` does the same with the factor of the checkpoint. A strategy without `self.optimizer` overrides it.
        """
        self.optimizer.plateau_factor = factor  # type: ignore[attr-defined]  # an Optimizer of its side

    @contextmanager
    def averaged_weights(self) -> Iterator[None]:
        """Exchange the weights and their averages, of ema.* or swa.*, inside the `with` block. Every rank calls it."""
        self.optimizer.swap_averages()  # type: ignore[attr-defined]  # an Optimizer of its side
        try:
            yield
        finally:
            self.optimizer.swap_averages()  # type: ignore[attr-defined]

    @abstractmethod
    def report(self) -> dict[str, object]:
        """Return the fields of summary.json that describe the strategy. Every rank calls it.

        `peak_memory_bytes` lists the peak memory of each replica: of its GPU, or of its process, which replicas may
        share.
        """


def require_settings(settings: StrategySettings, settings_type: type[T]) -> T:
    """Return the settings, which must be of the given type. Raise UserError if they are not."""
    if not isinstance(settings, settings_type):
        raise UserError(
            f"strategy={settings.kind}: its settings are {type(settings).__name__}, but its class needs "
            f"{settings_type.__name__}"
        )
    return settings


def load_strategy_class(config: Config, framework: str) -> Callable[..., Strategy]:
    """Import the class of the strategy of a config. Each side calls it with the RunContext and its group of ranks.

    Args:
        config: the config; the settings of its strategy name the class.
        framework: "torch" or "tf".

    Raises:
        UserError: the class does not exist, or is not a subclass of Strategy.
    """
    path = config.strategy.sides[framework]
    strategy_class: object = import_object(path)
    if not (isinstance(strategy_class, type) and issubclass(strategy_class, Strategy)):
        raise UserError(
            f"strategy={config.strategy.kind}: {path} must be a subclass of common.training.strategy.Strategy"
        )
    return strategy_class
