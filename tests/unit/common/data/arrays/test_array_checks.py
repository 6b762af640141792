"""What is wrong with arrays, whatever file they are in."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from common.errors import UserError
from tests.unit.common.data.arrays.array_samples import Values
from tests.unit.common.data.arrays.conftest import Opened

X, LABELS = np.ones((4, 2)), np.arange(4)
GOOD: Values = {"x": X, "labels": LABELS}
RAGGED = [np.arange(2)] * 4


def with_value(value: float, dtype: str = "float64") -> np.ndarray:
    values: np.ndarray = np.ones((4, 3, 2), dtype)
    values[2, 1, 0] = values[3, 0, 0] = value
    return values


@pytest.mark.parametrize(
    ("arrays", "expected"),
    [
        # what there is
        ({"x": X, "y": LABELS}, "no array 'labels'; set data.label to one of ['x', 'y']"),
        ({"labels": LABELS}, "no array but ['labels']; add the inputs of the model"),
        ({"x": np.ones((0, 2)), "labels": np.ones(0, int)}, "no examples; choose another file"),
        ({**GOOD, "z": np.ones((3, 2))}, "z has 3 examples, but labels has 4; make the numbers equal"),
        ({**GOOD, "z": np.ones((4, 0))}, "z has no values; fill it in or leave it out"),
        ({**GOOD, "z": np.array(3.0)}, "z is a single number; its first axis must be the examples"),
        # types
        ({**GOOD, "z": X * 1j}, "z is complex; use floats, integers or bools, or leave it out"),
        ({**GOOD, "z": np.array(list("abcd"))}, "z is text; use floats, integers or bools, or leave it out"),
        (
            {**GOOD, "z": np.zeros(4, "datetime64[s]")},
            "z is times; use floats, integers or bools, or leave it out",
        ),
        (
            {**GOOD, "z": np.full(4, 2**64 - 1, np.uint64)},
            "z has values up to 18446744073709551615, which do not fit 64 bits with a sign; leave it out",
        ),
        # values
        ({**GOOD, "x": with_value(np.nan)}, "x[2, 1, 0] is nan; remove or replace it"),
        ({**GOOD, "x": with_value(-np.inf, "float16")}, "x[2, 1, 0] is -inf; remove or replace it"),
        ({**GOOD, "x": with_value(1e39)}, "x[2, 1, 0] is 1e+39; it does not fit float32; scale the array"),
        ({**GOOD, "labels": np.array([0, 1, np.nan, 2])}, "labels[2] is nan; remove or replace it"),
        # names
        ({**GOOD, "weights": LABELS}, "weights is a reserved name of batches; rename the array"),
        ({**GOOD, "dropout_keys": LABELS}, "dropout_keys is a reserved name of batches; rename the array"),
        ({**GOOD, "real_rows": LABELS}, "real_rows is a reserved name of batches; rename the array"),
        ({**GOOD, "z": RAGGED, "z_mask": X}, "z_mask is a reserved name of batches; rename the array"),
    ],
)
def test_bad_arrays(opened: Opened, tmp_path: Path, arrays: Values, expected: str) -> None:
    with pytest.raises(UserError) as raised:
        opened(arrays)
    assert str(raised.value) == f"{tmp_path}/train.npz: {expected}"
    assert not [path for path in (tmp_path / "cache").iterdir() if path.is_dir()]


def test_the_index_is_that_of_the_whole_array(opened: Opened, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("common.data.arrays.array_checks.BLOCK", 48)  # one example
    with pytest.raises(UserError, match=r"validation.npz: x\[2, 1, 0\] is nan"):
        opened({**GOOD, "x": np.ones((4, 3, 2))}, {**GOOD, "x": with_value(np.nan)})


def test_names_of_lockstep_that_are_free(opened: Opened) -> None:
    """Labels by another name, and a mask of what is not ragged."""
    assert opened({"x": X, "x_mask": X, "weights": LABELS}, label="weights").inputs.keys() == {"x", "x_mask"}
    with pytest.raises(UserError, match=r"labels is a reserved name of batches; rename the array$"):
        opened({"x": X, "labels": X, "y": LABELS}, label="y")


@pytest.mark.parametrize(
    ("validation", "expected"),
    [
        ({"x": X, "labels": LABELS, "z": X}, "train.npz: no array 'z', which {}/validation.npz has; both must have"),
        ({"z": X, "labels": LABELS}, "validation.npz: no array 'x', which {}/train.npz has; both must have the same"),
        (
            {"x": np.ones((4, 3)), "labels": LABELS},
            "validation.npz: x has floats of shape (3) for an example, but in {}/train.npz floats of shape (2)",
        ),
        (
            {"x": X.astype(int), "labels": LABELS},
            "validation.npz: x has integers of shape (2) for an example, but in {}/train.npz floats of shape (2)",
        ),
        (
            {"x": [np.ones(2)] * 4, "labels": LABELS},
            "validation.npz: x has floats of shape (any) for an example, but in {}/train.npz floats of shape (2)",
        ),
        (
            {"x": X, "labels": LABELS > 1},
            "validation.npz: labels has bools of shape () for an example, but in {}/train.npz integers of shape ()",
        ),
    ],
)
def test_both_splits_are_alike(opened: Opened, tmp_path: Path, validation: Values, expected: str) -> None:
    with pytest.raises(UserError) as raised:
        opened(GOOD, validation)
    assert str(raised.value).startswith(f"{tmp_path}/{expected.format(tmp_path)}")


@pytest.mark.parametrize(
    ("weights", "expected"),
    [
        (np.array([1, -1, 2, -3.0]), "w[1] is -1; weights must be at least 0"),
        (np.zeros(4), "w is 0 for all examples; give some of them weight"),
        (np.ones((4, 1)), "w has shape (1) for an example; give each example one weight"),
        (RAGGED, "w has shape (any) for an example; give each example one weight"),
        (np.array([1, np.inf, 1, 1]), "w[1] is inf; remove or replace it"),
    ],
)
def test_weights(opened: Opened, tmp_path: Path, weights: Any, expected: str) -> None:
    with pytest.raises(UserError) as raised:
        opened({**GOOD, "w": np.arange(4)}, {**GOOD, "w": np.ones(4)}, weight="v")
    assert str(raised.value) == f"{tmp_path}/train.npz: no array 'v'; set data.weight to one of ['x', 'labels', 'w']"
    with pytest.raises(UserError) as raised:
        opened({**GOOD, "w": weights}, weight="w")
    assert str(raised.value) == f"{tmp_path}/train.npz: {expected}"


def test_whole_numbers_are_weights_too(opened: Opened) -> None:
    weights = opened({**GOOD, "w": np.arange(4)}, weight="w").train.weights(np.arange(4))
    assert (weights.dtype, weights.tolist()) == (np.float64, [0, 1, 2, 3])


@pytest.mark.parametrize(
    ("channels", "expected"),
    [
        (["y"], "data.channels: no input 'y'; there are ['x']"),
        (["labels"], "data.channels: no input 'labels'; there are ['x']"),
        (
            ["x"],
            "data.channels: x has shape (2) for an example; channels need another axis before them; leave it out",
        ),
    ],
)
def test_channels(opened: Opened, channels: list[str], expected: str) -> None:
    with pytest.raises(UserError) as raised:
        opened(GOOD, channels=channels)
    assert str(raised.value) == expected
