"""Losses that one script divides by the number of some labels, or by a sum of weights, and the other by that of all."""

import math

import numpy as np

from common.diagnose.findings import Explanation
from common.diagnose.recorded.losses.label_forms import list_labels
from common.diagnose.recorded.losses.loss_formulas import CLOSE, LOSS_REDUCTION
from common.diagnose.recorded.record_pair import RecordPair
from common.diagnose.recorded.recorded_side import RecordedSide

LEAST_SIZE = 3  # smallest size of an axis that explains a factor: 2 is a usual factor of a loss


def explain_divisor(pair: RecordPair, step: int, title: str, values: tuple[float, float]) -> Explanation | None:
    """Explain by their divisors why two results of a loss function differ.

    A whole number of elements, such as 30, is that of an axis of the outputs. A ratio such as 1/2 has too many other
    reasons, and is not explained.

    Args:
        pair: The records, whose outputs and labels are equal.
        step: The step.
        title: Words for the function, such as "the cross entropy".
        values: Its results in A and in B.
    """
    ratio = values[1] / values[0] if all(values) else 0.0
    tolerance = CLOSE[pair.precision]
    if ratio <= 0:
        return None
    count = next((round(x) for x in (ratio, 1 / ratio) if np.isclose(x, round(x), rtol=tolerance, atol=0)), 0)
    if count:
        return _explain_whole(pair, step, title, count, "B" if ratio > 1 else "A")
    names = ("A", "B")
    for order, mean in (((0, 1), ratio), ((1, 0), 1 / ratio)):
        for side in pair.sides:
            if divisor := _find_divisor(side, step, mean, tolerance):
                part, whole = (f"{names[index]} ({values[index]:.6g})" for index in order)
                sentence = f"{title} of {part} is divided by {divisor}; that of {whole} by the number of all"
                return Explanation(LOSS_REDUCTION, sentence)
    return None


def _explain_whole(pair: RecordPair, step: int, title: str, count: int, larger: str) -> Explanation | None:
    """Explain a result that is a whole number of times as large by an axis of the outputs over which it is a sum.

    Args:
        pair: The records.
        step: The step.
        title: Words for the loss function.
        count: The number.
        larger: Name of the side with the larger result.
    """
    shapes = {x.shape for side in pair.sides for x in side.batches.read_step(step, "output").values()}
    sizes = {size for shape in shapes for size in (*shape[1:], math.prod(shape[1:]))}
    if count < LEAST_SIZE or count not in sizes:
        return None
    smaller = "AB".replace(larger, "")
    sentence = (
        f"{title} of {larger} is {count} times that of {smaller}: {larger} adds the {count} elements of an example "
    )
    return Explanation(LOSS_REDUCTION, f"{sentence}of which {smaller} takes the mean")


def _find_divisor(side: RecordedSide, step: int, mean: float, tolerance: float) -> str:
    """Return words for the labels that are counted or the weights that are added; empty if none have this mean."""
    micro_batches = side.batches.list_micro_batches(step)
    if len(micro_batches) != 1 or side.batches.has_abridged_labels(step):
        return ""
    for labels in list_labels(side, step, micro_batches[0]):
        classes = labels if labels.dtype.kind in "iu" else labels[:0]
        for value, count in zip(*np.unique(classes, return_counts=True), strict=True):
            if np.isclose(1 - count / labels.size, mean, rtol=tolerance, atol=0):
                return f"the number of labels other than {value} ({labels.size - count} of {labels.size})"
    for kind in ("input", "label"):
        for name, array in side.batches.read_micro_batch(step, *micro_batches[0], kind).items():
            is_weight = array.ndim and array.size > 1 and array.dtype.kind in "fbiu"
            share = np.count_nonzero(array) / array.size if is_weight and kind == "input" else 0.0
            if array.dtype.kind in "iu" and share < 1 and np.isclose(share, mean, rtol=tolerance, atol=0):
                return f"the number of ids other than 0 in input {name} ({share * array.size:.0f} of {array.size})"
            if is_weight and np.isclose(array.mean(dtype=np.float64), mean, rtol=tolerance, atol=0):
                return f"the sum of {kind} {name} ({array.sum(dtype=np.float64):.6g}, of {array.size} numbers)"
    return ""
