"""Labels that are not what data.classes or a token's label may be."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from common.errors import UserError
from tests.unit.common.data.arrays.conftest import Opened


@pytest.mark.parametrize(
    ("labels", "classes", "expected"),
    [
        (np.array([0, 1, -1]), None, "train.npz: y[2] is -1, which is not one of the 2 classes, numbered from 0"),
        (np.array([0, 2, 1]), ["a", "b"], "train.npz: y[1] is 2, which is not one of the 2 classes, numbered from 0"),
        (np.array([0, 9**9, 1]), None, "train.npz: y[1] is 387420489, which is not one of the 1048576 classes"),
        (np.array([[0, 1]] * 3), ["a", "b"], "data.classes: y is not one integer for each example; set it to null"),
        (np.ones(3), ["a", "b"], "data.classes: y is not one integer for each example; set it to null"),
        (np.array([[0, 2**31]] * 3), None, "train.npz: y[0, 1] is 2147483648; labels must fit 32 bits"),
        ([np.ones(2)] * 3, None, "train.npz: y is ragged, but not of integers; only labels of tokens may be ragged"),
        ([np.ones(2, bool)] * 3, None, "train.npz: y is ragged, but not of integers"),
    ],
)
def test_bad_labels(opened: Opened, tmp_path: Path, labels: Any, classes: list[str] | None, expected: str) -> None:
    with pytest.raises(UserError) as raised:
        opened({"x": np.ones(3), "y": labels}, label="y", classes=classes)
    assert str(raised.value).replace(f"{tmp_path}/", "").startswith(expected)


def test_a_label_that_only_validation_has(opened: Opened) -> None:
    train = {"x": np.ones(3), "labels": np.array([0, 1, 1])}
    with pytest.raises(UserError, match=r"validation.npz: labels\[2\] is 2, which is not one of the 2 classes"):
        opened(train, {**train, "labels": np.arange(3)}, classes=["a", "b"])
