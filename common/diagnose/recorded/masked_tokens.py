"""Tokens that only one script hides from its layers: Keras's Embedding(mask_zero=True) masks the id 0.

A is the reference record of a diagnosis, and B the record that is compared with it.
"""

from collections.abc import Callable, Sequence

import numpy as np

from common.diagnose.findings import Explanation
from common.diagnose.recorded.record_pair import RecordPair
from common.diagnose.recorded.recorded_side import RecordedSide

SMALLEST_SHARE = 0.25  # of the numbers of examples without padding: a half is one direction of a recurrent layer
MASK_ZERO = "mask_zero"  # an attribute of Keras's Embedding, and the name of the cause


def explain_mask_zero(
    pair: RecordPair,
    place: str,
    arrays: tuple[np.ndarray, np.ndarray],
    tokens: Sequence[np.ndarray],
    are_close: Callable[[np.ndarray, np.ndarray], bool],
) -> Explanation | None:
    """Explain arrays that differ only in the examples with the id 0, if only one model masks this id; else None.

    Args:
        pair: The records.
        place: Where the arrays are, in reports.
        arrays: A's array and B's, with an example in each row.
        tokens: Arrays [n, tokens] of integers that the model receives.
        are_close: Checks whether two arrays are equal up to rounding.
    """
    embeddings = [_find_masking(side) for side in pair.sides]
    if all(embeddings) or not any(embeddings) or arrays[0].shape != arrays[1].shape:
        return None
    name, other, embedding = ("A", "B", embeddings[0]) if embeddings[0] else ("B", "A", embeddings[1])
    array_of_masking, array_of_other = arrays if embeddings[0] else arrays[::-1]
    for ids in tokens:
        is_masked = (ids == 0).any(1)
        if len(ids) != len(arrays[0]) or not is_masked.any():
            continue
        without = [array[~is_masked] for array in arrays]
        if not is_masked.all() and not are_close(*without):
            continue
        if _packs(array_of_other, ids) and not _packs(array_of_masking, ids):
            sentence = f"{place}: {other} leaves out the tokens with the id 0, and {name} does not, though {embedding} "
            sentence += "has mask_zero=True: code between layers, such as a sum, may lose the mask; "
        else:
            sentence = f"{place}: {name} hides the id 0, because {embedding} has mask_zero=True, and {other} does not: "
        sentence += "the examples without this id are equal" if not is_masked.all() else "all examples have this id"
        return Explanation(MASK_ZERO, sentence, side=name.lower(), confirmed=not is_masked.all())
    return None


def add_padded_examples(
    explanation: Explanation,
    place: str,
    arrays: tuple[np.ndarray, np.ndarray],
    tokens: Sequence[np.ndarray],
    are_close: Callable[[np.ndarray, np.ndarray], bool],
) -> Explanation:
    """Add to an explanation that the examples without padding are equal, if they are, in a part of their numbers.

    Args:
        explanation: The explanation of arrays that differ.
        place: Where the arrays are, in reports.
        arrays: A's array and B's, with an example in each row.
        tokens: Arrays [n, tokens] of integers that the model receives; 0 is padding.
        are_close: Checks whether two arrays are equal up to rounding.
    """
    if arrays[0].shape != arrays[1].shape or not (arrays[0].ndim and arrays[0].size):
        return explanation
    a, b = (array.reshape(len(array), -1) for array in arrays)
    for ids in tokens:
        is_padded = (ids == 0).any(1)
        if len(ids) != len(a) or is_padded.all() or not is_padded.any():
            continue
        columns = zip(a[~is_padded].T, b[~is_padded].T, strict=True)
        is_equal = np.array([bool(x.any()) and are_close(x, y) for x, y in columns])
        rows = zip(a[is_padded][:, is_equal], b[is_padded][:, is_equal], strict=True)
        differing, count = sum(not are_close(x, y) for x, y in rows), int(is_padded.sum())
        if is_equal.mean() >= SMALLEST_SHARE and 2 * differing > count:
            part = "" if is_equal.all() else f" in {is_equal.sum()} of {is_equal.size} numbers"
            sentence = (
                f"{place}: the examples without padding are equal{part}, and {differing} of {count} with padding "
                "differ: compare how the scripts mask the padding, and where they take the last token; "
            )
            sentence += explanation.sentence.removeprefix(f"{place}: ")
            return Explanation("padded_examples", sentence, side=explanation.side)
    return explanation


def _packs(array: np.ndarray, ids: np.ndarray) -> bool:
    """Check whether an array [n, tokens, ...] is 0 at the id 0, as after a packed sequence, and not everywhere."""
    return array.shape[:2] == ids.shape and not array[ids == 0].any() and bool(array.any())


def _find_masking(side: RecordedSide) -> str:
    """Return the path of a side's layer that masks the id 0; empty if it has none."""
    return next((layer["path"] for layer in side.layers if layer["attributes"].get(MASK_ZERO) is True), "")
