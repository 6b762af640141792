"""Arrays of a batch in the layout of the other side's: channels, images, classes and one-hot codes.

A is the reference record of a diagnosis, and B the record that is compared with it.
"""

from collections.abc import Sequence

import numpy as np

from common.diagnose.explain.loss_formulas import encode_one_hot
from common.map.array_differences import move_channels_last


def convert_to_layout(b: np.ndarray, a: np.ndarray) -> np.ndarray:
    """Return B's array in the layout of A's.

    Convert channels that are last or second, flat images of one channel, and labels that are numbers, one-hot or the
    levels of an ordinal regression.
    """
    if b.shape[1:] == a.shape[1:]:
        return b
    if (codes := _convert_codes(b, a)) is not None:
        return codes
    for candidate in (move_channels_last(b), np.moveaxis(b, -1, 1)) if b.ndim >= 3 else ():
        if candidate.shape[1:] == a.shape[1:]:
            return candidate
    if (converted := _convert_other_size(b, a)) is not None:
        return converted
    if a.ndim == 1 and b.ndim == 2:
        if b.shape[1] == 1:
            return b[:, 0]
        return b.argmax(1) if _are_classes(b) else b
    if a.ndim == 2 and b.ndim == 1:
        return b[:, None] if a.shape[1] == 1 else encode_one_hot(b, a.shape[1])
    return b.reshape(len(b), *a.shape[1:]) if _are_flattened(b.shape[1:], a.shape[1:]) else b


def _convert_other_size(b: np.ndarray, a: np.ndarray) -> np.ndarray | None:
    """Return images, or sequences, in the layout of others of another size; None if they have it, or are no floats.

    Channels that are last or second are converted, and a single channel that only one side has as an axis.
    """
    if a.dtype.kind != "f" or b.dtype.kind != "f":
        return None
    if (b.ndim, a.ndim) == (3, 2) and b.shape[-1] == 1:
        return b[..., 0]
    if (b.ndim, a.ndim) == (2, 3) and a.shape[-1] == 1:
        return b[..., None]
    if a.ndim == b.ndim == 4:
        is_first, is_last = b.shape[1] == a.shape[-1], b.shape[-1] == a.shape[1]
        if b.shape[1] == b.shape[-1] or not (is_first or is_last):
            return None
        if is_first and is_last:  # a height may be a width: there are fewer channels
            is_first = b.shape[1] < b.shape[-1]
        return np.moveaxis(b, 1, -1) if is_first else np.moveaxis(b, -1, 1)
    if (b.ndim, a.ndim) == (3, 4) and (a.shape[-1] == 1 or a.shape[1] == 1):
        return b[..., None] if a.shape[-1] == 1 else b[:, None]
    if (b.ndim, a.ndim) == (4, 3) and (b.shape[-1] == 1 or b.shape[1] == 1):
        return b[..., 0] if b.shape[-1] == 1 else b[:, 0]
    return None


def _convert_codes(b: np.ndarray, a: np.ndarray) -> np.ndarray | None:
    """Return classes as one-hot codes, or codes as classes, if B's array has one of them and A's the other; else None.

    The classes may be those of tokens, or be in columns. The codes may be the levels of an ordinal regression.
    """
    if (a.ndim, b.ndim) == (1, 2) and _are_levels(b):
        return b.sum(1).astype(a.dtype)
    if (a.ndim, b.ndim) == (2, 1) and _are_levels(a):
        return (np.arange(a.shape[1]) < b[:, None]).astype(a.dtype)
    if may_be_class_column(b, a) and are_one_hot(a):
        return encode_one_hot(b[..., 0], a.shape[-1]).astype(a.dtype)
    if may_be_class_column(a, b) and are_one_hot(b):
        return b.argmax(-1)[..., None]
    if a.ndim >= 2 and b.shape[1:-1] == a.shape[1:] and are_one_hot(b) and a.dtype.kind in "iu":
        return b.argmax(-1)
    if b.ndim >= 2 and a.shape[1:-1] == b.shape[1:] and are_one_hot(a) and b.dtype.kind in "iu":
        return encode_one_hot(b, a.shape[-1]).astype(a.dtype)
    return None


def may_be_class_column(array: np.ndarray, codes: np.ndarray) -> bool:
    """Check whether an array [..., 1] of integers, such as an index of `gather`, may have the classes of codes."""
    is_column = array.ndim > 1 and array.shape[-1] == 1 and array.dtype.kind in "iu"
    return is_column and codes.shape[1:-1] == array.shape[1:-1] and codes.ndim == array.ndim and codes.shape[-1] > 1


def are_one_hot(array: np.ndarray) -> bool:
    """Check whether the last axis has a single 1 among zeros, as in codes of classes."""
    return array.ndim > 1 and bool(np.isin(array, (0, 1)).all() and (array.sum(-1) == 1).all())


def _are_levels(labels: np.ndarray) -> bool:
    """Check whether each row has ones before zeros, as many as its class says in an ordinal regression."""
    are_binary = np.isin(labels, (0, 1)).all() and not (labels.sum(1) == 1).all()
    return bool(are_binary and labels.shape[1] > 1 and (np.diff(labels.astype(np.int64), axis=1) <= 0).all())


def _are_classes(labels: np.ndarray) -> bool:
    """Check whether each row [classes] stands for one class: one-hot, also if it is smoothed. Mixed labels do not."""
    if labels.shape[1] < 2:
        return False
    ordered = np.sort(labels, 1)
    has_one_class = (ordered[:, 0] == ordered[:, -2]).all() and (ordered[:, -2] < ordered[:, -1]).all()
    return bool(has_one_class and np.allclose(ordered, ordered[:1]))


def _are_flattened(a: Sequence[int], b: Sequence[int]) -> bool:
    """Check whether examples of two shapes differ by axes of one element, or by the flattening of one channel."""
    lengths = [[size for size in shape if size != 1] for shape in (a, b)]
    is_flat = min(map(len, lengths)) == 1 and max(map(len, lengths)) == 2 and np.prod(lengths[0]) == np.prod(lengths[1])
    return lengths[0] == lengths[1] or is_flat
