"""Checks that the output of a user's model fits the labels of the data and the task."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from common.config.schema import Config
from common.config.tasks import (
    BinarySettings,
    ClassificationSettings,
    LanguageModelSettings,
    RegressionSettings,
    TaskSettings,
)
from common.data.cache import Cache
from common.errors import UserError

Shape = tuple[int, ...]
Move = tuple[int, int]  # an axis of an output, and its new place
FIRST_TO_LAST, LAST_TO_FIRST = (1, -1), (-1, 1)
MOVES = (None, FIRST_TO_LAST, LAST_TO_FIRST)  # the first that fits is right: an output in order needs no move


@dataclass(frozen=True)
class TaskOutput:
    """The output of a model, as the task reads it."""

    name: str  # name of the output in the model
    move: Move | None = None  # the axis to move so that the output has the labels' order, and its new position
    classes: int | None = None  # the number of classes of each pixel or token; None if an example has one label


def find_output(key: str, config: Config, cache: Cache, outputs: Mapping[str, Shape], labels: np.ndarray) -> TaskOutput:
    """Return the output that the task uses. Raise UserError if the model has none that fits the task.

    Args:
        key: the config key and the factory, for errors.
        config: the config of the run.
        cache: the cache of the data.
        outputs: the shape of each output for some examples. In a mapping, the output `logits` is called output.logits.
        labels: the labels of these examples.
    """
    name = select_output(key, outputs)
    task, shape = config.task, outputs[name]
    if isinstance(task, ClassificationSettings) and labels.ndim > 1 and labels.dtype.kind == "i":
        expected, move, classes = find_class_axis(key, shape, labels.shape)
    else:
        expected, move, classes = _find_expected_shape(task, cache, shape, labels), None, None
        if isinstance(task, BinarySettings | RegressionSettings) and not expected:
            move = next(move for move in MOVES if has_order(shape, labels.shape, move))
        elif isinstance(task, LanguageModelSettings):
            classes = shape[-1]
    if expected:
        raise UserError(f"{key}: returns {format_shape(shape)}; task={task.kind} needs {expected}")
    return TaskOutput(name, move, classes)


def select_output(key: str, outputs: Mapping[str, Shape]) -> str:
    """Return the name of the output that the task uses: the only output, or `logits`. Raise UserError."""
    if len(outputs) == 1:
        return next(iter(outputs))
    if "output.logits" in outputs:
        return "output.logits"
    raise UserError(f"{key}: returns {', '.join(outputs)}; return one tensor, or a mapping with logits")


def find_class_axis(key: str, shape: Shape, labels_shape: Shape) -> tuple[str, Move | None, int | None]:
    """Find the axis of the classes in an output for labels [n, ...].

    Returns:
        The shape that the labels need if the output does not have it, otherwise ""; the move of the axis of the
        classes; the number of classes.
    """
    is_first, is_last = shape[:1] + shape[2:] == labels_shape, shape[:-1] == labels_shape
    if is_first and is_last:
        raise UserError(
            f"{key}: returns {format_shape(shape)}, whose second or last axis may be the classes; give the "
            "model another number of classes, or the labels another size"
        )
    if is_first:
        return "", FIRST_TO_LAST, shape[1]
    if is_last:
        return "", None, shape[-1]
    sizes = ", ".join(map(str, labels_shape[1:]))
    return f"[n, {sizes}, classes] or [n, classes, {sizes}], a logit for each class at each position", None, None


def _find_expected_shape(task: TaskSettings, cache: Cache, shape: Shape, labels: np.ndarray) -> str:
    """Return the shape that the task needs if an output does not have it, otherwise ""."""
    if isinstance(task, ClassificationSettings):
        classes = len(cache.classes) or labels.shape[-1]
        return "" if shape == (len(labels), classes) else f"[n, {classes}], a logit for each class"
    if isinstance(task, BinarySettings | RegressionSettings):
        if any(has_order(shape, labels.shape, move) for move in MOVES):
            return ""
        return f"{format_shape(labels.shape if labels.ndim > 1 else (*labels.shape, 1))}, the shape of the labels"
    if isinstance(task, LanguageModelSettings):
        is_valid = len(shape) == 3 and shape[:2] == labels.shape
        return "" if is_valid else f"[n, {labels.shape[1]}, vocabulary], a logit for each token of the vocabulary"
    return "" if shape[:1] == (len(labels),) else "[n, ...]"


def has_order(shape: Shape, labels_shape: Shape, move: Move | None) -> bool:
    """Check whether an output has the shape of the labels after an axis was moved. Axes of size 1 do not count."""
    if move is not None and len(shape) > 1:
        shape = tuple(np.moveaxis(np.empty(shape, np.void), *move).shape)
    return [size for size in shape[1:] if size != 1] == [size for size in labels_shape[1:] if size != 1] and (
        shape[:1] == labels_shape[:1]
    )


def format_shape(shape: Shape) -> str:
    """Return the shape of a batch as text, such as [n, 3]."""
    return str(["n", *shape[1:]]).replace("'n'", "n")
