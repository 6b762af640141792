"""Checks of the labels of the data: whether the task can use them, and whether the model has their classes."""

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import NoReturn

import numpy as np

from common.config.schema import Config
from common.config.task_kinds import MultiOutputSettings
from common.config.tasks import (
    BinarySettings,
    ClassificationSettings,
    ClassTaskSettings,
    LanguageModelSettings,
    RegressionSettings,
    TaskSettings,
)
from common.data.arrays.array_checks import iterate_blocks
from common.data.batches import Split
from common.data.cache import Cache
from common.data.splits.array_column import Column
from common.data.splits.array_split import ArraySplit
from common.data.splits.multi_output_split import MultiOutputSplit
from common.data.transforms.label_limits import LabelLimits
from common.data.transforms.transform import KEY
from common.data.transforms.transformed_data import CHECKED_EXAMPLES
from common.data.transforms.transformed_split import TransformedOutputsSplit, TransformedSplit, get_source
from common.errors import UserError


def check_labels(config: Config, cache: Cache) -> None:
    """Raise UserError if the task cannot use the labels. `check_classes` checks what depends on the model."""
    for location, title, task, split in _iterate_all(config, cache):
        problem = _find_output_problem(config.task, task, split) or _find_problem(task, split)
        problem = problem or _find_wrong_label(task, split, math.inf)
        if problem:
            _refuse(location, title, task, problem)
    if config.task.label_weights is not None:
        _check_class_weights(config.task, config.task.label_weights, cache)


def _check_class_weights(task: TaskSettings, weights: list[float], cache: Cache) -> None:
    """Raise UserError if the class weights do not fit the labels."""
    is_binary, has_one_label = isinstance(task, BinarySettings), _count_axes(get_source(cache.train)) == 1
    if cache.train.labels.dtype.kind != "i" and (has_one_label or not is_binary):
        raise UserError(f"task.class_weights={weights}: needs integer labels; store integers, or set it to null")
    count = 2 if is_binary else len(cache.classes)
    if (is_binary or has_one_label) and len(weights) != count:  # otherwise the model decides the number of classes
        raise UserError(f"task.class_weights={weights}: needs a number for each of the {count} classes")


def check_classes(config: Config, cache: Cache, classes: int | list[int | None] | None) -> None:
    """Raise UserError if a label or the class weights do not fit the classes that the model returns.

    Args:
        config: The config of the run.
        cache: The data.
        classes: The number of classes for each position; None if the labels have no positions. A list if there are
            several outputs.
    """
    counts = classes if isinstance(classes, list) else [classes]
    tasks = [*_iterate_tasks(config, cache)]
    for (location, title, task, split), count in zip(tasks, counts * (len(tasks) // len(counts)), strict=True):
        if count is None:
            continue
        weights = task.label_weights
        if weights is not None and len(weights) != count:
            key = f"{title}.class_weights" if isinstance(classes, list) else "task.class_weights"
            raise UserError(f"{key}={weights}: needs a number for each of the {count} classes of the model")
        if problem := _find_wrong_label(task, split, count):
            _refuse(location, title, task, problem)
    limited = limit_labels(config, cache, classes).train
    if isinstance(limited, TransformedSplit) and limited.limits:
        ids = np.arange(min(CHECKED_EXAMPLES, len(limited)))
        limited.gather(ids, ids)


def limit_labels(config: Config, cache: Cache, classes: int | list[int | None] | None) -> Cache:
    """Return the cache whose splits refuse labels of transforms that are out of range. Arguments as `check_classes`."""
    train, validation = cache.train, cache.validation
    splits = [_limit_split(config.task, split, classes, len(cache.classes)) for split in (train, validation)]
    return replace(cache, train=splits[0], validation=splits[1])


def _limit_split(
    task: TaskSettings, split: Split, classes: int | list[int | None] | None, example_classes: int
) -> Split:
    """Return a split with the range of the labels that its transforms may change.

    example_classes: the number of classes of examples that have one label each; 0 if they have none.
    """
    if not (isinstance(split, TransformedSplit) and split.transforms_labels):
        return split
    limits: dict[str, LabelLimits] = {}
    outputs = task.tasks if isinstance(task, MultiOutputSettings) else []
    names = [(output.label, output.task) for output in outputs] or [("labels", task)]
    counts = classes if isinstance(classes, list) else [classes]
    for (name, label_task), count in zip(names, counts, strict=True):
        shape, dtype = split.specs[name]
        if isinstance(label_task, ClassificationSettings) and dtype.kind == "f":
            continue  # shares of classes
        low, high = _find_limits(label_task, count or example_classes or math.inf)
        if name in limits:
            low, high = max(low, limits[name].low), min(high, limits[name].high)
        if math.isfinite(low) or math.isfinite(high):
            ignored = getattr(label_task, "ignore_label", None) if shape or outputs else None
            limits[name] = LabelLimits(low, high, ignored)
    return replace(split, limits=limits)


def _iterate_tasks(config: Config, cache: Cache) -> Iterator[tuple[str, str, TaskSettings, Split]]:
    """Yield the tasks of both splits: the only task, or one for each output.

    Yields:
        The key that names the data, the key of the task, the task, and the split without its transforms.
    """
    for name, split in (("train", get_source(cache.train)), ("validation", get_source(cache.validation))):
        path = getattr(config.data, name, None)
        location = f"data={config.data.kind}" if path is None else f"data.{name}={path}"
        if isinstance(config.task, MultiOutputSettings):
            assert isinstance(split, MultiOutputSplit)
            for output in config.task.tasks:
                yield location, output.key, output.task, split.outputs[output.name]
        else:
            yield location, f"task={config.task.kind}", config.task, split


def _iterate_all(config: Config, cache: Cache) -> Iterator[tuple[str, str, TaskSettings, Split]]:
    """Yield what `_iterate_tasks` does, and the task of the labels that transforms make for the first examples."""
    yield from _iterate_tasks(config, cache)
    split = cache.train
    if isinstance(split, TransformedSplit) and split.transforms_labels and not split.transforms.mixing:
        ids = np.arange(min(CHECKED_EXAMPLES, len(split)))
        if isinstance(split, TransformedOutputsSplit):
            assert isinstance(config.task, MultiOutputSettings)
            outputs = split.transform_outputs(ids).outputs
            yield from ((KEY, output.key, output.task, outputs[output.name]) for output in config.task.tasks)
            return
        labels = split.gather(ids, ids)["labels"]
        if labels.dtype.kind in "ub":
            labels = labels.astype(np.int32)  # the type in which the cache stores such labels
        yield KEY, f"task={config.task.kind}", config.task, ArraySplit({}, Column(labels), task=config.task)


def _refuse(location: str, title: str, task: TaskSettings, problem: str) -> NoReturn:
    """Raise UserError for a problem of the labels. title: the key of the task, which replaces `task` in the problem."""
    is_output = not title.endswith(f"={task.kind}")
    raise UserError(f"{location}: {title} {problem.replace('task.', f'{title}.') if is_output else problem}")


def _count_axes(split: Split) -> int:
    """Return the number of axes of the labels in a batch. Ragged labels have only one axis in the cache."""
    first = np.arange(1)
    return split.gather(first, first)["labels"].ndim


def _find_problem(task: TaskSettings, split: Split) -> str:
    """Return the reason why the task cannot use labels of this type and shape, or ""."""
    labels, axes = split.labels, _count_axes(split)
    integers, is_ragged = labels.dtype.kind == "i", axes > labels.ndim
    if isinstance(task, LanguageModelSettings) and not (axes == 2 and integers):
        return f"needs integer labels [n, tokens]; these are {_describe(labels)}"
    if is_ragged and isinstance(task, RegressionSettings):
        return "needs the same number of labels in each example; these are ragged"
    if not isinstance(task, ClassTaskSettings):
        return ""
    if is_ragged and task.ignore_label is None:
        return "needs a label that pads ragged labels; set task.ignore_label, such as to -100"
    if axes == 1 and _find_first(labels, lambda block: block == task.ignore_label) is not None:
        return f"task.ignore_label={task.ignore_label} needs several labels for each example; leave such examples out"
    if task.loss == "dice" and (axes == 1 or labels.shape[1:] == (1,)):
        return "task.loss=dice needs several labels for each example, such as one for each pixel"
    return _find_class_problem(task, labels, axes) if isinstance(task, ClassificationSettings) else ""


def _find_class_problem(task: ClassificationSettings, labels: np.ndarray, axes: int) -> str:
    """Return the reason why a classification cannot use labels of this type and shape, or ""."""
    integers = labels.dtype.kind == "i"
    if not integers and axes != 2:
        return f"needs integer labels [n, ...], or shares of each class [n, classes]; these are {_describe(labels)}"
    if integers and task.loss == "kl":
        return f"task.loss=kl needs shares of each class [n, classes]; these are {_describe(labels)}"
    if not integers and task.loss not in ("cross_entropy", "kl"):
        return f"task.loss={task.loss} needs integer labels; these are {_describe(labels)}"
    return ""


def _find_output_problem(whole: TaskSettings, task: TaskSettings, split: Split) -> str:
    """Return the reason why one of several outputs cannot use its labels, or "". whole: the task of all outputs."""
    if not isinstance(whole, MultiOutputSettings):
        return ""
    if isinstance(split, ArraySplit) and split.label.offsets is not None:
        return "needs the same number of labels in each example; these are ragged; pad them with task.ignore_label"
    has_numbers = split.labels.dtype.kind != "i"
    if isinstance(task, ClassificationSettings) and has_numbers and split.labels.shape[1:] == (1,):
        return f"needs integer labels; these are {split.labels.dtype} [n]"
    weights = task.label_weights
    if weights is not None and has_numbers and not isinstance(task, BinarySettings):
        return f"task.class_weights={weights} needs integer labels; store integers, or set it to null"
    if weights is not None and isinstance(task, BinarySettings) and len(weights) != 2:
        return f"task.class_weights={weights} needs a number for each of the 2 classes"
    ignored = getattr(task, "ignore_label", None)
    if ignored is not None and _find_first(split.labels, lambda block: block != ignored) is None:
        return f"has no loss, because all labels are task.ignore_label={ignored}; remove the output"
    return ""


def _describe(labels: np.ndarray) -> str:
    """Return the type and the shape of labels as text, such as "float32 [n, 3]"."""
    return f"{labels.dtype} {['n', *labels.shape[1:]]}".replace("'", "")


def _find_wrong_label(task: TaskSettings, split: Split, classes: float) -> str:
    """Return an error if a label is out of range for the task, or "". classes: the number that the model returns."""
    labels = split.labels
    ignored: int | None = getattr(task, "ignore_label", None) if _count_axes(split) > 1 else None
    if isinstance(task, ClassificationSettings) and labels.dtype.kind == "f":
        index, ignored = _find_first(labels, lambda shares: np.abs(shares.sum(1) - 1) > 1e-3), None
        if index is not None:
            return f"needs shares of each class that add up to 1; the shares of example {index} do not"
    limits = LabelLimits(*_find_limits(task, classes), ignored)
    index = _find_first(labels, limits.find_wrong)
    if index is None:
        return ""
    wrong = labels[index : index + 1][limits.find_wrong(labels[index : index + 1])][0]
    reason = f", because the model returns {classes:g} classes" if classes < math.inf else ""
    place = f"example {_find_example(split, index)} has {wrong:g}"
    can_ignore = isinstance(task, ClassTaskSettings) and _count_axes(split) > 1 and labels.dtype.kind == "i"
    remedy = f", or set task.ignore_label={wrong:g} if it is not a class" if can_ignore else ""
    return f"needs labels {limits}{reason}; {place}; correct it{remedy}"


def _find_limits(task: TaskSettings, classes: float) -> tuple[float, float]:
    """Return the lowest and the highest label that a task can use."""
    if isinstance(task, ClassificationSettings):
        return 0, classes - 1
    if isinstance(task, BinarySettings):
        return 0, 1
    if isinstance(task, LanguageModelSettings):
        return -math.inf, classes - 1
    return 0 if isinstance(task, RegressionSettings) and task.loss == "poisson" else -math.inf, math.inf


def _find_example(split: Split, index: int) -> int:
    """Return the example that has the label at this index of the cache. Ragged labels stand one after the other."""
    offsets = split.label.offsets if isinstance(split, ArraySplit) else None
    return index if offsets is None else int(np.searchsorted(offsets, index, "right")) - 1


def _find_first(labels: np.ndarray, is_wrong: Callable[[np.ndarray], np.ndarray]) -> int | None:
    """Return the first index of a wrong label, or None. is_wrong: returns which labels of a block are wrong."""
    for start, block in iterate_blocks(labels):
        indices = np.flatnonzero(is_wrong(block).reshape(len(block), -1).any(1))
        if len(indices):
            return start + int(indices[0])
    return None
