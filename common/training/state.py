"""State and position of a run, independent of the framework. A checkpoint holds both."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import NotRequired, Protocol, TypedDict, cast

import numpy as np


@dataclass(frozen=True)
class State:
    """The arrays that a strategy trains, with the shapes and the order of axes that PyTorch uses.

    Attributes:
        weights: parameters and moving statistics by Hugging Face name.
        slots: the optimizer's state of each parameter, by the name `<slot>.<parameter>`. The slots are PyTorch's:
            `exp_avg` and `exp_avg_sq` of Adam and AdamW, and `momentum_buffer` of SGD.
    """

    weights: Mapping[str, np.ndarray]
    slots: Mapping[str, np.ndarray]


class PlateauValues(TypedDict):
    """The plateau of schedule=plateau after an evaluation. Every evaluation replaces it as a whole.

    factor: the current factor of the learning rate. best: the best value of the metric so far; None before the first
    finite value. bad_evaluations: the number of evaluations since the last improvement. cooldown: the number of coming
    evaluations that do not count as bad.
    """

    factor: float
    best: float | None
    bad_evaluations: int
    cooldown: int


class Score(TypedDict):
    """The value of an evaluation that decides which checkpoint is the best.

    metric: the name of the value, which train.early_stopping.metric sets. value: lower is better, so an accuracy is
    negated.
    """

    metric: str
    value: float


class PositionValues(TypedDict):
    """The fields of a Position, as state.json holds them. `plateau` and `score` are missing if they are None."""

    step: int
    plan_position: int
    examples: int
    tokens: int
    seconds: float
    validation: dict[str, float] | None
    best: float | None
    waited: int
    plateau: NotRequired[PlateauValues]
    score: NotRequired[Score]


@dataclass
class Position:
    """The position of a run, after which training continues.

    Attributes:
        step: the number of updates.
        plan_position: the number of global batches that were trained on; asynchronous updates train on parts of them.
        examples: the number of training examples, counted once for each time that they were trained on.
        tokens: the number of tokens, without padding.
        seconds: the training time in seconds, including the runs from which this run was resumed.
        validation: validation loss and metric at this step; None without an evaluation.
        best: the best value so far of the metric for early stopping; lower is better, so an accuracy is negated.
        waited: the number of evaluations since the best value, which early stopping compares with its patience.
        plateau: the plateau of schedule=plateau; None with other schedules, and before the first evaluation.
        score: the score of the last evaluation; None before the first one, and if the score is the loss.
    """

    step: int = 0
    plan_position: int = 0
    examples: int = 0
    tokens: int = 0
    seconds: float = 0.0
    validation: dict[str, float] | None = None
    best: float | None = None
    waited: int = 0
    plateau: PlateauValues | None = None
    score: Score | None = None

    @property
    def plateau_factor(self) -> float:
        """Return the factor of the learning rate of schedule=plateau, or 1."""
        return 1.0 if self.plateau is None else self.plateau["factor"]

    def to_values(self) -> PositionValues:
        """Return the fields as state.json holds them. Earlier versions, which know fewer fields, can read them too."""
        values = asdict(self)
        for name in ("plateau", "score"):
            if values[name] is None:
                del values[name]
        return cast(PositionValues, values)


class SavedState(Protocol):
    """A saved state and its position; common.run.checkpoint implements it."""

    @property
    def position(self) -> Position:
        """Return a copy of the position at which the state was saved."""

    def load(self) -> State:
        """Return the weights and the optimizer slots."""
