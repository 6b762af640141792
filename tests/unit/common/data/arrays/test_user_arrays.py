"""Examples that functions of users yield."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from common.config.data import CustomDataSettings
from common.config.schema import Config
from common.data.arrays.array_cache import open_cache
from common.data.arrays.user_arrays import write_splits
from common.errors import UserError
from tests.conftest import MakeConfig
from tests.unit.common.data.arrays.datasets_of_users import make_arrays

MODULE = "tests.unit.common.data.arrays.datasets_of_users"
Make = Callable[..., Config]


@pytest.fixture
def make_custom(make_config: MakeConfig, tmp_path: Path) -> Make:
    def make(function: str, *overrides: str) -> Config:
        return make_config("data=custom", f"data.read={MODULE}:{function}", f"cache_dir={tmp_path}", *overrides)

    return make


@pytest.mark.slow
@pytest.mark.parametrize(
    ("function", "overrides"),
    [("yield_dicts", []), ("MapStyle", ["data.names=[x,labels]"]), ("LikeTensorFlow", []), ("IterableWithLength", [])],
)
def test_every_form_gives_the_same_arrays(make_custom: Make, function: str, overrides: list[str]) -> None:
    cache = open_cache(make_custom(function, *overrides), None)
    for split_name, split in (("train", cache.train), ("validation", cache.validation)):
        expected, ids = make_arrays(split_name), np.arange(len(split))
        assert len(split) == len(expected["labels"])
        assert np.array_equal(split.gather(ids, ids)["labels"], expected["labels"])
        np.testing.assert_array_equal(split.gather(ids, ids)["x"], expected["x"].astype(np.float32))
    assert cache.classes == ["0", "1", "2"]


@pytest.mark.slow
def test_examples_of_different_lengths_are_ragged(make_custom: Make) -> None:
    arrays = open_cache(make_custom("yield_ragged"), None).train.gather(np.array([0, 1]), np.array([0, 1]))
    assert arrays["words"][:, :3].tolist() == [[0, 1, 2], [0, 0, 0]]
    assert arrays["words_mask"][:, :4].tolist() == [[1, 1, 1, 0], [1, 0, 0, 0]]


@pytest.mark.slow
def test_another_version_is_read_again(make_custom: Make) -> None:
    first, again, other = (
        open_cache(make_custom("yield_dicts", *version), None).directory for version in ([], [], ["data.version=b"])
    )
    assert first == again != other


@pytest.mark.parametrize(
    ("examples", "expected"),
    [
        ([], ": no examples"),
        ([{"x": "text"}], "[0]: x is an array of <U4, not of numbers; convert or remove it"),
        ([(1, 2)], "[0]: is a tuple; name its elements by data.names=[...]"),
        ([1], "[0]: is int; yield dicts of arrays, or tuples with data.names"),
        ([{"x": 1}, {"y": 1}], "[1]: has y, but the first example x"),
        ([{"x": 1}, {"x": 1.5}], "[1]: x: is float64, but int64 in the first example; use one type for all"),
        (
            [{"x": np.uint8(3)}, {"x": np.uint16(300)}],
            "[1]: x: is uint16, but uint8 in the first example; use one type for all",
        ),
        ([{"x": [[1, 2]]}, {"x": [[1, 2, 3]]}], "[1]: x: has shape [1, 3]; only the first axis may differ"),
        ({"x": [1]}, ": is dict; return an iterable of examples or a dataset"),
    ],
)
def test_wrong_examples_are_named(make_custom: Make, tmp_path: Path, examples: Any, expected: str) -> None:
    data = make_custom("return_examples").data
    assert isinstance(data, CustomDataSettings)
    data.arguments["examples"] = examples
    assert write_splits(data, tmp_path) == f"data.read={MODULE}:return_examples, train{expected}"


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        (f"{MODULE}:fail", r"train\[1\]: raised ValueError: no more"),
        (f"{MODULE}:nothing", "has no function nothing"),
        (f"{MODULE}:MODULE", "has no function MODULE"),
        ("no_such_module_here:read", "no module no_such_module_here in the working directory or on the Python path"),
        ("read", "must be module:function, such as my_data:read"),
    ],
)
def test_a_function_that_fails_is_named(make_custom: Make, name: str, expected: str) -> None:
    with pytest.raises(UserError, match=expected) as raised:
        open_cache(make_custom("yield_dicts", f"data.read={name}"), None)
    assert str(raised.value).startswith(f"data.read={name}")
