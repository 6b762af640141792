"""Checks that a user's model, the labels of the data and the task fit together."""

import math
from collections.abc import Mapping

import numpy as np

from common.config.schema import Config
from common.config.tasks import (
    BinarySettings,
    ClassificationSettings,
    ClassTaskSettings,
    LanguageModelSettings,
    RegressionSettings,
)
from common.data.cache import Cache
from common.errors import UserError

Shape = tuple[int, ...]


def check_labels(config: Config, cache: Cache) -> None:
    """Raise UserError if the task cannot use the labels."""
    for name, split in (("train", cache.train), ("validation", cache.validation)):
        first = np.arange(1)
        problem = _find_problem(config, split.labels, split.gather(first, first)["labels"].ndim)
        if problem:
            raise UserError(f"data.{name}={getattr(config.data, name)}: task={config.task.kind} {problem}")
    weights = config.task.label_weights
    if isinstance(config.task, ClassTaskSettings) and weights is not None:
        count = 2 if isinstance(config.task, BinarySettings) else len(cache.classes)
        if cache.train.labels.ndim != 1 or cache.train.labels.dtype.kind != "i" or len(weights) != count:
            raise UserError(
                f"task.class_weights={weights}: needs one integer label for each example, and a number for each of the "
                f"{count} classes"
            )


def _find_problem(config: Config, labels: np.ndarray, axes: int) -> str:
    """Return why the task cannot use the labels of a split, or "" if it can.

    Args:
        config: the config of the run.
        labels: the labels as the cache stores them. Ragged labels have only one axis there.
        axes: the number of axes of the labels in a batch.
    """
    integers = labels.dtype.kind == "i"
    if isinstance(config.task, ClassificationSettings):
        if not (axes == 1 and integers) and not (axes == 2 and not integers):
            return f"needs integer labels [n], or shares of each class [n, classes]; these are {_describe(labels)}"
        if not integers and (index := _find_first(np.abs(labels.sum(1) - 1) > 1e-3)) is not None:
            return f"needs shares of each class that add up to 1; those of example {index} do not"
    elif isinstance(config.task, BinarySettings):
        if (index := _find_first((labels < 0) | (labels > 1))) is not None:
            return f"needs labels from 0 to 1; that of example {index} is not"
    elif isinstance(config.task, LanguageModelSettings) and not (axes == 2 and integers):
        return f"needs integer labels [n, tokens]; these are {_describe(labels)}"
    return ""


def _describe(labels: np.ndarray) -> str:
    """Return the type and the shape of labels as text, such as "float32 [n, 3]"."""
    return f"{labels.dtype} {['n', *labels.shape[1:]]}".replace("'", "")


def _find_first(is_wrong: np.ndarray) -> int | None:
    """Return the index of the first example with a wrong label, or None. `is_wrong` says it of each label, [n, ...]."""
    indices = np.flatnonzero(np.asarray(is_wrong).reshape(len(is_wrong), -1).any(1))
    return int(indices[0]) if len(indices) else None


def select_output(key: str, outputs: Mapping[str, Shape]) -> str:
    """Return the name of the output that the task uses: the only output, or `logits`. Raises UserError.

    Args:
        key: the config key and the factory, for errors.
        outputs: the shape of each output. In a mapping, the output `logits` is called output.logits.
    """
    if len(outputs) == 1:
        return next(iter(outputs))
    if "output.logits" in outputs:
        return "output.logits"
    raise UserError(f"{key}: returns {', '.join(outputs)}; return one tensor, or a mapping with logits")


def check_output(key: str, config: Config, cache: Cache, shape: Shape, labels: np.ndarray) -> None:
    """Raise UserError if an output does not have the shape that the task needs.

    Args:
        key: the config key and the factory, for errors.
        config: the config of the run.
        cache: the cache of the data.
        shape: the shape of the output for some examples.
        labels: the labels of these examples.
    """
    task, expected = config.task, ""
    if isinstance(task, ClassificationSettings):
        classes = len(cache.classes) or labels.shape[-1]
        if shape != (len(labels), classes):
            expected = f"[n, {classes}], a logit for each class"
    elif isinstance(task, BinarySettings | RegressionSettings):
        count = math.prod(labels.shape[1:])
        if not shape or shape[0] != len(labels) or math.prod(shape[1:]) != count:
            expected = f"[n, {count}], as many as an example has labels"
    elif isinstance(task, LanguageModelSettings):
        if len(shape) != 3 or shape[:2] != labels.shape or shape[2] <= labels.max():
            expected = f"[n, {labels.shape[1]}, more than {labels.max()}], a logit for each token of the vocabulary"
    elif shape[:1] != (len(labels),):
        expected = "[n, ...]"
    if expected:
        raise UserError(f"{key}: returns {['n', *shape[1:]]}; task={task.kind} needs {expected}".replace("'n'", "n"))
