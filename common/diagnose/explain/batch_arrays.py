"""What makes an array of B's batch of A's: the mistakes of preparing data."""

from collections.abc import Collection, Iterable, Mapping

import numpy as np

OVERLAP = 2  # values that two cuts of one text share at least


def contents(batches: Iterable[Mapping[str, np.ndarray]]) -> dict[str, set[bytes]]:
    """The examples of some batches by the names of their arrays, in a form that `explain_array` can look up."""
    found: dict[str, set[bytes]] = {}
    for batch in batches:
        for name, array in batch.items():
            found.setdefault(name, set()).update(_content(each) for each in array.astype(np.float64))
    return found


def explain_array(a: np.ndarray, b: np.ndarray, known: Collection[bytes] = ()) -> tuple[str, str]:
    """The cause, and what B's array is, in words.

    a, b: float64 of one shape, an example in each row, and not equal. known: the contents of A's examples in all steps
    that are compared.
    """
    rows = [each for each in range(len(a)) if not np.array_equal(a[each], b[each])]
    if not b.any():
        return "array_of_zeros", "is all zeros"
    if (b == 1).all() and np.isin(a, (0, 1)).all():
        return "array_of_ones", "is all ones: nothing is masked"
    if np.array_equal(b, 1 - a):
        return "inverted", "has 0 where A has 1, and 1 where A has 0"
    for explain in (_renumbered, _swapped, _moved_within_examples, _scaled, _truncated):
        if found := explain(a, b, rows):
            return found
    found_again = sum(_content(b[row]) in known for row in rows)
    if a.ndim > 1 and found_again > len(rows) / 2:
        return "examples_swapped", f"has A's values of other examples in {found_again} of {len(a)} places"
    words = f"has other values in {len(rows)} of {len(a)} examples, first in example {rows[0]} of the batch"
    return "other_values", words


def _swapped(a: np.ndarray, b: np.ndarray, rows: list[int]) -> tuple[str, str] | None:
    if sorted(map(bytes, a)) != sorted(map(bytes, b)):
        return None
    return "examples_swapped", f"has {len(rows)} examples of A in other places"


def _moved_within_examples(a: np.ndarray, b: np.ndarray, rows: list[int]) -> tuple[str, str] | None:
    if a.ndim == 1 or not np.array_equal(np.sort(a, axis=1), np.sort(b, axis=1)):
        return None
    if a.ndim == 2 and all(_padded_at_the_other_end(a[row], b[row]) for row in rows):
        return "padding_side", f"is padded at the other end than A's, in {len(rows)} of {len(a)} examples"
    for axis in range(1, a.ndim):
        if np.array_equal(np.flip(a, axis), b):
            return "reversed", f"is A's reversed along axis {axis}"
    return "order_of_values", "has the same values in another order within the examples"


def _padded_at_the_other_end(a: np.ndarray, b: np.ndarray) -> bool:
    last, first = (len(a) - len(np.trim_zeros(a, end)) for end in ("b", "f"))
    return np.array_equal(np.roll(a, last or -first), b)


def _scaled(a: np.ndarray, b: np.ndarray, rows: list[int]) -> tuple[str, str] | None:
    if len(rows) < len(a) or a.size < 3:
        return None
    factor, shift = np.polyfit(a.ravel(), b.ravel(), 1)
    if not np.allclose(a * factor + shift, b, rtol=1e-5, atol=1e-6 * float(np.abs(b).max())):
        return None
    words = f"is {factor:.6g} times A's, plus {shift:.6g}: the inputs are prepared in another way"
    return "scaled_inputs", words


def _renumbered(a: np.ndarray, b: np.ndarray, rows: list[int]) -> tuple[str, str] | None:
    """Whether each integer of A always stands for one integer in B, as by another vocabulary or order of classes."""
    changed = a != b
    if not (np.array_equal(a, np.round(a)) and np.array_equal(b, np.round(b))):
        return None
    pairs = {(x, y) for x, y in zip(a.ravel().tolist(), b.ravel().tolist(), strict=True)}
    numbers = {x for x, y in pairs if x != y}
    if len(pairs) != len({x for x, _ in pairs}) or len(numbers) < 2 or changed.sum() < 2 * len(numbers):
        return None  # a number for each place proves nothing
    first = sorted((x, y) for x, y in pairs if x != y)[0]
    words = f"has other numbers for {len(numbers)} of A's {len({x for x, _ in pairs})}, such as {first[1]:g} for"
    return "renumbered", f"{words} {first[0]:g}: another vocabulary, case or order of classes"


def _truncated(a: np.ndarray, b: np.ndarray, rows: list[int]) -> tuple[str, str] | None:
    """Whether only examples differ that fill the whole length, and are cut off at the other end."""
    if a.ndim != 2 or any((a[row] == 0).any() or (b[row] == 0).any() for row in rows):
        return None
    if len(rows) == len(a) or not all(_overlap(a[row], b[row]) for row in rows):
        return None
    words = f"differs in the {len(rows)} examples that fill the whole length: they are cut off at the other end"
    return "truncation_side", words


def _overlap(a: np.ndarray, b: np.ndarray) -> bool:
    """Whether one ends as the other begins, apart from a special token at each end."""
    for kept in (0, 1):
        x, y = (each[kept : len(each) - kept] for each in (a, b))
        for shift in range(1, len(x) - OVERLAP + 1):
            if np.array_equal(x[shift:], y[:-shift]) or np.array_equal(y[shift:], x[:-shift]):
                return True
    return False


def _content(example: np.ndarray) -> bytes:
    """Without the zeros that padding adds at the end."""
    flat = example.ravel()
    return bytes(flat[: int(flat.nonzero()[0].max(initial=-1)) + 1])
