"""State and position of a run, independent of the framework. A checkpoint holds both."""

from dataclasses import dataclass
from typing import Protocol, TypedDict

import numpy as np


@dataclass(frozen=True)
class State:
    """The arrays that a strategy trains, with the shapes and the order of axes that PyTorch uses.

    Attributes:
        weights: parameters and moving statistics by Hugging Face name.
        slots: the optimizer's state of each parameter, by the name `<slot>.<parameter>`. The slots are PyTorch's:
            `exp_avg` and `exp_avg_sq` of Adam and AdamW, and `momentum_buffer` of SGD.
    """

    weights: dict[str, np.ndarray]
    slots: dict[str, np.ndarray]


class PositionValues(TypedDict):
    """The fields of a Position, as state.json holds them."""

    step: int
    plan_position: int
    examples: int
    tokens: int
    seconds: float
    validation: dict[str, float] | None
    best: float | None
    waited: int


@dataclass
class Position:
    """The position of a run, after which training continues.

    Attributes:
        step: the number of updates.
        plan_position: the number of global batches that were trained on; asynchronous updates train on parts of them.
        examples: the number of training examples, counted once for each time that they were trained on.
        tokens: the number of tokens, without padding.
        seconds: the training time in seconds, that of the runs from which this one was resumed included.
        validation: validation loss and metric at this step; None if it was not evaluated.
        best: the best value so far of the metric for early stopping, negated for an accuracy: lower is better.
        waited: the number of evaluations since the best value, which early stopping compares with its patience.
    """

    step: int = 0
    plan_position: int = 0
    examples: int = 0
    tokens: int = 0
    seconds: float = 0.0
    validation: dict[str, float] | None = None
    best: float | None = None
    waited: int = 0


class SavedState(Protocol):
    """A saved state and its position; common.run.checkpoint implements it."""

    @property
    def position(self) -> Position:
        """Return a copy of the position at which the state was saved."""

    def load(self) -> State:
        """Return the weights and the optimizer slots."""
