"""The kinds of tasks of several outputs or of pairs of examples, and the table of all kinds."""

import operator
from dataclasses import dataclass
from typing import Any

from typing_extensions import override

from common.config.keys import CURVE, iterate_keys, key
from common.config.tasks import (
    BinarySettings,
    ClassificationSettings,
    CustomTaskSettings,
    LanguageModelSettings,
    Means,
    RegressionSettings,
    TaskSettings,
)
from common.errors import UserError


@dataclass(frozen=True)
class OutputSettings:
    """The task of one output of a model.

    Attributes:
        name: The name of the output in the config.
        output: The name of the tensor that the model returns, or its position.
        label: The array of its labels.
        weight: The weight of its loss.
        task: The task.
    """

    name: str
    output: str | int
    label: str
    weight: float
    task: TaskSettings

    @property
    def key(self) -> str:
        """The full name of the config key."""
        return f"task.outputs.{self.name}"

    def list_values(self) -> list[str]:
        """Return the names of the values that an evaluation reports for the output."""
        return [f"{self.name}_{value}" for value in self.task.values(0.0, 0.0)]


@dataclass(frozen=True)
class MultiOutputSettings(TaskSettings):
    """Several outputs of a model, each with a task, labels and a weight of its own.

    The loss is the sum of the losses of the outputs, each multiplied by its weight. `outputs` maps the name of each
    output to the keys of its task, and to `output`, `label` and `weight`. `common.config.compose` fills in the keys
    that the user leaves out.
    """

    metric = None
    names_labels = True

    outputs: dict[str, Any] = key(CURVE)

    @property
    def tasks(self) -> list[OutputSettings]:
        """The tasks of the outputs."""
        settings = []
        for name, values in self.outputs.items():
            task = {field: value for field, value in values.items() if field not in OUTPUT_KEYS}
            output, label, weight = (values[field] for field in OUTPUT_KEYS)
            settings.append(OutputSettings(name, output, label, weight, OUTPUT_TASKS[task["kind"]](**task)))
        return settings

    @property
    @override
    def output_weights(self) -> list[float]:
        return [float(output.weight) for output in self.tasks]

    @override
    def list_labels(self, label: str) -> list[str]:
        return list(dict.fromkeys(output.label for output in self.tasks))

    @override
    def values(self, loss: Means, metric: Means) -> dict[str, float]:
        losses, metrics = (  # a single number is the value of all outputs; callers that need only the names pass 0.0
            [means] * len(self.outputs) if isinstance(means, float) else means.tolist() for means in (loss, metric)
        )
        values = {"loss": sum(map(operator.mul, self.output_weights, losses))}
        for output, output_loss, output_metric in zip(self.tasks, losses, metrics, strict=True):
            output_values = output.task.values(output_loss, output_metric)
            values |= {f"{output.name}_{name}": value for name, value in output_values.items()}
        return values

    @override
    def check(self) -> None:
        if not self.outputs:
            raise UserError("task.outputs: names no output; give some, as {mask: {loss: dice, weight: 0.3}, class: {}}")
        for output in self.tasks:
            for name, declared, value in iterate_keys(output.task, f"{output.key}."):
                if value is not None:
                    declared.check(name, value)
            try:
                output.task.check()
            except UserError as error:
                raise UserError(str(error).replace("task.", f"{output.key}.")) from error


@dataclass(frozen=True)
class ContrastiveSettings(TaskSettings):
    """Find the partner of each example among the partners of all examples of the global batch.

    The model returns the embeddings of an anchor, of its partner, and of further negatives if there are any.
    `embeddings` names these outputs; null means all outputs, or a single output [n, embeddings, size]. The logits are
    the similarities divided by `temperature`. `symmetric` also searches the anchor of each partner, and takes the mean
    of both losses.
    """

    metric = "accuracy"
    compares_examples = names_labels = True

    embeddings: list[str] | None = key(CURVE)
    similarity: str = key(CURVE, choices=("cosine", "dot"))
    temperature: float = key(CURVE, above=0)
    symmetric: bool = key(CURVE)

    @override
    def list_labels(self, label: str) -> list[str]:
        return []


OUTPUT_KEYS = ("output", "label", "weight")  # keys of an output of MultiOutputSettings that are not keys of its task
OUTPUT_TASKS: dict[str, type[TaskSettings]] = {
    "classification": ClassificationSettings,
    "binary": BinarySettings,
    "regression": RegressionSettings,
}
TASKS: dict[str, type[TaskSettings]] = {
    **OUTPUT_TASKS,
    "language_model": LanguageModelSettings,
    "custom": CustomTaskSettings,
    "multi_output": MultiOutputSettings,
    "contrastive": ContrastiveSettings,
}
