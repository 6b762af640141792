"""The array cache, built from every format."""

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from common.config.schema import Config
from common.data.arrays import array_files
from common.data.arrays.array_cache import open_cache, reopen_cache
from common.data.cache import open_transformed_cache
from common.data.splits.array_split import ArraySplit
from common.errors import UserError
from tests.conftest import MakeConfig
from tests.unit.common.data.arrays.array_samples import FORMATS, write
from tests.unit.common.data.arrays.conftest import Opened, sample

TRAIN, VALIDATION = sample(0, 17), sample(1, 5)
INPUTS = {
    "x": ("float32", (3,)),
    "image": ("int32", (4, 2, 3)),
    "age": ("int32", ()),
    "big": ("int64", (2,)),
    "known": ("bool", ()),
    "words": ("int32", (None,)),
    "track": ("float32", (None, 2)),
}


@pytest.mark.slow
@pytest.mark.parametrize("suffix", FORMATS)
def test_the_cache_has_the_arrays_of_the_files(opened: Opened, suffix: str) -> None:
    cache = opened(TRAIN, VALIDATION, suffix, weight="weight", channels=["image"])
    assert (str(cache), cache.classes) == ("17 training and 5 validation examples", ["0", "1", "2"])
    assert cache.inputs == INPUTS
    assert cache.limits.keys() == {"image", "age", "big", "words"}
    assert cache.limits["age"] == max(TRAIN["age"].max(), VALIDATION["age"].max())
    for split, arrays in ((cache.train, TRAIN), (cache.validation, VALIDATION)):
        ids = np.arange(len(split))
        gathered = split.gather(ids, ids)
        assert split.weights(ids).tolist() == arrays["weight"].tolist()
        assert gathered["labels"].dtype == np.int32
        for name in ("x", "image", "age", "big", "known", "labels"):
            assert np.array_equal(gathered[name], arrays[name].astype(gathered[name].dtype))
        for name in ("words", "track"):
            for row, expected in enumerate(arrays[name]):
                assert np.array_equal(gathered[name][row, : len(expected)], expected)
                assert gathered[f"{name}_mask"][row].sum() == len(expected)


@pytest.mark.slow
def test_every_format_gives_the_same_cache(opened: Opened) -> None:
    assert len({opened(TRAIN, VALIDATION, suffix, weight="weight").fingerprint for suffix in FORMATS}) == 1


def test_types_on_disk(opened: Opened) -> None:
    cache = opened(TRAIN, weight="weight")
    assert isinstance(cache.train, ArraySplit)
    columns = {name: str(column.values.dtype) for name, column in cache.train.inputs.items()}
    assert columns == {name: dtype for name, (dtype, _) in INPUTS.items()} | {"image": "uint8"}
    assert all(isinstance(column.values, np.memmap) for column in cache.train.inputs.values())
    assert not [path for path in cache.directory.iterdir() if path.is_dir()]  # the unpacked arrays are removed


@pytest.mark.parametrize("dtype", ["float16", ">f8", ">i4", "uint16", "int8"])
def test_other_types(opened: Opened, dtype: str) -> None:
    values = np.arange(6).astype(dtype).reshape(2, 3)
    gathered = opened({"x": values, "labels": np.arange(2)}).train.gather(np.arange(2), np.arange(2))
    assert gathered["x"].dtype == (np.float32 if "f" in dtype else np.int32)
    assert gathered["x"].tolist() == values.tolist()


def test_arrays_in_the_order_of_fortran_and_odd_names(opened: Opened, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("common.data.arrays.array_checks.BLOCK", 50)  # two examples
    values = np.asfortranarray(np.arange(36.0).reshape(9, 4))
    cache = opened({"a/b c": values, "labels": np.arange(9)})
    assert cache.train.gather(np.arange(9), np.arange(9))["a/b c"].tolist() == values.tolist()


@pytest.mark.parametrize("suffix", [".npz", ".parquet"])
@pytest.mark.parametrize(
    ("labels", "dtype", "shape"),
    [
        (np.array([True, False]), "int32", (2,)),
        (np.array([0.5, 1]), "float32", (2,)),
        (np.array([[0.5, 1], [2, 3]]), "float32", (2, 2)),
        (np.array([[True, False], [True, True]]), "float32", (2, 2)),
        (np.array([[1, -1, 3], [4, 5, -100]]), "int32", (2, 3)),
        ([np.array([1, -1, 3]), np.array([4])], "int32", (2, 8)),
    ],
)
def test_labels(opened: Opened, suffix: str, labels: Any, dtype: str, shape: tuple[int, ...]) -> None:
    cache = opened({"x": np.ones(2), "y": labels}, suffix=suffix, label="y")
    gathered = cache.train.gather(np.arange(2), np.arange(2))["labels"]
    assert (str(gathered.dtype), gathered.shape) == (dtype, shape)
    assert cache.classes == (
        ["0", "1"] if isinstance(labels, np.ndarray) and labels.dtype == bool and labels.ndim == 1 else []
    )


def test_lists_of_one_length_are_ragged_if_the_other_split_differs(opened: Opened) -> None:
    arrays = {"labels": np.arange(2)}
    even = {**arrays, "x": [np.array([1, 2]), np.array([3, 4])]}
    longer = {**arrays, "x": [np.array([1, 2, 3]), np.array([4, 5, 6])]}
    assert opened(even, even, ".parquet").inputs == {"x": ("int32", (2,))}
    assert opened(even, longer, ".parquet").inputs == {"x": ("int32", (None,))}
    assert opened(even, even, ".npz").inputs == {"x": ("int32", (None,))}  # its offsets say so


def test_classes_are_named(opened: Opened, caplog: pytest.LogCaptureFixture) -> None:
    arrays = {"x": np.ones(3), "labels": np.array([0, 1, 0])}
    assert opened(arrays, classes=["cat", "dog", "owl"]).classes == ["cat", "dog", "owl"]
    assert opened(arrays, {**arrays, "labels": np.array([0, 3, 0])}).classes == ["0", "1", "2", "3"]


def test_reopened(arrays_config: Callable[..., Config], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    at = write(tmp_path, "train", ".npz", TRAIN)
    config = arrays_config(at, at, weight="weight")
    first = open_transformed_cache(config, None)

    def fail(*arguments: Any) -> None:
        raise AssertionError("the arrays are read")

    monkeypatch.setattr(array_files, "read", fail)
    again = reopen_cache(config, first.directory)
    assert (again.fingerprint, again.inputs, again.limits) == (first.fingerprint, INPUTS, again.limits)
    assert open_cache(config, None).fingerprint == first.fingerprint
    os.utime(at, ns=(1, 1))
    with pytest.raises(AssertionError, match="the arrays are read"):
        open_cache(config, None)


def test_an_output_with_the_labels_of_a_plain_task_has_a_cache_of_its_own(
    arrays_config: Callable[..., Config], tmp_path: Path, make_config: MakeConfig
) -> None:
    files = [write(tmp_path, name, ".npz", TRAIN) for name in ("train", "validation")]
    plain = arrays_config(*files)
    outputs = make_config("model=custom", "model.torch=a:b", "task=multi_output", "task.outputs={a: {label: labels}}")
    caches = [open_cache(replace(plain, task=task), None) for task in (plain.task, outputs.task, plain.task)]
    labels = [cache.train.gather(np.arange(3), np.arange(3))["labels"].tolist() for cache in caches]
    assert labels == [[0, 1, 2], [[0], [1], [2]], [0, 1, 2]]


def test_channels_are_checked_even_if_the_cache_exists(opened: Opened) -> None:
    opened(TRAIN, channels=["image", "track"])
    with pytest.raises(UserError, match=r"^data.channels: no input 'images'; there are"):
        opened(TRAIN, channels=["images"])


def test_a_corpus_without_classes_is_not_warned_of(
    arrays_config: Callable[..., Config], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    at = write(tmp_path, "train", ".npz", {"x": np.ones(3), "labels": np.zeros((3, 2), np.int64)})
    assert open_transformed_cache(arrays_config(at, at), None).classes == []
    [message] = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert message == "data.validation is the same file as data.train: it shows nothing about new examples"
    write(tmp_path, "train", ".npz", {"x": np.ones(3), "labels": np.zeros(3, np.int64)})
    open_transformed_cache(arrays_config(at, at), None)
    assert "all 3 training examples are of class '0'" in caplog.text
