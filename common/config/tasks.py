"""The kinds of tasks: what is learned from the labels. A new kind is a schema, a YAML file, a function on each side."""

import math
from dataclasses import dataclass
from typing import ClassVar

from common.config.keys import CURVE, key
from common.errors import UserError


@dataclass(frozen=True)
class TaskSettings:
    """The loss of a global batch: its examples' losses, each times the example's weight, over the sum of weights."""

    metric: ClassVar[str | None]  # what an evaluation reports beside the loss, a mean with the same weights

    kind: str = key(CURVE)

    @property
    def label_weights(self) -> list[float] | None:
        """By class; None where all weigh the same."""
        return getattr(self, "class_weights", None)

    def values(self, loss: float, metric: float) -> dict[str, float]:
        """What is reported of an evaluation."""
        return {"loss": loss} | ({} if self.metric is None else {self.metric: metric})

    def check(self) -> None:
        """Raise UserError for values that do not fit together."""


@dataclass(frozen=True)
class ClassTaskSettings(TaskSettings):
    """label_smoothing: the share of a label that is spread over all classes."""

    metric = "accuracy"

    label_smoothing: float = key(CURVE, at_least=0, below=1)
    class_weights: list[float] | None = key(CURVE)

    def check(self) -> None:
        weights = self.class_weights
        if weights is not None and not (weights and min(weights) >= 0 and 0 < sum(weights) < float("inf")):
            raise UserError(
                f"task.class_weights={weights}: must be numbers, at least 0 and not all 0, one for each class"
            )


@dataclass(frozen=True)
class ClassificationSettings(ClassTaskSettings):
    """One of several classes: a logit for each."""


@dataclass(frozen=True)
class BinarySettings(ClassTaskSettings):
    """Yes or no, once or several times: a logit for each. `class_weights` are those of no and of yes."""


@dataclass(frozen=True)
class RegressionSettings(TaskSettings):
    """Numbers. delta: where huber turns from the squared to the absolute difference."""

    metric = "mean_absolute_error"

    loss: str = key(CURVE, choices=("mse", "mae", "huber"))
    delta: float = key(CURVE, above=0)


@dataclass(frozen=True)
class LanguageModelSettings(TaskSettings):
    """A class for each token: logits [n, tokens, vocabulary], labels [n, tokens]. Labels below 0 do not count."""

    metric = "accuracy"

    def values(self, loss: float, metric: float) -> dict[str, float]:
        """With the perplexity, which is exp(loss)."""
        return {**super().values(loss, metric), "perplexity": math.exp(min(loss, 700.0))}


@dataclass(frozen=True)
class CustomTaskSettings(TaskSettings):
    """The user's functions, as module:function, of outputs and labels to a loss for each example."""

    metric = None

    torch: str | None = key(CURVE)
    tf: str | None = key(CURVE)


METRICS = ("accuracy", "mean_absolute_error", "perplexity")  # of all tasks

TASKS: dict[str, type[TaskSettings]] = {
    "classification": ClassificationSettings,
    "binary": BinarySettings,
    "regression": RegressionSettings,
    "language_model": LanguageModelSettings,
    "custom": CustomTaskSettings,
}
