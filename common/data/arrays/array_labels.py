"""The labels of named arrays: a class or numbers for each example, or a label for each token."""

import numpy as np
from numpy.typing import DTypeLike

from common.config.data import NamedArraysSettings
from common.data.arrays.array_checks import format_index, iterate_blocks
from common.data.arrays.array_files import NamedArrays
from common.errors import UserError

MAX_INFERRED_CLASSES = 1 << 20  # no classification has more, so a larger label is an error
LARGEST_LABEL = np.iinfo(np.int32).max


def select_label_dtype(name: str, splits: tuple[NamedArrays, NamedArrays]) -> DTypeLike:
    """Return the type in which labels are stored: float32 or int32.

    Several bools for each example are stored as float32: each says whether the example has a property. A single bool
    is a class.

    Raises:
        UserError: If labels of tokens are not integers, or an integer does not fit 32 bits.
    """
    column = splits[0].columns[name]
    kind = column.values.dtype.kind
    if column.offsets is not None and kind not in "iu":
        raise UserError(
            f"{splits[0].location}: {name} is ragged, but not of integers; only labels of tokens may be ragged"
        )
    if kind == "f" or (kind == "b" and column.shape != ()):
        return np.float32
    for split in splits:
        for start, block in iterate_blocks(split.columns[name].values):
            if len(wrong := np.argwhere((block > LARGEST_LABEL) | (block < -LARGEST_LABEL))):
                index = format_index(start, wrong[0])
                raise UserError(
                    f"{split.location}: {name}[{index}] is {block[tuple(wrong[0])]}; labels must fit 32 bits"
                )
    return np.int32


def list_class_names(data: NamedArraysSettings, splits: tuple[NamedArrays, NamedArrays], largest: int) -> list[str]:
    """Return the names of the classes, or an empty list if the labels are not one integer for each example.

    Args:
        data: Settings of the arrays.
        splits: Both splits.
        largest: Largest label of both splits.

    Raises:
        UserError: If a label is not a class.
    """
    column = splits[0].columns[data.label]
    if column.shape != () or column.values.dtype.kind == "f":
        if data.classes is not None:
            raise UserError(f"data.classes: {data.label} is not one integer for each example; set it to null")
        return []
    count = len(data.classes) if data.classes else min(max(largest, 0) + 1, MAX_INFERRED_CLASSES)
    for split in splits:
        for start, block in iterate_blocks(split.columns[data.label].values):
            if len(wrong := np.flatnonzero((block < 0) | (block >= count))):
                label, place = block[wrong[0]], f"{split.location}: {data.label}[{start + wrong[0]}]"
                raise UserError(
                    f"{place} is {label}, which is not one of the {count} classes, numbered from 0; correct it"
                )
    return data.classes or [str(label) for label in range(count)]
