"""Labels that a task can use, and errors that name the first label that it cannot use."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from common.config.schema import Config
from common.config.tasks import CustomTaskSettings, LanguageModelSettings, TaskSettings
from common.data.cache import Cache
from common.data.splits.array_column import Column
from common.data.splits.array_split import ArraySplit
from common.errors import UserError
from common.models.label_checks import check_classes, check_labels, limit_labels
from tests.conftest import MakeConfig
from tests.unit.common.data.splits.test_array_column import ragged
from tests.unit.common.data.transforms.samples import HERE, LANGUAGE_MODEL, TOKEN_SPLIT, transformed
from tests.unit.common.data.transforms.test_transformed_outputs import build_task
from tests.unit.common.data.transforms.test_transformed_outputs import transformed as transform_outputs
from tests.unit.reference_losses import BINARY, CLASSIFICATION, REGRESSION

TOKENS, CUSTOM = LanguageModelSettings("language_model"), CustomTaskSettings("custom", None, None)
DICE, KL, FOCAL = (replace(CLASSIFICATION, loss=loss) for loss in ("dice", "kl", "focal"))
POISSON = replace(REGRESSION, loss="poisson")
INTEGERS, SHARES = np.array([0, 1, 2, 1], np.int32), np.full((4, 3), 1 / 3, np.float32)
NUMBERS, BLOCKS = np.array([0.5, 0, 1, 1.5], np.float32), np.arange(12, dtype=np.int32).reshape(4, 3)
PIXELS = np.array([[[0, 1], [2, -100]], [[-100, -100], [-100, -100]], [[1, 1], [1, 1]], [[0, 4], [0, 0]]], np.int32)
ANSWERS = np.array([[0, 1], [1, 1], [-1, 0], [0.5, 1]], np.float32)
RAGGED = ragged([[1, 2], [], [3], [0, 4, 1]])


@pytest.fixture
def config(make_config: MakeConfig) -> Config:
    return make_config("data=files", "data.train=t.csv", "data.validation=v.csv")


def make_cache(labels: np.ndarray | Column) -> Cache:
    column = labels if isinstance(labels, Column) else Column(labels)
    split: Any = ArraySplit({}, column)
    is_class = column.shape == () and column.values.dtype == np.int32
    return Cache(Path(), "", split, split, ["a", "b", "c"] if is_class else [])


@pytest.mark.parametrize(
    ("task", "labels"),
    [
        (CLASSIFICATION, INTEGERS),
        (FOCAL, INTEGERS),
        (CLASSIFICATION, SHARES),
        (KL, SHARES),
        (CLASSIFICATION, PIXELS),
        (DICE, PIXELS),
        (CLASSIFICATION, RAGGED),
        (replace(CLASSIFICATION, class_weights=[1.0, 0.0, 2.0]), INTEGERS),
        (replace(CLASSIFICATION, class_weights=[1.0, 0.0, 2.0, 1.0, 1.0]), PIXELS),
        (BINARY, INTEGERS.clip(max=1)),
        (BINARY, SHARES),
        (replace(BINARY, ignore_label=-1), ANSWERS),
        (replace(BINARY, ignore_label=-1, loss="dice"), ANSWERS),
        (replace(BINARY, class_weights=[1.0, 3.0]), INTEGERS.clip(max=1)),
        (replace(BINARY, class_weights=[1.0, 3.0]), SHARES),
        (REGRESSION, NUMBERS),
        (REGRESSION, INTEGERS),
        (POISSON, NUMBERS),
        (TOKENS, BLOCKS),
        (TOKENS, RAGGED),
        (CUSTOM, BLOCKS),
    ],
)
def test_labels_that_fit_are_accepted(config: Config, task: TaskSettings, labels: np.ndarray | Column) -> None:
    check_labels(replace(config, task=task), make_cache(labels))


@pytest.mark.parametrize(
    ("task", "labels", "message"),
    [
        (CLASSIFICATION, NUMBERS, "data.train=t.csv: task=classification needs integer labels [n, ...], or shares of"),
        (CLASSIFICATION, 2 * SHARES, "task=classification needs shares of each class that add up to 1; the shares of"),
        (CLASSIFICATION, SHARES - np.array([1, -1, 0], np.float32), "needs labels of at least 0; example 0 has -0.66"),
        (CLASSIFICATION, PIXELS - 1, "needs labels of at least 0, or task.ignore_label=-100; example 0 has -1"),
        (
            replace(CLASSIFICATION, ignore_label=None),
            PIXELS,
            "of at least 0; example 0 has -100; correct it, or set task.ignore_label=-100",
        ),
        (replace(CLASSIFICATION, ignore_label=None), RAGGED, "needs a label that pads ragged labels; set task.ignore_"),
        (KL, INTEGERS, "task=classification task.loss=kl needs shares of each class [n, classes]; these are int32 [n]"),
        (FOCAL, SHARES, "task.loss=focal needs integer labels; these are float32 [n, 3]"),
        (DICE, INTEGERS, "task.loss=dice needs several labels for each example, such as one for each pixel"),
        (replace(BINARY, loss="dice"), NUMBERS.clip(max=1), "task.loss=dice needs several labels for each example"),
        (BINARY, INTEGERS, "task=binary needs labels from 0 to 1; example 2 has 2"),
        (BINARY, NUMBERS, "task=binary needs labels from 0 to 1; example 3 has 1.5"),
        (BINARY, ANSWERS, "task=binary needs labels from 0 to 1; example 2 has -1"),
        (replace(BINARY, ignore_label=-2), ANSWERS, "from 0 to 1, or task.ignore_label=-2; example 2 has -1"),
        (
            replace(BINARY, ignore_label=0),
            NUMBERS,
            "task.ignore_label=0 needs several labels for each example; leave s",
        ),
        (replace(CLASSIFICATION, ignore_label=2), INTEGERS, "task.ignore_label=2 needs several labels for each exampl"),
        (BINARY, RAGGED, "needs a label that pads ragged labels; set task.ignore_label"),
        (replace(BINARY, ignore_label=-1), RAGGED, "or task.ignore_label=-1; example 0 has 2"),
        (REGRESSION, RAGGED, "task=regression needs the same number of labels in each example; these are ragged"),
        (POISSON, NUMBERS - 0.5, "task=regression needs labels of at least 0; example 1 has -0.5"),
        (TOKENS, INTEGERS, "task=language_model needs integer labels [n, tokens]; these are int32 [n]"),
        (TOKENS, SHARES, "task=language_model needs integer labels [n, tokens]; these are float32 [n, 3]"),
        (
            replace(CLASSIFICATION, class_weights=[1.0]),
            INTEGERS,
            "task.class_weights=[1.0]: needs a number for each of the 3 classes",
        ),
        (replace(CLASSIFICATION, class_weights=[1.0] * 3), SHARES, "needs integer labels; store integers, or"),
        (replace(BINARY, class_weights=[1.0] * 3), ANSWERS.clip(0), "needs a number for each of the 2 classes"),
        (replace(BINARY, class_weights=[1.0] * 2), NUMBERS.clip(max=1), "needs integer labels; store integers, or"),
    ],
)
def test_labels_that_do_not_fit_are_refused(
    config: Config, task: TaskSettings, labels: np.ndarray | Column, message: str
) -> None:
    with pytest.raises(UserError) as raised:
        check_labels(replace(config, task=task), make_cache(labels))
    assert message in str(raised.value)


@pytest.mark.parametrize(
    ("task", "labels", "classes", "message"),
    [
        (
            CLASSIFICATION,
            PIXELS,
            4,
            "from 0 to 3, or task.ignore_label=-100, because the model returns 4 classes; exam",
        ),
        (CLASSIFICATION, RAGGED, 4, "because the model returns 4 classes; example 3 has 4"),
        (TOKENS, BLOCKS, 11, "needs labels of at most 10, because the model returns 11 classes; example 3 has 11"),
        (replace(CLASSIFICATION, class_weights=[1.0]), PIXELS, 5, "needs a number for each of the 5 classes of the mo"),
    ],
)
def test_labels_and_weights_fit_the_classes_of_the_model(
    config: Config, task: TaskSettings, labels: np.ndarray | Column, classes: int, message: str
) -> None:
    config, cache = replace(config, task=task), make_cache(labels)
    check_classes(config, cache, None)
    if task.label_weights is None:
        check_classes(config, cache, classes + 1)
    with pytest.raises(UserError) as raised:
        check_classes(config, cache, classes)
    assert message in str(raised.value)


def test_labels_of_a_transform_fit_the_model(config: Config) -> None:
    corruption = {"span_corruption": {"first_sentinel": 300}}
    split: Any = transformed(corruption, source=TOKEN_SPLIT)
    cache = Cache(Path(), "", split, split, [])
    config = replace(config, task=LANGUAGE_MODEL)
    check_labels(config, cache)
    check_classes(config, cache, 301)
    message = r"^data.transforms: span_corruption returns the label 300 for example 0 \(labels\), .* of at most 299; "
    with pytest.raises(UserError, match=message):
        check_classes(config, cache, 300)


@pytest.mark.parametrize("label", [7, -1])
def test_labels_of_a_users_transform_are_classes_of_the_examples(config: Config, label: int) -> None:
    split: Any = transformed("horizontal_flip", {"function": {"name": f"{HERE}:relabel", "label": label}})
    cache = Cache(Path(), "", split, split, ["a", "b", "c"])
    message = rf"^data.transforms: .*:relabel returns the label {label} for example 0 \(labels\), .* from 0 to 2; corr"
    with pytest.raises(UserError, match=message):
        check_classes(config, cache, None)


def test_labels_that_a_transform_returns_later_are_refused_then(config: Config) -> None:
    transform = {"function": {"name": f"{HERE}:relabel", "label": 7, "image": 20}}
    split: Any = transformed("horizontal_flip", transform)
    cache = Cache(Path(), "", split, split, ["a", "b", "c"])
    check_classes(config, cache, None)
    limited = limit_labels(config, cache, None).train
    limited.gather(np.arange(20), np.arange(20))
    with pytest.raises(UserError, match="relabel returns the label 7 for example 20"):
        limited.gather(np.arange(23), np.arange(23))


def test_a_transform_may_return_the_ignored_label_of_an_output_with_one_label(config: Config) -> None:
    split: Any = transform_outputs(f"{HERE}:ignore_group")
    cache = Cache(Path(), "", split, split, [])
    limited = limit_labels(replace(config, task=build_task()), cache, [4096, None, 3]).train
    assert (limited.gather(np.arange(2), np.arange(2))["labels"][:, -1] == -100).all()
