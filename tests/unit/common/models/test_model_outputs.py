from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from common.config.schema import Config
from common.config.tasks import CustomTaskSettings, LanguageModelSettings, TaskSettings
from common.data.cache import Cache
from common.errors import UserError
from common.models.model_outputs import FIRST_TO_LAST, LAST_TO_FIRST, TaskOutput, find_output, select_output
from tests.conftest import MakeConfig
from tests.unit.reference_losses import BINARY, CLASSIFICATION, REGRESSION

CUSTOM, TOKENS = CustomTaskSettings("custom", None, None), LanguageModelSettings("language_model")
INTEGERS, SHARES = np.array([0, 1, 2, 1], np.int32), np.full((4, 3), 1 / 3, np.float32)
NUMBERS, BLOCKS = np.array([0.5, 0, 1, 1.5], np.float32), np.arange(12, dtype=np.int32).reshape(4, 3)


@pytest.fixture
def config(make_config: MakeConfig) -> Config:
    return make_config("data=files", "data.train=t.csv", "data.validation=v.csv")


def make_cache(labels: np.ndarray) -> Cache:
    split: Any = SimpleNamespace(labels=labels, gather=lambda ids, batch: {"labels": labels[ids]})
    return Cache(Path(), "", split, split, ["a", "b", "c"] if labels.dtype == np.int32 and labels.ndim == 1 else [])


PIXELS = np.zeros((4, 5, 6), np.int32)


@pytest.mark.parametrize(
    ("task", "labels", "right", "wrong", "message"),
    [
        (CLASSIFICATION, INTEGERS, (4, 3), (4, 2), "m: returns [n, 2]; task=classification needs [n, 3], a logit for"),
        (CLASSIFICATION, SHARES, (4, 3), (4, 4), "needs [n, 3], a logit for each class"),
        (CLASSIFICATION, PIXELS, (4, 3, 5, 6), (4, 6, 5, 3), "needs [n, 5, 6, classes] or [n, classes, 5, 6], a"),
        (
            CLASSIFICATION,
            PIXELS,
            (4, 5, 6, 1),
            (4, 5, 6),
            "m: returns [n, 5, 6]; task=classification needs [n, 5, 6, c",
        ),
        (
            CLASSIFICATION,
            BLOCKS,
            (4, 3, 2),
            (4, 3, 3),
            "returns [n, 3, 3], whose second or last axis may",
        ),
        (BINARY, INTEGERS, (4, 1), (4, 2), "needs [n, 1], the shape of the labels"),
        (BINARY, PIXELS, (4, 1, 5, 6), (4, 6, 6), "needs [n, 5, 6], the shape of the labels"),
        (REGRESSION, NUMBERS, (4,), (3, 1), "needs [n, 1]"),
        (REGRESSION, SHARES, (4, 3), (), "needs [n, 3]"),
        (REGRESSION, np.zeros((4, 12), np.float32), (4, 12), (4, 3, 4), "needs [n, 12], the shape of the labels"),
        (TOKENS, BLOCKS, (4, 3, 12), (4, 4, 12), "needs [n, 3, vocabulary], a logit for each token"),
        (CUSTOM, NUMBERS, (4, 7), (1,), "task=custom needs [n, ...]"),
    ],
)
def test_shapes_of_outputs(
    config: Config, task: TaskSettings, labels: np.ndarray, right: Any, wrong: Any, message: str
) -> None:
    config = replace(config, task=task)
    find_output("m", config, make_cache(labels), {"output": right}, labels)
    with pytest.raises(UserError) as raised:
        find_output("m", config, make_cache(labels), {"output": wrong}, labels)
    assert message in str(raised.value)


@pytest.mark.parametrize(
    ("task", "labels", "shape", "move", "classes"),
    [
        (CLASSIFICATION, INTEGERS, (4, 3), None, None),
        (CLASSIFICATION, PIXELS, (4, 3, 5, 6), FIRST_TO_LAST, 3),
        (CLASSIFICATION, PIXELS, (4, 5, 6, 3), None, 3),
        (TOKENS, BLOCKS, (4, 3, 12), None, 12),
        (BINARY, PIXELS, (4, 5, 6, 1), None, None),
        (BINARY, np.zeros((4, 5, 6, 2)), (4, 2, 5, 6), FIRST_TO_LAST, None),
        (REGRESSION, np.zeros((4, 2, 5, 6)), (4, 5, 6, 2), LAST_TO_FIRST, None),
        (REGRESSION, np.zeros((4, 3, 3, 3)), (4, 3, 3, 3), None, None),
    ],
)
def test_the_order_of_axes_is_that_of_the_labels(
    config: Config, task: TaskSettings, labels: np.ndarray, shape: Any, move: Any, classes: int | None
) -> None:
    config = replace(config, task=task)
    output = find_output("m", config, make_cache(labels), {"output": shape}, labels)
    assert output == TaskOutput("output", move, classes)


def test_selection_of_the_output() -> None:
    assert select_output("m", {"output": (2,)}) == "output"
    assert select_output("m", {"output.hidden": (2,), "output.logits": (2,)}) == "output.logits"
    with pytest.raises(UserError, match=r"^m: returns output\[0\], output\[1\]; return one tensor, or a mapping with"):
        select_output("m", {"output[0]": (2,), "output[1]": (2,)})
