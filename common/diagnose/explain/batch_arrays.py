"""Mistakes in the preparation of data that explain why a batch array differs between runs A and B.

The mistake is searched in B, because A is the reference. The sentence of an explanation continues "the array of B ...".
A text is a row of token ids; 0 is padding.
"""

from collections.abc import Collection, Iterable, Mapping

import numpy as np

from common.diagnose.findings import Explanation

FITTED_ELEMENTS = 10_000  # number of elements from which a factor and a constant are computed
ROUNDING = 1e-6  # largest relative difference of a number and its rounding to float32
SMALLEST_OVERLAP = 2  # two cuts of one text must share at least this many values


def index_examples(batches: Iterable[Mapping[str, np.ndarray]]) -> dict[str, set[bytes]]:
    """Return the keys of all examples of these batches, by array name, for the `known_examples` of `explain_array`."""
    index: dict[str, set[bytes]] = {}
    for batch in batches:
        for name, array in batch.items():
            index.setdefault(name, set()).update(_example_key(example) for example in array.astype(np.float64))
    return index


def explain_array(a: np.ndarray, b: np.ndarray, known_examples: Collection[bytes] = ()) -> Explanation:
    """Return an explanation of the difference between A's and B's array.

    Args:
        a: A's array, float64, with an example in each row.
        b: B's array, of the same shape and type, not equal to A's.
        known_examples: Keys of A's examples in all compared steps.
    """
    differing = [row for row in range(len(a)) if not np.array_equal(a[row], b[row])]  # numbers of rows
    if not b.any():
        return Explanation("array_of_zeros", "is all zeros")
    if (b == 1).all() and np.isin(a, (0, 1)).all():
        return Explanation("array_of_ones", "is all ones: nothing is masked")
    if np.array_equal(b, 1 - a):
        return Explanation("inverted", "has 0 for each 1 of A, and 1 for each 0")
    for explain in (_explain_renumbering, _explain_swap, _explain_order_within_examples, _explain_scale, _explain_cut):
        if explanation := explain(a, b, differing):
            return explanation
    known_count = sum(_example_key(b[row]) in known_examples for row in differing)
    if a.ndim > 1 and known_count > len(differing) / 2:
        sentence = f"has other examples of A in {known_count} of {len(a)} rows"
        return Explanation("examples_swapped", sentence)
    sentence = (
        f"has other values in {len(differing)} of {len(a)} examples, first in example {differing[0]} of the batch"
    )
    return Explanation("other_values", sentence, confirmed=False)


def _explain_renumbering(a: np.ndarray, b: np.ndarray, differing: list[int]) -> Explanation | None:
    """Check whether each integer of A always becomes the same integer in B, as with another vocabulary."""
    if not (np.array_equal(a, np.round(a)) and np.array_equal(b, np.round(b))):
        return None
    pairs = set(zip(a.ravel().tolist(), b.ravel().tolist(), strict=True))
    numbers = {x for x, _ in pairs}
    changed_pairs = sorted((x, y) for x, y in pairs if x != y)
    changed_numbers = {x for x, _ in changed_pairs}
    is_function = len(pairs) == len(numbers)
    is_repeated = (a != b).sum() >= 2 * len(changed_numbers)  # a number that occurs once proves nothing
    if not is_function or len(changed_numbers) < 2 or not is_repeated:
        return None
    number, replacement = changed_pairs[0]
    sentence = (
        f"has other numbers for {len(changed_numbers)} of A's {len(numbers)}, such as {replacement:g} for {number:g}: "
        "another vocabulary, case or order of classes"
    )
    return Explanation("renumbered", sentence, confirmed=False)


def _explain_swap(a: np.ndarray, b: np.ndarray, differing: list[int]) -> Explanation | None:
    """Check whether B has the same rows in another order."""
    if sorted(map(bytes, a)) != sorted(map(bytes, b)):
        return None
    return Explanation("examples_swapped", f"has {len(differing)} examples of A in other places")


def _explain_order_within_examples(a: np.ndarray, b: np.ndarray, differing: list[int]) -> Explanation | None:
    """Check whether each row of B has the same values as A's row in another order."""
    rows_a, rows_b = (array.reshape(len(array), -1) for array in (a, b))
    is_along_axis = _have_equal_values(a, b)
    if not is_along_axis and (a.ndim < 3 or not _have_equal_values(rows_a, rows_b)):
        return None
    if a.ndim == 2 and all(_is_padded_at_other_end(a[row], b[row]) for row in differing):
        sentence = f"is padded at the other end than A's, in {len(differing)} of {len(a)} examples"
        return Explanation("padding_side", sentence)
    for axis in range(1, a.ndim):
        if np.allclose(np.flip(a, axis), b, ROUNDING, 0):
            return Explanation("reversed", f"is A's reversed along axis {axis}")
    reason = "" if is_along_axis else ", as after a reshape in place of a transpose"
    return Explanation("order_of_values", f"has the same values in another order within the examples{reason}")


def _have_equal_values(a: np.ndarray, b: np.ndarray) -> bool:
    """Check whether two arrays have the same values along the axis 1, in any order. One may be rounded to float32."""
    if a.ndim == 1 or any(not np.allclose(extreme(a, 1), extreme(b, 1), ROUNDING, 0) for extreme in (np.min, np.max)):
        return False  # most arrays; to sort them takes long
    return np.allclose(np.sort(a, axis=1), np.sort(b, axis=1), ROUNDING, 0)


def _is_padded_at_other_end(a: np.ndarray, b: np.ndarray) -> bool:
    zeros_at_end, zeros_at_start = (len(a) - len(np.trim_zeros(a, end)) for end in ("b", "f"))
    return np.array_equal(np.roll(a, zeros_at_end or -zeros_at_start), b)


def _explain_scale(a: np.ndarray, b: np.ndarray, differing: list[int]) -> Explanation | None:
    """Check whether B is A times a factor, plus a constant."""
    if len(differing) < len(a) or a.size < 3 or not np.ptp(a):
        return None
    chosen = np.linspace(0, a.size - 1, min(a.size, FITTED_ELEMENTS)).astype(int)
    if not np.ptp(a.flat[chosen]):
        return None
    factor, shift = np.polyfit(a.flat[chosen], b.flat[chosen], 1)
    if not np.allclose(a * factor + shift, b, rtol=1e-5, atol=1e-6 * float(np.abs(b).max())):
        return None
    sentence = f"is {factor:.6g} times A's, plus {shift:.6g}: the inputs are prepared in another way"
    return Explanation("scaled_inputs", sentence)


def _explain_cut(a: np.ndarray, b: np.ndarray, differing: list[int]) -> Explanation | None:
    """Check whether only texts without padding differ, because B cuts off the other end of them."""
    if a.ndim != 2 or len(differing) == len(a):
        return None
    if any((a[row] == 0).any() or (b[row] == 0).any() or not _overlaps(a[row], b[row]) for row in differing):
        return None
    sentence = f"differs in the {len(differing)} examples that fill the whole length: they are cut off at the other end"
    return Explanation("truncation_side", sentence, confirmed=False)


def _overlaps(a: np.ndarray, b: np.ndarray) -> bool:
    """Check whether one text ends as the other begins, apart from one special token at each end."""
    for special_tokens in (0, 1):
        x, y = (text[special_tokens : len(text) - special_tokens] for text in (a, b))
        for shift in range(1, len(x) - SMALLEST_OVERLAP + 1):
            if np.array_equal(x[shift:], y[:-shift]) or np.array_equal(y[shift:], x[:-shift]):
                return True
    return False


def _example_key(example: np.ndarray) -> bytes:
    """Return an example's bytes as its key, without the zeros at its end, which padding adds."""
    flat = example.ravel()
    return bytes(flat[: int(flat.nonzero()[0].max(initial=-1)) + 1])
