"""Tokens that only one script hides from its layers: Keras's Embedding(mask_zero=True) masks the id 0.

A is the reference record of a diagnosis, and B the record that is compared with it.
"""

from collections.abc import Callable, Sequence

import numpy as np

from common.diagnose.findings import Explanation
from common.diagnose.recorded.record_pair import RecordPair
from common.diagnose.recorded.recorded_side import RecordedSide

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


def _packs(array: np.ndarray, ids: np.ndarray) -> bool:
    """Check whether an array [n, tokens, ...] is 0 at the id 0, as after a packed sequence, and not everywhere."""
    return array.shape[:2] == ids.shape and not array[ids == 0].any() and bool(array.any())


def _find_masking(side: RecordedSide) -> str:
    """Return the path of a side's layer that masks the id 0; empty if it has none."""
    return next((layer["path"] for layer in side.layers if layer["attributes"].get(MASK_ZERO) is True), "")
