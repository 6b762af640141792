"""The labels that a task and a model can use, against which the labels that transforms return are checked."""

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class LabelLimits:
    """Range of the labels of one array that the task and the model can use. `ignored`: a label without a loss."""

    low: float
    high: float
    ignored: int | None = None

    def find_wrong(self, labels: np.ndarray) -> np.ndarray:
        """Return a mask of the labels outside of the range."""
        is_outside: np.ndarray = (labels < self.low) | (labels > self.high)
        return is_outside if self.ignored is None else is_outside & (labels != self.ignored)

    def __str__(self) -> str:
        text = f"of at least {self.low:g}" if self.high == np.inf else f"of at most {self.high:g}"
        if np.isfinite(self.low) and np.isfinite(self.high):
            text = f"from {self.low:g} to {self.high:g}"
        return text if self.ignored is None else f"{text}, or task.ignore_label={self.ignored}"
