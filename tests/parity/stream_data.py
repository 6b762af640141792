"""The patients of examples/tabular as a stream: a function that yields them from a training example on."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np


def read(split: str, directory: str, start: int = 0) -> Iterator[dict[str, np.ndarray]]:
    """Yield the examples of a split from number `start` on. directory: it has train.npz and validation.npz."""
    with np.load(Path(directory) / f"{split}.npz") as file:
        arrays = {name: file[name] for name in file.files}
    for number in range(start, len(arrays["labels"])):
        yield {name: array[number] for name, array in arrays.items()}
