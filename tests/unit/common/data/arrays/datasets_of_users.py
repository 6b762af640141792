"""Functions as users name them in `data.read`."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

Examples = Iterator[dict[str, Any]]


def make_arrays(split: str) -> dict[str, np.ndarray]:
    stream = np.random.default_rng(len(split))
    count = 9 if split == "train" else 4
    return {"x": stream.standard_normal((count, 3)).astype(np.float32), "labels": np.arange(count) % 3}


def yield_dicts(split: str) -> Examples:
    arrays = make_arrays(split)
    yield from ({name: array[row] for name, array in arrays.items()} for row in range(len(arrays["labels"])))


class MapStyle:
    """A dataset that knows no end but its length, as many of PyTorch do."""

    def __init__(self, split: str) -> None:
        self.arrays = make_arrays(split)

    def __len__(self) -> int:
        return len(self.arrays["labels"])

    def __getitem__(self, index: int) -> tuple[list[float], int]:
        index %= len(self)
        return self.arrays["x"][index].tolist(), int(self.arrays["labels"][index])


class IterableWithLength:
    """A dataset like PyTorch's IterableDataset, which inherits an item access that it does not have."""

    def __init__(self, split: str) -> None:
        self.split = split

    def __len__(self) -> int:
        return len(make_arrays(self.split)["labels"])

    def __getitem__(self, index: int) -> None:
        raise NotImplementedError

    def __iter__(self) -> Examples:
        return yield_dicts(self.split)


class LikeTensorFlow:
    def __init__(self, split: str) -> None:
        self.split = split

    def as_numpy_iterator(self) -> Examples:
        return yield_dicts(self.split)


def yield_ragged(split: str) -> Examples:
    yield from ({"words": np.arange(length), "labels": length % 2} for length in (3, 1, 2))


def return_examples(split: str, examples: Sequence[object]) -> Sequence[object]:
    return examples


def fail(split: str) -> Examples:
    yield {"x": 1.0, "labels": 0}
    raise ValueError("no more")
