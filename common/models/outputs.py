"""Whether a user's model, the labels of the data and the task fit together."""

import math
from collections.abc import Mapping
from typing import Any

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
    """Raise UserError where the labels are not those of the task."""
    for name, split in (("train", cache.train), ("validation", cache.validation)):
        first = np.arange(1)
        problem = _problem(config, split.labels, split.gather(first, first)["labels"].ndim)
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


def _problem(config: Config, labels: np.ndarray, axes: int) -> str:
    """What is wrong with a split's labels; empty where nothing is. axes: in a batch; ragged labels have no second."""
    integers = labels.dtype.kind == "i"
    if isinstance(config.task, ClassificationSettings):
        if not (axes == 1 and integers) and not (axes == 2 and not integers):
            return f"needs integer labels [n], or shares of each class [n, classes]; these are {_form(labels)}"
        if not integers and (wrong := _first(np.abs(labels.sum(1) - 1) > 1e-3)) is not None:
            return f"needs shares of each class that add up to 1; those of example {wrong} do not"
    elif isinstance(config.task, BinarySettings):
        if (wrong := _first((labels < 0) | (labels > 1))) is not None:
            return f"needs labels from 0 to 1; that of example {wrong} is not"
    elif isinstance(config.task, LanguageModelSettings) and not (axes == 2 and integers):
        return f"needs integer labels [n, tokens]; these are {_form(labels)}"
    return ""


def _form(labels: np.ndarray) -> str:
    return f"{labels.dtype} {['n', *labels.shape[1:]]}".replace("'", "")


def _first(wrong: Any) -> int | None:
    """The index of the first example of which something is wrong."""
    found = np.flatnonzero(np.asarray(wrong).reshape(len(wrong), -1).any(1))
    return int(found[0]) if len(found) else None


def select_output(key: str, outputs: Mapping[str, Shape]) -> str:
    """The name of the output that the task is about: the only one, or `logits`. Raises UserError."""
    if len(outputs) == 1:
        return next(iter(outputs))
    if "output.logits" in outputs:
        return "output.logits"
    raise UserError(f"{key}: returns {', '.join(outputs)}; return one tensor, or a mapping with logits")


def check_output(key: str, config: Config, cache: Cache, shape: Shape, labels: np.ndarray) -> None:
    """Raise UserError where an output is not what the task needs. labels: of the examples that it is of."""
    task, wanted = config.task, ""
    if isinstance(task, ClassificationSettings):
        classes = len(cache.classes) or labels.shape[-1]
        if shape != (len(labels), classes):
            wanted = f"[n, {classes}], a logit for each class"
    elif isinstance(task, BinarySettings | RegressionSettings):
        each = math.prod(labels.shape[1:])
        if not shape or shape[0] != len(labels) or math.prod(shape[1:]) != each:
            wanted = f"[n, {each}], as many as an example has labels"
    elif isinstance(task, LanguageModelSettings):
        if len(shape) != 3 or shape[:2] != labels.shape or shape[2] <= labels.max():
            wanted = f"[n, {labels.shape[1]}, more than {labels.max()}], a logit for each token of the vocabulary"
    elif shape[:1] != (len(labels),):
        wanted = "[n, ...]"
    if wanted:
        raise UserError(f"{key}: returns {['n', *shape[1:]]}; task={task.kind} needs {wanted}".replace("'n'", "n"))
