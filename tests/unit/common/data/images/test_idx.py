"""IDX files, good and bad."""

import gzip
import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from common.config.data import IdxSettings
from common.data.identity import identify
from common.data.images.idx import find_idx_files, read_idx
from common.errors import UserError
from tests.unit.common.data.images.idx_samples import encode, write_idx

LABELS = np.array([1, 0, 1], np.uint8)
IMAGES = np.arange(3 * 4 * 5, dtype=np.uint8).reshape(3, 4, 5)


@pytest.mark.slow
@given(images=arrays.arrays(np.uint8, st.tuples(*[st.integers(1, 6)] * 3)), zipped=st.booleans())
def test_round_trip(tmp_path_factory: pytest.TempPathFactory, images: np.ndarray, zipped: bool) -> None:
    labels = np.arange(len(images), dtype=np.uint8)
    paths = write_idx(tmp_path_factory.mktemp("idx"), "train", images, labels, zipped)
    read = read_idx(*paths)
    assert np.array_equal(read[0], images) and np.array_equal(read[1], labels)


def test_files_are_found(tmp_path: Path) -> None:
    zipped = write_idx(tmp_path, "train", IMAGES, LABELS, zipped=True)
    test = write_idx(tmp_path, "t10k", IMAGES, LABELS, zipped=True)
    assert find_idx_files(str(tmp_path)) == [zipped, test]
    assert find_idx_files(str(tmp_path)) != [write_idx(tmp_path, "train", IMAGES, LABELS, zipped=False), test]
    assert [path.suffix for path in find_idx_files(str(tmp_path))[0]] == ["", ""], "an unpacked file is preferred"


def error_of(images: Path, labels: Path) -> str:
    with pytest.raises(UserError) as raised:
        read_idx(images, labels)
    assert "\n" not in str(raised.value)
    return str(raised.value)


@pytest.mark.parametrize("zipped", [False, True])
@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"", "begins with nothing, not 00000803: no IDX file of bytes in 3 dimensions"),
        (b"PK\3\4", "begins with 504b0304, not 00000803: no IDX file"),
        (encode(LABELS), "begins with 00000801, not 00000803: no IDX file of bytes in 3 dimensions"),
        (b"\0\0\x0d\3" + encode(IMAGES)[4:], "begins with 00000d03, not 00000803"),
        (encode(IMAGES)[:9], "cut off after 9 bytes; fetch it again"),
        (encode(IMAGES)[:-1], "cut off after 75 bytes; fetch it again"),
        (encode(IMAGES) + b"x", "has 61 bytes of values, but its header says 3 x 4 x 5"),
        (encode(IMAGES[:2]), "3 labels for the 2 images of "),
        (encode(IMAGES[:, :0]), "no images"),
    ],
)
def test_a_bad_file(tmp_path: Path, content: bytes, expected: str, zipped: bool) -> None:
    images, labels = write_idx(tmp_path, "train", IMAGES, LABELS, zipped)
    images.write_bytes(gzip.compress(content) if zipped else content)
    text = error_of(images, labels)
    assert text.startswith((f"{images}: ", f"{labels}: "))
    assert expected in text


@pytest.mark.parametrize(
    ("damage", "expected"),
    [
        (lambda content: encode(IMAGES), "not gzip (Not a gzipped file"),
        (lambda content: content[: len(content) // 2], "cannot be read: Compressed file ended before"),
        (lambda content: content[:12] + bytes([content[12] ^ 255]) + content[13:], ": "),
    ],
)
def test_bad_gzip(tmp_path: Path, damage: object, expected: str) -> None:
    images, labels = write_idx(tmp_path, "train", IMAGES, LABELS, zipped=True)
    assert callable(damage)
    images.write_bytes(damage(images.read_bytes()))
    assert error_of(images, labels).startswith(f"{images}: ")
    assert expected in error_of(images, labels)


def test_what_is_not_there(tmp_path: Path) -> None:
    missing = tmp_path / "missing"
    with pytest.raises(UserError, match=f"^data.directory: no such directory: {missing}$"):
        find_idx_files(str(missing))
    missing.touch()
    with pytest.raises(UserError, match=f"^data.directory: not a directory: {missing}$"):
        find_idx_files(str(missing))
    write_idx(tmp_path, "train", IMAGES, LABELS, zipped=True)
    with pytest.raises(
        UserError, match=r"^data.directory: .* has no t10k-images\* \(an IDX file, or its .gz\); add it$"
    ):
        find_idx_files(str(tmp_path))


def test_identity(tmp_path: Path) -> None:
    for prefix in ("train", "t10k"):
        write_idx(tmp_path, prefix, IMAGES, LABELS, zipped=False)
    data = IdxSettings("idx", False, directory=str(tmp_path))
    first = identify(data)
    assert first == identify(IdxSettings("idx", True, directory=f"{tmp_path}/../{tmp_path.name}"))
    os.utime(tmp_path / "train-labels-idx1-ubyte", ns=(1, 1))
    assert first != identify(data)
