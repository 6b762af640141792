"""A split of named arrays with several arrays of labels, for a task of several outputs."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np
from typing_extensions import override

from common.config.task_kinds import MultiOutputSettings
from common.data.batches import Arrays
from common.data.splits.array_column import Column
from common.data.splits.array_split import ArraySplit


def split_outputs(task: MultiOutputSettings, columns: Mapping[str, Column]) -> dict[str, ArraySplit]:
    """Return the labels of each output with its task, by the name of the output. columns: by the name of the array.

    A label for each example becomes an axis of one label, so that it can be ignored, or weighted by its class.
    """
    return {output.name: ArraySplit({}, _add_axis(columns[output.label]), task=output.task) for output in task.tasks}


def _add_axis(column: Column) -> Column:
    return column if column.shape else Column(column.values[:, None])


@dataclass(frozen=True)
class MultiOutputSplit(ArraySplit):
    """Memory-mapped arrays of one split. `label` is the labels of the first output.

    Attributes:
        outputs: By name, the labels of each output with its task, as a split without inputs.
    """

    outputs: Mapping[str, ArraySplit] = field(default_factory=dict)

    @property
    def label_columns(self) -> dict[str, Column]:
        """The labels by the name of the array, which several outputs may share."""
        assert isinstance(self.task, MultiOutputSettings)
        return {output.label: self.outputs[output.name].label for output in self.task.tasks}

    def replace_labels(self, labels: Mapping[str, np.ndarray]) -> "MultiOutputSplit":
        """Return a split without inputs with other labels, by the name of the array."""
        assert isinstance(self.task, MultiOutputSettings)
        columns = {  # small integers as int32, the type in which the cache stores labels
            name: Column(array.astype(np.int32) if array.dtype.kind in "ub" else array)
            for name, array in labels.items()
        }
        return replace(self, inputs={}, label=next(iter(columns.values())), outputs=split_outputs(self.task, columns))

    def gather_named(self, ids: np.ndarray, batch: np.ndarray) -> Arrays:
        """Return the inputs as `ArraySplit` does, and the labels of each output by the name of their array."""
        inputs = {name: array for name, array in super().gather(ids, batch).items() if name != "labels"}
        return {**inputs, **{name: column.gather(ids, batch) for name, column in self.label_columns.items()}}

    @property
    @override
    def example_shapes(self) -> dict[str, tuple[int | None, ...]]:
        """The shape of an example in every array. `labels` has the labels of all outputs, flat."""
        count = sum(math.prod(split.labels.shape[1:]) for split in self.outputs.values())
        return {**super().example_shapes, "labels": (count,)}

    @override
    def loss_counts(self, ids: np.ndarray) -> np.ndarray:
        """Return the number of losses of each example for each output, float64 [n, outputs]."""
        return np.stack([split.loss_counts(ids) for split in self.outputs.values()], 1)

    @override
    def gather(self, ids: np.ndarray, batch: np.ndarray) -> Arrays:
        """Return the inputs as `ArraySplit` does, and `labels`: the labels of all outputs, one after the other.

        The type is float64, because it holds all numbers of int32 and float32.
        """
        return {**super().gather(ids, batch), "labels": self.gather_labels(ids)}

    def gather_labels(self, ids: np.ndarray) -> np.ndarray:
        """Return the labels of all outputs as `gather` does, float64 [n, labels]."""
        labels = [split.label.gather(ids, ids).reshape(len(ids), -1) for split in self.outputs.values()]
        return np.concatenate(labels, 1, dtype=np.float64)

    @property
    @override
    def _has_token_labels(self) -> bool:
        return False
