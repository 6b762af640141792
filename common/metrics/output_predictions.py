"""The predictions of each output of a model, as metrics and files need them."""

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from common.config.task_kinds import MultiOutputSettings
from common.config.tasks import TaskSettings
from common.metrics.predictions import Predictions
from common.models.task_outputs import OutputLayout

ONE_LABEL = [1]  # the layout of a label for each example, which `common.data.arrays.multi_output_split` gives an axis


def split_predictions(
    predictions: Predictions | None, task: TaskSettings, layouts: Sequence[OutputLayout]
) -> dict[str, Predictions]:
    """Return the predictions of each output by its name. The only output of a task has the name "".

    Args:
        predictions: The predictions of an evaluation. If there are several outputs, the outputs and the labels of an
            example stand one after the other. None if nothing was gathered.
        task: The task of the run.
        layouts: The layouts of several outputs.

    Returns:
        The predictions in the types and the shapes that a run with this output alone has.
    """
    if predictions is None:
        return {}
    if not isinstance(task, MultiOutputSettings):
        return {"": predictions}
    outputs = _split_columns(predictions.outputs, [layout.output for layout in layouts])
    labels = _split_columns(predictions.labels, [layout.labels for layout in layouts])
    return {
        output.name: _take_shapes(replace(predictions, outputs=output_values, labels=output_labels), layout)
        for output, layout, output_values, output_labels in zip(task.tasks, layouts, outputs, labels, strict=True)
    }


def _split_columns(values: np.ndarray, shapes: Sequence[Sequence[int]]) -> list[np.ndarray]:
    """Split an array [n, values] into arrays whose examples have these shapes; they are still flat."""
    return np.split(values, np.cumsum([math.prod(shape) for shape in shapes])[:-1], 1)


def _take_shapes(predictions: Predictions, layout: OutputLayout) -> Predictions:
    """Return the labels of an output in its shape and type, and the outputs in the shape of as many labels."""
    shape = [] if layout.labels == ONE_LABEL else layout.labels
    labels = predictions.labels.reshape(-1, *shape).astype(np.int32 if layout.is_integer else np.float32)
    outputs = predictions.outputs
    return replace(
        predictions, labels=labels, outputs=outputs.reshape(labels.shape) if outputs.size == labels.size else outputs
    )
