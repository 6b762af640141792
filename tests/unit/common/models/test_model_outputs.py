from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from common.config.schema import Config
from common.config.tasks import (
    BinarySettings,
    ClassificationSettings,
    CustomTaskSettings,
    LanguageModelSettings,
    RegressionSettings,
    TaskSettings,
)
from common.data.cache import Cache
from common.errors import UserError
from common.models.model_outputs import check_labels, check_output, select_output
from tests.conftest import MakeConfig

CLASSIFICATION, BINARY = ClassificationSettings("classification", 0.0, None), BinarySettings("binary", 0.0, None)
REGRESSION, TOKENS = RegressionSettings("regression", "mse", 1.0), LanguageModelSettings("language_model")
INTEGERS, SHARES = np.array([0, 1, 2, 1], np.int32), np.full((4, 3), 1 / 3, np.float32)
NUMBERS, BLOCKS = np.array([0.5, 0, 1, 1.5], np.float32), np.arange(12, dtype=np.int32).reshape(4, 3)


@pytest.fixture
def config(make_config: MakeConfig) -> Config:
    return make_config("data=files", "data.train=t.csv", "data.validation=v.csv")


def make_cache(labels: np.ndarray) -> Cache:
    split: Any = SimpleNamespace(labels=labels, gather=lambda ids, batch: {"labels": labels[ids]})
    return Cache(Path(), "", split, split, ["a", "b", "c"] if labels.dtype == np.int32 and labels.ndim == 1 else [])


@pytest.mark.parametrize(
    ("task", "labels"),
    [
        (CLASSIFICATION, INTEGERS),
        (CLASSIFICATION, SHARES),
        (BINARY, INTEGERS.clip(max=1)),
        (BINARY, SHARES),
        (REGRESSION, NUMBERS),
        (REGRESSION, INTEGERS),
        (TOKENS, BLOCKS),
        (CustomTaskSettings("custom", None, None), BLOCKS),
        (replace(CLASSIFICATION, class_weights=[1.0, 0.0, 2.0]), INTEGERS),
        (replace(BINARY, class_weights=[1.0, 3.0]), INTEGERS.clip(max=1)),
    ],
)
def test_labels_that_fit_are_accepted(config: Config, task: TaskSettings, labels: np.ndarray) -> None:
    check_labels(replace(config, task=task), make_cache(labels))


@pytest.mark.parametrize(
    ("task", "labels", "message"),
    [
        (CLASSIFICATION, NUMBERS, "data.train=t.csv: task=classification needs integer labels [n], or shares of each"),
        (CLASSIFICATION, 2 * SHARES, "task=classification needs shares of each class that add up to 1; those of exa"),
        (BINARY, INTEGERS, "task=binary needs labels from 0 to 1; that of example 2 is not"),
        (BINARY, NUMBERS, "task=binary needs labels from 0 to 1; that of example 3 is not"),
        (TOKENS, INTEGERS, "task=language_model needs integer labels [n, tokens]; these are int32 [n]"),
        (TOKENS, SHARES, "task=language_model needs integer labels [n, tokens]; these are float32 [n, 3]"),
        (
            replace(CLASSIFICATION, class_weights=[1.0]),
            INTEGERS,
            "task.class_weights=[1.0]: needs one integer label",
        ),
        (replace(CLASSIFICATION, class_weights=[1.0] * 3), SHARES, "and a number for each of the 0 classes"),
    ],
)
def test_labels_that_do_not_fit_are_refused(
    config: Config, task: TaskSettings, labels: np.ndarray, message: str
) -> None:
    with pytest.raises(UserError) as raised:
        check_labels(replace(config, task=task), make_cache(labels))
    assert message in str(raised.value)


@pytest.mark.parametrize(
    ("task", "labels", "right", "wrong", "message"),
    [
        (CLASSIFICATION, INTEGERS, (4, 3), (4, 2), "m: returns [n, 2]; task=classification needs [n, 3], a logit for"),
        (CLASSIFICATION, SHARES, (4, 3), (4, 4), "needs [n, 3], a logit for each class"),
        (BINARY, INTEGERS, (4, 1), (4, 2), "needs [n, 1], as many as an example has labels"),
        (REGRESSION, NUMBERS, (4,), (3, 1), "needs [n, 1]"),
        (REGRESSION, SHARES, (4, 3), (), "needs [n, 3]"),
        (TOKENS, BLOCKS, (4, 3, 12), (4, 3, 11), "needs [n, 3, more than 11], a logit for each token"),
        (CustomTaskSettings("custom", None, None), NUMBERS, (4, 7), (1,), "task=custom needs [n, ...]"),
    ],
)
def test_shapes_of_outputs(
    config: Config, task: TaskSettings, labels: np.ndarray, right: Any, wrong: Any, message: str
) -> None:
    config = replace(config, task=task)
    check_output("m", config, make_cache(labels), right, labels)
    with pytest.raises(UserError) as raised:
        check_output("m", config, make_cache(labels), wrong, labels)
    assert message in str(raised.value)


def test_selection_of_the_output() -> None:
    assert select_output("m", {"output": (2,)}) == "output"
    assert select_output("m", {"output.hidden": (2,), "output.logits": (2,)}) == "output.logits"
    with pytest.raises(UserError, match=r"^m: returns output\[0\], output\[1\]; return one tensor, or a mapping with"):
        select_output("m", {"output[0]": (2,), "output[1]": (2,)})
