"""Ways in which two scripts prepare the same examples differently.

A is the reference record of a diagnosis, and B the record that is compared with it. The sentence of an explanation
follows the name of B's array, such as "input x of B".
"""

import numpy as np

from common.diagnose.explain.batch_arrays import explain_array
from common.diagnose.findings import Explanation
from common.diagnose.rounding import is_close

ALIKE = 0.9  # least correlation of two arrays that show the same images, resized in another way
TOLERANCE = 1e-4  # largest relative error of a formula that explains an array
LABELS_TRANSPOSED, LABELS_SHIFTED = "labels_transposed", "labels_shifted"  # names of the causes


def explain_preparation(a: np.ndarray, b: np.ndarray, is_label: bool) -> Explanation:
    """Explain how B's script prepares an array differently than A's. Both arrays have the same number of examples.

    Args:
        a: A's array, with an example in each row.
        b: B's array.
        is_label: Whether it holds labels.
    """
    if a.shape != b.shape:
        return (_explain_shifted_end(a, b) if is_label else None) or _explain_shape(a, b)
    a, b = a.astype(np.float64), b.astype(np.float64)
    explanations = (_explain_labels,) if is_label else (_explain_channels, _explain_special_tokens, _explain_mirrored)
    for explain in (_explain_padding_side, *explanations):
        if explanation := explain(a, b):
            return explanation
    explanation = explain_array(a, b)
    if explanation.confirmed or is_label or a.dtype.kind != "f" or np.array_equal(a, np.round(a)):
        return explanation
    if np.array_equal(np.argsort(a, axis=None, kind="stable"), np.argsort(b, axis=None, kind="stable")):
        sentence = "has A's values in the same order, but at other distances, as after a logarithm or a root"
        return Explanation("prepared_differently", sentence)
    differing = [
        row for row in range(len(a)) if not np.allclose(a[row], b[row], rtol=TOLERANCE, atol=TOLERANCE * a.std())
    ]
    if 0 < len(differing) < len(a):  # another preparation changes all of them
        sentence = f"has other values in {len(differing)} of {len(a)} examples, first in example {differing[0]}"
        return Explanation("some_examples", sentence, confirmed=False)
    correlation = float(np.corrcoef(a.ravel(), b.ravel())[0, 1]) if a.std() and b.std() else 0.0
    if correlation > ALIKE:
        sentence = (
            f"has the same examples with other values (correlation {correlation:.4f}): compare how they are resized "
            "(antialiasing, interpolation), cropped and decoded"
        )
        return Explanation("prepared_differently", sentence, confirmed=False)
    return explanation


def _explain_shifted_end(a: np.ndarray, b: np.ndarray) -> Explanation | None:
    """Check whether one side leaves out the first label of each text, so that it predicts a later token."""
    if a.ndim != 2 or b.ndim != 2 or abs(a.shape[1] - b.shape[1]) != 1:
        return None
    name, other, longer, shorter = ("B", "A", a, b) if a.shape[1] > b.shape[1] else ("A", "B", b, a)
    if not np.array_equal(longer[:, 1:], shorter) or np.array_equal(longer[:, :-1], shorter):
        return None
    sentence = f"has other positions: {name} leaves out the first label of each text, so that it shifts them once more"
    return Explanation(LABELS_SHIFTED, f"{sentence} than {other}", side=name.lower())


def _explain_shape(a: np.ndarray, b: np.ndarray) -> Explanation:
    """Explain another shape: texts that are padded or cut to another length."""
    if a.ndim == b.ndim == 2 and a.dtype.kind in "iub" and b.dtype.kind in "iub":
        shorter = min(a.shape[1], b.shape[1])
        name, longer = ("A", a) if a.shape[1] > b.shape[1] else ("B", b)
        for side, ends in (("end", (a[:, :shorter], b[:, :shorter])), ("start", (a[:, -shorter:], b[:, -shorter:]))):
            if np.array_equal(*ends):
                cut = longer[:, shorter:] if side == "end" else longer[:, :-shorter]
                if (cut == cut.flat[0]).all():
                    sentence = f"has {b.shape[1]} tokens, A's {a.shape[1]}: {name} pads to a longer length"
                    return Explanation("padding_length", sentence)
                sentence = f"has {b.shape[1]} tokens, A's {a.shape[1]}: texts are cut off at another length"
                return Explanation("truncation_length", sentence)
    return Explanation("shape", f"has the shape {list(b.shape)}, A's {list(a.shape)}")


def _explain_padding_side(a: np.ndarray, b: np.ndarray) -> Explanation | None:
    """Check whether texts are padded at the end on one side, and at the start on the other.

    A text may have one token more or less, because scripts cut the last one off to predict the next.
    """
    if a.ndim != 2 or a.shape[1] < 3 or not np.array_equal(a, np.round(a)):
        return None
    for at_end, at_start in ((a, b), (b, a)):
        values, counts = np.unique(at_end[:, -1], return_counts=True)
        padding = values[counts.argmax()]
        if (
            (at_start[:, 0] == padding).sum() < 1
            or (at_end[:, 0] == padding).any()
            or (at_start[:, -1] == padding).any()
        ):
            continue
        texts = [(_trim(x[::-1], padding)[::-1], _trim(y, padding)) for x, y in zip(at_end, at_start, strict=True)]
        if all(_are_alike(*pair) for pair in texts):
            count = int((a != b).any(1).sum())
            sentence = f"is padded at the other end than A's, in {count} of {len(a)} examples"
            return Explanation("padding_side", sentence)
    return None


def _trim(text: np.ndarray, padding: float) -> np.ndarray:
    """Return a text without the padding at its start."""
    return text[int((text != padding).argmax()) :]


def _are_alike(x: np.ndarray, y: np.ndarray) -> bool:
    length = min(len(x), len(y))
    if abs(len(x) - len(y)) > 1 or not length:
        return False
    return np.array_equal(x[:length], y[:length]) or np.array_equal(x[-length:], y[-length:])


def _explain_mirrored(a: np.ndarray, b: np.ndarray) -> Explanation | None:
    """Check whether images are mirrored, all or some of them."""
    for axis in range(1, a.ndim) if a.ndim > 2 else ():
        mirrored = np.flip(a, axis)
        is_mirrored = [np.array_equal(x, y) for x, y in zip(mirrored, b, strict=True)]
        if all(known or np.array_equal(x, y) for known, x, y in zip(is_mirrored, a, b, strict=True)):
            sentence = f"has {sum(is_mirrored)} of {len(a)} examples mirrored along axis {axis}"
            return Explanation("reversed", sentence)
    return None


def _explain_labels(a: np.ndarray, b: np.ndarray) -> Explanation | None:
    """Check whether labels are transposed, shifted in their values or their positions, or ignored on one side."""
    if a.ndim > 1 and min(a.shape[:2]) > 1 and any(np.array_equal(x, y) for x, y in _list_transposed(a, b)):
        sentence = "has A's labels with the first two axes exchanged before they are flattened"
        return Explanation(LABELS_TRANSPOSED, sentence)
    shift = b - a
    if a.size > 1 and shift.flat[0] and (shift == shift.flat[0]).all():
        return Explanation(LABELS_SHIFTED, f"has every label of A plus {shift.flat[0]:g}: another numbering")
    if a.ndim == 2 and a.shape[1] > 2:
        for offset, words in ((1, "one token earlier"), (-1, "one token later")):
            rolled = np.roll(a, -offset, 1)
            inner = slice(None, -1) if offset == 1 else slice(1, None)
            if np.array_equal(rolled[:, inner], b[:, inner]):
                return Explanation(LABELS_SHIFTED, f"has A's labels {words}: they are shifted on one side only")
    differs = a != b
    values = np.unique(b[differs])
    if a.ndim == 2 and values.size == 1 and values[0] < 0 <= a[differs].min():
        sentence = f"has {values[0]:g} at {int(differs.sum())} places, which are then ignored; A counts them"
        return Explanation("ignored_labels", sentence)
    values = np.unique(a[differs])
    if a.ndim == 2 and values.size == 1 and values[0] < 0 <= b[differs].min():
        sentence = f"counts {int(differs.sum())} places, such as padding, that A ignores ({values[0]:g})"
        return Explanation("ignored_labels", sentence)
    return None


def _list_transposed(a: np.ndarray, b: np.ndarray) -> list[tuple[np.ndarray, np.ndarray]]:
    """Return the numbers of both arrays in the orders that they have if one script exchanges the first two axes."""
    return [(a.swapaxes(0, 1).reshape(-1), b.reshape(-1)), (a.reshape(-1), b.swapaxes(0, 1).reshape(-1))]


def _explain_channels(a: np.ndarray, b: np.ndarray) -> Explanation | None:
    """Check whether the channels are in another order, or whether each channel is scaled and shifted."""
    if a.ndim not in (3, 4):
        return None
    axis = next((axis for axis in (a.ndim - 1, 1) if a.shape[axis] in (3, 4)), None)
    if axis is None:
        return None
    channels_a, channels_b = (np.moveaxis(array, axis, 0).reshape(a.shape[axis], -1) for array in (a, b))
    for is_reversed, candidate in ((False, channels_a), (True, channels_a[::-1])):
        fits = [_fit_line(x, y) for x, y in zip(candidate, channels_b, strict=True)]
        fitted = np.stack([x * factor + shift for x, (factor, shift) in zip(candidate, fits, strict=True)])
        if not is_close(fitted, channels_b, TOLERANCE):
            continue
        factors, shifts = np.array([fit[0] for fit in fits]), np.array([fit[1] for fit in fits])
        is_plain = np.allclose(factors, 1, rtol=1e-3) and np.allclose(shifts, 0, atol=1e-3 * np.abs(channels_b).max())
        if is_reversed:
            more = "" if is_plain else ", and scales and shifts them"
            return Explanation("channel_order", f"has the channels in the reverse order, BGR for RGB{more}")
        if np.ptp(factors) > 1e-3 * np.abs(factors).max() or np.ptp(shifts) > 1e-3 * np.abs(channels_b).max():
            listed = ", ".join(f"{factor:.4g} x + {shift:.4g}" for factor, shift in zip(factors, shifts, strict=True))
            return Explanation("normalization", f"scales and shifts each channel of A: {listed}: another mean and std")
    return None


def _fit_line(x: np.ndarray, y: np.ndarray) -> tuple[float, float]:
    """Return factor and shift that turn x into y."""
    if not np.ptp(x):
        return 1.0, float((y - x).mean())
    factor, shift = np.polyfit(x, y, 1)
    return float(factor), float(shift)


def _explain_special_tokens(a: np.ndarray, b: np.ndarray) -> Explanation | None:
    """Check whether every text of one side begins with a token that the other side lacks."""
    if a.ndim != 2 or not np.array_equal(a, np.round(a)) or a.shape[1] < 4:
        return None
    for name, longer, shorter in (("A", a, b), ("B", b, a)):
        starts = np.unique(longer[:, 0])
        same = [_begins_alike(x, y) for x, y in zip(longer[:, 1:], shorter, strict=True)]
        if starts.size == 1 and all(same) and not (shorter[:, 0] == starts[0]).all():
            sentence = f"differs by special tokens: each text of {name} begins with {starts[0]:g}, the other's does not"
            return Explanation("special_tokens", sentence)
    return None


def _begins_alike(text: np.ndarray, shorter: np.ndarray) -> bool:
    """Check whether a text begins with a shorter one. Up to three tokens at the end of the shorter one may differ."""
    length = len(np.trim_zeros(shorter, "b"))
    compared = max(2, length - 3) if length > 2 else length
    return np.array_equal(text[:compared], shorter[:compared])
