"""IDX files as tests need them."""

import gzip
from pathlib import Path

import numpy as np


def encode(array: np.ndarray) -> bytes:
    """An array of bytes as the content of an IDX file."""
    return bytes([0, 0, 8, array.ndim]) + np.array(array.shape, ">u4").tobytes() + array.tobytes()


def write_idx(folder: Path, prefix: str, images: np.ndarray, labels: np.ndarray, zipped: bool) -> tuple[Path, Path]:
    """Write images and labels and return the paths of the two files."""
    paths = []
    for kind, array in (("images", images), ("labels", labels)):
        path = folder / f"{prefix}-{kind}-idx{array.ndim}-ubyte{'.gz' if zipped else ''}"
        path.write_bytes(gzip.compress(encode(array)) if zipped else encode(array))
        paths.append(path)
    return paths[0], paths[1]
