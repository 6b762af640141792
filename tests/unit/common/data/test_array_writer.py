from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.data.array_writer import ArrayWriter

pieces = st.lists(st.lists(st.integers(0, 2**16 - 1), max_size=20), max_size=8)


@pytest.mark.slow
@given(pieces=pieces, dtype=st.sampled_from([np.uint16, np.uint32, np.int32, np.int64]))
def test_the_file_is_what_numpy_saves(tmp_path_factory: pytest.TempPathFactory, pieces: list, dtype: type) -> None:
    directory = tmp_path_factory.getbasetemp()
    with ArrayWriter(directory / "pieces.npy", dtype) as writer:
        for piece in pieces:
            writer.append(piece)
    whole: np.ndarray = np.array([value for piece in pieces for value in piece], dtype)
    np.save(directory / "whole.npy", whole)
    assert writer.length == len(whole)
    assert (directory / "pieces.npy").read_bytes() == (directory / "whole.npy").read_bytes()


@pytest.mark.slow
@given(sizes=st.lists(st.integers(0, 5), max_size=6), row=st.lists(st.integers(0, 3), max_size=3))
def test_rows_of_one_shape(tmp_path_factory: pytest.TempPathFactory, sizes: list[int], row: list[int]) -> None:
    directory = tmp_path_factory.getbasetemp()
    pieces = [np.full((size, *row), size, np.float64) for size in sizes]
    with ArrayWriter(directory / "rows.npy", np.float32, tuple(row)) as writer:
        for piece in pieces:
            writer.append(piece)
    whole = np.concatenate([np.zeros((0, *row)), *pieces]).astype(np.float32)
    np.save(directory / "whole.npy", whole)
    assert (directory / "rows.npy").read_bytes() == (directory / "whole.npy").read_bytes()


def test_the_header_has_room_for_any_length(tmp_path: Path) -> None:
    with ArrayWriter(tmp_path / "a.npy", np.uint16) as writer:
        for _ in range(11):
            writer.append(np.ones(100_000))
    assert np.load(tmp_path / "a.npy", mmap_mode="r").shape == (1_100_000,)


def test_after_an_error_the_file_is_not_completed(tmp_path: Path) -> None:
    with pytest.raises(KeyError), ArrayWriter(tmp_path / "a.npy", np.int32) as writer:
        writer.append([1, 2])
        raise KeyError
    assert len(np.load(tmp_path / "a.npy")) == 0
