"""The ids that a layer receives, such as the tokens of an embedding, if its counterpart receives others."""

from collections.abc import Mapping

import numpy as np

from common.diagnose.findings import Explanation


def explain_ids(
    title: str, a: np.ndarray | None, b: np.ndarray | None, batch: Mapping[str, np.ndarray]
) -> Explanation | None:
    """Explain outputs that differ because the layer receives other ids in B; None if it receives the same.

    Args:
        title: Title of the layer in reports.
        a: The ids in A.
        b: The ids in B.
        batch: The arrays of the batch by name.
    """
    if all(x is None or x.dtype.kind == "f" for x in (a, b)):  # images, for example, may have whole numbers
        return None
    a, b = _to_ids(a), _to_ids(b)
    if a is None or b is None or not (a.ndim and a.size and b.ndim and b.size):
        return None
    if len(a) != len(b) or a.size != b.size or np.array_equal(a.reshape(len(a), -1), b.reshape(len(b), -1)):
        return None
    words = [_describe_ids(array, batch) for array in (a, b)]
    sentence = f"{title} receives other ids: {words[0]} in A and {words[1]} in B"
    return Explanation("code_between_layers", sentence, confirmed=False)


def _to_ids(array: np.ndarray | None) -> np.ndarray | None:
    """Return an array as integers, also if a layer receives them as floating-point numbers; None if they are none."""
    if array is None or array.dtype.kind not in "iuf" or not np.isfinite(array).all():
        return None
    return array.astype(np.int64) if np.array_equal(array, np.round(array)) else None


def _describe_ids(ids: np.ndarray, batch: Mapping[str, np.ndarray]) -> str:
    """Return words for ids: one number, an array of the batch, or a column of it."""
    if (ids == ids.flat[0]).all():
        return f"{ids.flat[0]} for all examples"
    columns = ids.reshape(len(ids), -1)
    for name, array in batch.items():
        if array.dtype.kind not in "iu" or array.ndim != 2 or len(array) != len(ids):
            continue
        for start in range(array.shape[1] - columns.shape[1] + 1):
            if np.array_equal(array[:, start : start + columns.shape[1]], columns):
                is_whole = array.shape[1] == columns.shape[1]
                return f"the batch's {name}" + ("" if is_whole else f"[:, {_write_range(start, columns.shape[1])}]")
    return "others"


def _write_range(start: int, count: int) -> str:
    """Return the index of columns as a script writes it."""
    return str(start) if count == 1 else f"{start}:{start + count}"
