"""The examples of gathered arrays, one by one. Ragged arrays are padded when they are gathered, and cut here."""

from collections.abc import Mapping
from typing import Protocol, runtime_checkable

import numpy as np

from common.data.batches import Arrays, Split
from common.data.splits.multi_output_split import MultiOutputSplit
from common.data.transforms.transform import Example


@runtime_checkable
class RaggedSplit(Protocol):
    """A split that may have ragged arrays."""

    def array_lengths(self, ids: np.ndarray) -> Mapping[str, np.ndarray]:
        """Return the length of each example in each ragged array by name, int64 [n]."""


def gather_examples(source: Split, ids: np.ndarray, batch: np.ndarray) -> tuple[Arrays, list[Example]]:
    """Gather examples.

    Args:
        source: The examples, without transforms.
        ids: The ids of the examples.
        batch: The ids to whose longest example ragged arrays are padded.

    Returns:
        The arrays of `Split.gather`, and views of the rows in them, without padding and without masks. If there are
        several outputs, each array of labels has its own name, and there is no array `labels`.
    """
    gather = source.gather_named if isinstance(source, MultiOutputSplit) else source.gather
    arrays = gather(ids, batch)
    lengths: Mapping[str, np.ndarray] = source.array_lengths(ids) if isinstance(source, RaggedSplit) else {}
    masks = {f"{name}_mask" for name in lengths if name != "labels"}
    names = [name for name in arrays if name not in masks]
    examples = [
        {name: arrays[name][row, : lengths[name][row]] if name in lengths else arrays[name][row, ...] for name in names}
        for row in range(len(ids))
    ]
    return arrays, examples
