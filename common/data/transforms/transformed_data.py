"""The transforms of a config on both splits, and the check of the transforms before training starts.

Evaluations leave out random transforms and functions of the user, unless `data.transform_evaluation` asks for them.
They never mix examples. Every evaluation uses the random numbers of epoch 0, so all evaluations get the same.
"""

import random
from dataclasses import replace

import numpy as np

from common.config.data import TransformedSettings
from common.config.schema import Config
from common.config.task_kinds import MultiOutputSettings
from common.config.tasks import ClassificationSettings, CustomTaskSettings, LanguageModelSettings, TaskSettings
from common.data.batches import Split
from common.data.label_weights import get_padding_label
from common.data.transforms.builder import TransformList, build_transforms
from common.data.transforms.rows import gather_examples
from common.data.transforms.streams import EXAMPLES, Streams, derive_keys
from common.data.transforms.transform import KEY, Example
from common.data.transforms.transformed_split import (
    TransformedOutputsSplit,
    TransformedSplit,
    check_types,
    transform_split,
)
from common.errors import UserError

Normalization = dict[str, list[float]]  # arguments of the transform `normalize`

CHECKED_EXAMPLES = 8  # training examples on which the transforms are checked


def transform_data(
    config: Config, train: Split, validation: Split, classes: int, normalization: Normalization | None
) -> tuple[Split, Split]:
    """Return both splits with the transforms of the config, or unchanged if there are none.

    Args:
        config: The config of the run.
        train: The training examples.
        validation: The validation examples.
        classes: The number of classes; 0 if the labels are not classes.
        normalization: Arguments of the `normalize` that is appended if the transforms have none; None to append none.

    Raises:
        UserError: A transform is wrong, or does not fit the examples.
    """
    data = config.data
    if not isinstance(data, TransformedSettings) or not data.transforms:
        return train, validation
    transforms = set_ignored_labels(build_transforms(data.transforms, normalization), config.task)
    if transforms.mixing is not None:
        _check_mixing(config.task, train)
    evaluation_steps = tuple(
        step for step in transforms.steps if data.transform_evaluation or not step.transform.training_only
    )
    if not isinstance(config.task, ClassificationSettings | CustomTaskSettings):
        classes = 0  # a single label is an answer or a number, which cannot be mixed as shares of classes
    transformed_train = transform_split(train, transforms, classes, config.train.seed)
    if config.task.label_weights is not None and transformed_train.specs["labels"][1] != _get_label_dtype(train):
        raise UserError(f"task.class_weights: {KEY} returns labels of another type; set it to null")
    transformed_validation = transform_split(
        validation, TransformList(evaluation_steps, None), classes, config.train.seed
    )
    _check_same_inputs(transformed_train, transformed_validation)
    return transformed_train, transformed_validation


def set_ignored_labels(transforms: TransformList, task: TaskSettings) -> TransformList:
    """Return the transforms with the names of the labels, and the label that the task of each ignores."""
    outputs = task.tasks if isinstance(task, MultiOutputSettings) else []
    tasks = [(output.label, output.task) for output in outputs] or [("labels", task)]
    labels: dict[str, int | None] = {}
    for name, label_task in tasks:
        label = _get_ignored_label(label_task)
        if labels.setdefault(name, label) != label:
            raise UserError(f"{KEY}: outputs that share {name} have different ignore_label; give them the same")
    steps = [
        replace(step, transform=replace(step.transform, ignored_labels=labels))  # type: ignore[type-var]  # a dataclass
        if hasattr(step.transform, "ignored_labels")
        else step
        for step in transforms.steps
    ]
    return replace(transforms, steps=tuple(steps))


def _get_ignored_label(task: TaskSettings) -> int | None:
    """Return the label that has no loss; None if all labels have one."""
    if isinstance(task, LanguageModelSettings):
        return get_padding_label(task)
    return getattr(task, "ignore_label", None)


def _get_label_dtype(split: Split) -> np.dtype:
    """Return the type of the labels of a split in a batch."""
    first = np.arange(1)
    return split.gather(first, first)["labels"].dtype


def _check_mixing(task: TaskSettings, train: Split) -> None:
    """Raise UserError if examples have weights, or if the task cannot use the shares of classes of mixed examples."""
    if task.names_labels:
        raise UserError(f"{KEY}: the labels of task={task.kind} cannot be mixed; remove mixup or cutmix")
    if getattr(train, "example_weights", None) is not None:
        raise UserError("data.weight: a mixed example has no weight; set it to null, or mix no examples")
    if task.label_weights is not None:
        raise UserError("task.class_weights: a mixed example has no class; set it to null, or mix no examples")
    loss = getattr(task, "loss", None)
    if isinstance(task, ClassificationSettings) and loss not in ("cross_entropy", "kl"):
        raise UserError(f"task.loss={loss}: a mixed example has no class; choose cross_entropy, or mix no examples")


def _check_same_inputs(train: TransformedSplit, validation: TransformedSplit) -> None:
    """Raise UserError if evaluations give the model inputs of other shapes or types than training.

    The labels of several outputs are flat, so that their shapes must be the same, too.
    """
    unchecked = () if isinstance(train, TransformedOutputsSplit) else train.label_names
    for name, spec in train.specs.items():
        if name not in unchecked and spec != validation.specs[name]:
            trained, evaluated = (
                f"{dtype} {[*shape]}" for shape, dtype in (split.specs[name] for split in (train, validation))
            )
            raise UserError(
                f"{KEY}: {name} is {trained} in training, but {evaluated} in evaluations, which leave out random "
                "transforms; add center_crop, resize or normalize, or set data.transform_evaluation=true"
            )


def check_transforms(split: Split) -> None:
    """Raise UserError unless the transforms are pure functions of an example and its generator, on some examples."""
    if not isinstance(split, TransformedSplit):
        return
    ids = np.arange(min(CHECKED_EXAMPLES, len(split)))
    _, examples = gather_examples(split.source, ids, ids)
    streams = Streams()
    for row, (example, key) in enumerate(zip(examples, derive_keys(EXAMPLES, split.seed, 0, ids), strict=True)):
        for step in split.transforms.steps:
            state = _read_global_generators()
            results = [step.transform(_copy(example), streams.start(key, step.index)) for _ in range(2)]
            if state != _read_global_generators():
                raise UserError(
                    f"{KEY}: {step.name} draws from a generator that all code shares, such as np.random; draw from the "
                    "generator that it gets"
                )
            example, repeated = results
            check_types(step.name, example)
            if any(example[name].tobytes() != repeated[name].tobytes() for name in example):
                raise UserError(
                    f"{KEY}: {step.name} returns another result when it is called again with the same example and "
                    "generator; draw from the generator that it gets"
                )
            if invalid := [name for name, array in example.items() if not np.isfinite(array).all()]:
                raise UserError(f"{KEY}: {step.name} returns nan or infinity in {invalid[0]} of training example {row}")
    split.gather(ids, ids)  # raises UserError if the examples have different shapes


def _copy(example: Example) -> Example:
    return {name: array.copy() for name, array in example.items()}


def _read_global_generators() -> tuple[object, ...]:
    """Return the states of the generators of numpy.random and of random, as values that can be compared."""
    state = np.random.get_state(legacy=True)
    return (*(x.tobytes() if isinstance(x, np.ndarray) else x for x in state), random.getstate())
