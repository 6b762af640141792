"""What a run has trained and where it is: what a checkpoint holds, in no framework's terms."""

from dataclasses import dataclass
from typing import Protocol

import numpy as np


@dataclass(frozen=True)
class State:
    """What a strategy trains: parameters, and optimizer slots as `<slot>.<parameter>`, all in PyTorch's layout.

    Slots are `exp_avg` and `exp_avg_sq` of Adam and AdamW, and `momentum_buffer` of SGD, as PyTorch defines them.
    """

    weights: dict[str, np.ndarray]
    slots: dict[str, np.ndarray]


@dataclass
class Position:
    """Where a run is. Training continues after it.

    step: updates made. plan_position: global batches trained on, which asynchronous updates are parts of. seconds:
    since the first step began, over all that led here. validation: loss and accuracy at this step, where evaluated.
    best, waited: for early stopping: the best value so far, and the evaluations since then without an improvement.
    """

    step: int = 0
    plan_position: int = 0
    examples: int = 0
    tokens: int = 0
    seconds: float = 0.0
    validation: dict[str, float] | None = None
    best: float | None = None
    waited: int = 0


class Saved(Protocol):
    """A saved state: see common.run.checkpoint."""

    @property
    def position(self) -> Position:
        """A copy of the position that it was saved at."""

    def load(self) -> State:
        """The arrays."""
