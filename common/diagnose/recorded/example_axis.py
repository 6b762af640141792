"""Arrays of a batch whose first axis does not count the examples, such as the indices [tables, n] of embedding tables.

Readers of records swap them to [n, tables]. A following script receives them in the order of its own batches.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence

import numpy as np

Shape = Sequence[int]


def infer_count(inputs: Iterable[Shape], others: Iterable[Shape] = ()) -> int | None:
    """Return the number of examples: the length of an axis of an input that most arrays share; None without arrays.

    The first axes decide. If they do not, the second ones do.

    Args:
        inputs: The shapes of the inputs of the model, or of the arrays of a batch.
        others: The shapes of outputs and labels.
    """
    shapes = [shape for shape in inputs if shape]
    candidates = dict.fromkeys([*(shape[0] for shape in shapes), *(shape[1] for shape in shapes if len(shape) == 2)])
    all_shapes = [shape for shape in [*shapes, *others] if shape]
    first = Counter(shape[0] for shape in all_shapes)
    second = Counter(shape[1] for shape in all_shapes if len(shape) > 1)
    return max(candidates, key=lambda length: (first[length], second[length]), default=None)


def find_most_rows(arrays: Mapping[str, np.ndarray]) -> int:
    """Return the number of rows that the most arrays have, or the larger one of several such numbers."""
    lengths = Counter(len(array) for array in arrays.values() if array.ndim)
    return max(lengths, key=lambda length: (lengths[length], length), default=0)


def is_one_example(inputs: Collection[Shape], outputs: Collection[Shape]) -> bool:
    """Check whether a model receives one example without an axis of examples, such as the state of an agent.

    All arrays then have one axis, and the lengths of the outputs are not those of the inputs.

    Args:
        inputs: The shapes of the inputs.
        outputs: The shapes of the outputs.
    """
    if not inputs or not outputs or any(len(shape) != 1 for shape in [*inputs, *outputs]):
        return False
    return {shape[0] for shape in inputs}.isdisjoint(shape[0] for shape in outputs)


def has_examples_second(array: np.ndarray, count: int) -> bool:
    """Check whether an array has integers [k, n] for n examples, and k is neither 1 nor n."""
    is_table = array.ndim == 2 and array.dtype.kind in "iu"
    return is_table and len(array) not in (1, count) and array.shape[1] == count


def swap_examples(array: np.ndarray, count: int) -> np.ndarray:
    """Return [n, k] for integers [k, n], and other arrays unchanged."""
    return array.swapaxes(0, 1) if has_examples_second(array, count) else array


def numbers_examples(array: np.ndarray) -> bool:
    """Check whether an array has the number of its example in each row, such as the offsets of bags of one index."""
    if array.ndim > 2 or array.dtype.kind not in "iu" or len(array) < 2:
        return False
    return bool((array.reshape(len(array), -1) == np.arange(len(array))[:, None]).all())


def list_surplus_numbering(arrays: Mapping[str, np.ndarray], others: Mapping[str, np.ndarray]) -> list[str]:
    """Return the arrays that number the examples, if the other script has fewer integers of their shape."""

    def count_alike(candidates: Iterable[np.ndarray], array: np.ndarray) -> int:
        return sum(x.shape[1:] == array.shape[1:] and x.dtype.kind in "iu" for x in candidates)

    return [
        name
        for name, array in arrays.items()
        if numbers_examples(array) and count_alike(arrays.values(), array) > count_alike(others.values(), array)
    ]
