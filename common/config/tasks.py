"""Settings of the kinds of tasks. A task defines the loss and the metric.

Each field is a key of the config, such as task.label_smoothing. `key(CURVE, ...)` declares its limits, and that it
decides the loss curve. The files in conf/task have the default values and explain the keys.

A new kind needs a schema here or in `common.config.task_kinds`, which has the table of all kinds, a YAML file in
conf/task, and a function in `task.py` of each side.
"""

import math
from dataclasses import dataclass
from typing import Any, ClassVar, TypeAlias

from typing_extensions import override

from common.config.keys import CURVE, key
from common.errors import UserError

Means: TypeAlias = Any  # a mean over the examples: a number, or an array float64 [outputs] with one for each output


@dataclass(frozen=True)
class TaskSettings:
    """Settings that every kind of task has.

    The loss of a global batch is the mean of the losses of its examples, weighted by the weights of the examples. If
    each label has a loss of its own, the mean is over all labels of the global batch.
    """

    metric: ClassVar[str | None]  # the name of the value that an evaluation reports besides the loss; None for none
    compares_examples: ClassVar[bool] = False  # whether the loss of an example depends on the others of its batch
    names_labels: ClassVar[bool] = False  # whether the task chooses the arrays of labels instead of data.label

    kind: str = key(CURVE)

    @property
    def label_weights(self) -> list[float] | None:
        """The weight of each class, or None if all classes have the same weight."""
        return getattr(self, "class_weights", None)

    @property
    def output_weights(self) -> list[float] | None:
        """The weight of the loss of each output, or None if the task has one output."""
        return None

    def list_labels(self, label: str) -> list[str]:
        """Return the names of the arrays that are labels. label: the value of data.label."""
        return [label]

    def has_label_losses(self, axes: int, is_integer: bool) -> bool:
        """Return True if each label has a loss of its own, and False if each example has one loss.

        Args:
            axes: The number of axes of labels [n, ...].
            is_integer: Whether the labels are integers.
        """
        return False

    def values(self, loss: Means, metric: Means) -> dict[str, float]:
        """Return the values that an evaluation reports, by name. metric: the value of `self.metric`."""
        return {"loss": loss} | ({} if self.metric is None else {self.metric: metric})

    def check(self) -> None:
        """Raise UserError if values do not fit together."""


@dataclass(frozen=True)
class ClassTaskSettings(TaskSettings):
    """A task with classes.

    `label_smoothing` is the share of a label's weight that is spread over all classes. Labels equal to `ignore_label`
    have no loss. `gamma` is the exponent of the focal loss. The dice loss is a quotient, and `dice_smooth` is added to
    its numerator and its denominator.
    """

    metric = "accuracy"

    label_smoothing: float = key(CURVE, at_least=0, below=1)
    class_weights: list[float] | None = key(CURVE)
    ignore_label: int | None = key(CURVE)
    gamma: float = key(CURVE, at_least=1)  # below 1, the slope of the focal loss's factor is infinite
    dice_smooth: float = key(CURVE, above=0)
    loss: str = key(CURVE, choices=("cross_entropy", "focal", "dice", "hinge"))

    @override
    def check(self) -> None:
        weights = self.class_weights
        if weights is not None and not (weights and min(weights) >= 0 and 0 < sum(weights) < float("inf")):
            raise UserError(
                f"task.class_weights={weights}: must be numbers, at least 0 and not all 0, one for each class"
            )
        if self.label_smoothing and self.loss != "cross_entropy":
            raise UserError(
                f"task.label_smoothing={self.label_smoothing:g}: task.loss={self.loss} uses the labels as they are; "
                "set it to 0"
            )
        if weights is not None and self.loss == "dice":
            raise UserError(
                f"task.class_weights={weights}: task.loss=dice gives all classes the same weight; set it to null"
            )


@dataclass(frozen=True)
class ClassificationSettings(ClassTaskSettings):
    """Choose one of several classes, for each example or for each of its positions, such as pixels or tokens.

    The model returns a logit for each class. `kl` is for labels that are the shares of the classes.
    """

    loss: str = key(CURVE, choices=("cross_entropy", "focal", "dice", "hinge", "kl"))

    @override
    def has_label_losses(self, axes: int, is_integer: bool) -> bool:
        return axes > 1 and is_integer and self.loss != "dice"


@dataclass(frozen=True)
class BinarySettings(ClassTaskSettings):
    """Answer yes or no to one or several questions. The model returns a logit for each question.

    `class_weights` are [weight of no, weight of yes]. The focal loss multiplies the losses of yes by `alpha`, those of
    no by 1 - alpha.
    """

    alpha: float | None = key(CURVE, at_least=0, at_most=1, null="for no such factor")

    @override
    def has_label_losses(self, axes: int, is_integer: bool) -> bool:
        # With equal weights, the mean of the examples' losses is the mean over all labels.
        has_unequal_weights = self.ignore_label is not None or self.class_weights is not None
        return axes > 1 and has_unequal_weights and self.loss != "dice"

    @override
    def check(self) -> None:
        super().check()
        if self.alpha is not None and self.loss != "focal":
            raise UserError(f"task.alpha={self.alpha:g}: only task.loss=focal has it; set it to null")


@dataclass(frozen=True)
class RegressionSettings(TaskSettings):
    """Predict numbers.

    `delta` is the difference above which the huber loss is linear, and `quantile` the share of labels that are to be
    below the prediction. For poisson, the model returns the logarithm of the prediction.
    """

    metric = "mean_absolute_error"

    loss: str = key(CURVE, choices=("mse", "mae", "huber", "poisson", "quantile"))
    delta: float = key(CURVE, above=0)
    quantile: float = key(CURVE, above=0, below=1)


@dataclass(frozen=True)
class LanguageModelSettings(TaskSettings):
    """Choose a class for each token.

    Logits are [examples, tokens, vocabulary], labels [examples, tokens]. Tokens with a label below 0 do not count.
    """

    metric = "accuracy"

    @override
    def has_label_losses(self, axes: int, is_integer: bool) -> bool:
        return axes > 1 and is_integer

    @override
    def values(self, loss: Means, metric: Means) -> dict[str, float]:
        return {**super().values(loss, metric), "perplexity": math.exp(min(loss, 700.0))}  # exp(710) overflows


@dataclass(frozen=True)
class CustomTaskSettings(TaskSettings):
    """A task of the user. `torch` and `tf` name functions, as module:function, that return a loss for each example."""

    metric = None

    torch: str | None = key(CURVE, names_code=True)
    tf: str | None = key(CURVE, names_code=True)


# All values but the loss that a task itself may report
TASK_METRICS = ("accuracy", "mean_absolute_error", "perplexity")
