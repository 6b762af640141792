"""The examples of gathered arrays, one by one. Ragged arrays are padded when they are gathered, and cut here."""

import numpy as np

from common.data.arrays.array_split import ArraySplit
from common.data.batches import Arrays, Split
from common.data.transforms.transform import Example


def gather_examples(source: Split, ids: np.ndarray, batch: np.ndarray) -> tuple[Arrays, list[Example]]:
    """Gather examples.

    Args:
        source: The examples, without transforms.
        ids: The ids of the examples.
        batch: The ids to whose longest example ragged arrays are padded.

    Returns:
        The arrays of `Split.gather`, and views of the rows in them, without padding and without masks.
    """
    arrays = source.gather(ids, batch)
    lengths = _count_lengths(source, ids)
    names = [name for name in arrays if name.removesuffix("_mask") not in lengths or name in lengths]
    examples = [
        {name: arrays[name][row, : lengths[name][row]] if name in lengths else arrays[name][row, ...] for name in names}
        for row in range(len(ids))
    ]
    return arrays, examples


def _count_lengths(source: Split, ids: np.ndarray) -> dict[str, np.ndarray]:
    """Return the lengths of the examples in each ragged array, int64 [n]."""
    if not isinstance(source, ArraySplit):
        return {}
    columns = {**source.inputs, "labels": source.label}
    return {name: column.lengths(ids) for name, column in columns.items() if column.offsets is not None}
