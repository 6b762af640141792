"""Differences between the indices that the embeddings of A and of B receive, such as token ids and positions.

A is the reference run of a diagnosis, and B the run that is compared with it.
"""

import numpy as np

from common.diagnose.findings import Explanation


def explain_indices(title: str, a: np.ndarray, b: np.ndarray) -> Explanation | None:
    """Explain the difference between B's and A's indices. Return None for equal indices, or if they cannot be compared.

    Args:
        title: Title of the embedding in reports.
        a: Indices of A. One side may lack the axis of the examples if all examples have the same indices.
        b: Indices of B.
    """
    if a.ndim == b.ndim == 2 and np.array_equal(a.T, b):
        return None  # one model is time-first
    if a.size == b.size:
        a = a.reshape(b.shape)
    try:
        a, b = np.broadcast_arrays(a, b)
    except ValueError:
        return None
    if np.array_equal(a, b):
        return None
    axis = next((axis for axis in range(a.ndim) if np.array_equal(np.flip(a, axis), b)), None)
    if axis is not None:
        return Explanation("reversed_axis", f"{title}: its indices are A's, reversed along axis {axis}")
    shifts = np.unique(b.astype(np.int64) - a.astype(np.int64))
    if len(shifts) == 1:
        return Explanation("shifted_indices", f"{title}: its indices are A's {shifts[0]:+d}")
    place = tuple(index[0] for index in np.nonzero(a != b))
    sentence = (
        f"{title}: its indices differ in {(a != b).sum()} of {a.size} places; the first is {a[place]} in "
        f"A and {b[place]} in B"
    )
    return Explanation("other_indices", sentence)
