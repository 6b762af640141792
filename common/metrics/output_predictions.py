"""The predictions of each output of a model, as metrics and files need them."""

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from common.config.metrics import CLASSES, OUTPUTS
from common.config.task_kinds import ContrastiveSettings, MultiOutputSettings
from common.config.tasks import ClassificationSettings, TaskSettings
from common.metrics.predictions import Predictions
from common.models.task_outputs import OutputLayout

ONE_LABEL = [1]  # the layout of a label for each example, which `common.data.splits.multi_output_split` gives an axis


def split_predictions(
    predictions: Predictions | None, task: TaskSettings, layouts: Sequence[OutputLayout]
) -> dict[str, Predictions]:
    """Return the predictions of each output by its name. The only output of a task has the name "".

    Args:
        predictions: The predictions of an evaluation. If there are several outputs, the outputs and the labels of an
            example stand one after the other. None if nothing was gathered.
        task: The task of the run.
        layouts: The layouts of several outputs, or of the embeddings of task=contrastive.

    Returns:
        The predictions in the types and the shapes that a run with this output alone has; but labels [n, 1] are [n].
    """
    if predictions is None:
        return {}
    if isinstance(task, ContrastiveSettings):
        (layout,) = layouts
        return {"": replace(predictions, outputs=predictions.outputs.reshape(-1, *layout.output))}
    if not isinstance(task, MultiOutputSettings):
        return {"": predictions}
    is_classified = [
        predictions.kind == CLASSES and isinstance(output.task, ClassificationSettings) for output in task.tasks
    ]
    shapes = [
        _get_class_shape(layout) if has_classes else layout.output
        for layout, has_classes in zip(layouts, is_classified, strict=True)
    ]
    outputs = _split_columns(predictions.outputs, shapes)
    labels = _split_columns(predictions.labels, [layout.labels for layout in layouts])
    kinds = [CLASSES if has_classes else OUTPUTS for has_classes in is_classified]
    return {
        output.name: _take_shapes(Predictions(kind, predictions.ids, output_labels, output_values), layout)
        for output, layout, kind, output_labels, output_values in zip(
            task.tasks, layouts, kinds, labels, outputs, strict=True
        )
    }


def _get_class_shape(layout: OutputLayout) -> list[int]:
    """Return the shape of the predicted classes of an example. Labels that are numbers have an axis of classes."""
    return layout.labels if layout.is_integer else layout.labels[:-1]


def _split_columns(values: np.ndarray, shapes: Sequence[Sequence[int]]) -> list[np.ndarray]:
    """Split an array [n, values] into arrays whose examples have these shapes, but are still flat."""
    return np.split(values, np.cumsum([math.prod(shape) for shape in shapes])[:-1], 1)


def _take_shapes(predictions: Predictions, layout: OutputLayout) -> Predictions:
    """Return the labels of an output in their shape and type, and the outputs in the same shape if the sizes agree."""
    shape = [] if layout.labels == ONE_LABEL else layout.labels
    labels = predictions.labels.reshape(-1, *shape).astype(np.int32 if layout.is_integer else np.float32)
    outputs = predictions.outputs
    if outputs.size == labels.size:
        outputs = outputs.reshape(labels.shape)
    return replace(predictions, labels=labels, outputs=outputs)
