"""Reasons why all gradients of a step that differ do so: factors between them, and means of unequal micro-batches.

A is the reference record of a diagnosis, and B the record that is compared with it.
"""

from collections.abc import Mapping, Sequence

import numpy as np

from common.diagnose.findings import Explanation
from common.diagnose.recorded.losses.label_counts import count_labels
from common.diagnose.recorded.record_pair import RecordPair
from common.diagnose.recorded.recorded_side import RecordedSide
from common.diagnose.recorded.stages.loss import find_side_formulas
from common.diagnose.rounding import is_close

LISTED = 3  # number of parameters that a sentence names
TOLERANCE = 1e-3  # largest relative difference between a gradient and an explanation that reproduces it
LEAST_ELEMENTS = 3  # fewer gradients, such as those of the biases of two classes, may have a factor by chance


def explain_factor(
    pair: RecordPair, step: int, differing: Mapping[str, tuple[np.ndarray, np.ndarray]], count: int
) -> Explanation | None:
    """Check whether B's gradients are A's times a factor: the number of processes or micro-batches, or a loss scale.

    Args:
        pair: The records.
        step: The step.
        differing: The gradients of A and B that differ, by title.
        count: The number of all gradients.
    """
    a, b = (np.concatenate([np.ravel(gradients[side]) for gradients in differing.values()]) for side in (0, 1))
    factor = float((a * b).sum() / (a * a).sum()) if a.any() else 0.0
    if not factor or not is_close(a * factor, b, TOLERANCE):
        return None
    for side, ratio in (("b", factor), ("a", 1 / factor)):
        recorded = pair.b if side == "b" else pair.a
        name, replicas = side.upper(), recorded.replicas
        micro_batches, scale = recorded.get_facts(step)["micro_batches"], recorded.get_facts(step)["loss_scale"]
        if replicas > 1 and np.isclose(ratio, replicas, rtol=TOLERANCE):
            sentence = f"{name} sums the gradients of {replicas} replicas: average them, or divide the loss by the "
            return Explanation("not_averaged", f"{sentence}global batch size", side=side)
        if micro_batches > 1 and np.isclose(ratio, micro_batches, rtol=TOLERANCE):
            if explanation := _explain_second_division(pair, step, recorded, factor):
                return explanation
            sentence = f"the gradients of {name} are {ratio:.4g} times too large: those of the {micro_batches} "
            sentence += "micro-batches are summed; divide the loss by their number"
            return Explanation("accumulation_not_divided", sentence, side=side)
        if replicas > 1 and np.isclose(ratio, 1 / replicas, rtol=TOLERANCE):
            sentence = f"{name} divides the gradients twice by the {replicas} replicas"
            return Explanation("averaged_twice", sentence, side=side)
        if scale and scale != 1 and np.isclose(ratio, scale, rtol=TOLERANCE):
            return Explanation(
                "not_unscaled", f"the gradients of {name} still have the loss scale {scale:g}", side=side
            )
    if abs(factor - 1) < 10 * TOLERANCE or a.size < LEAST_ELEMENTS:
        return None
    titles = "" if 2 * len(differing) > count else f" of {list_titles([*differing])}"
    sentence = f"every gradient{titles} of B is {factor:.6g} times A's, and the loss is the same"
    return Explanation("scaled_gradient", sentence)


def _explain_second_division(pair: RecordPair, step: int, larger: RecordedSide, factor: float) -> Explanation | None:
    """Check whether the side with the smaller gradients divides its loss twice by the number of micro-batches.

    The recorded losses of that side do not follow from its outputs; the losses of the other side do.
    """
    other = pair.b if larger is pair.a else pair.a
    if other.get_facts(step)["micro_batches"] != larger.get_facts(step)["micro_batches"]:
        return None
    formulas = [find_side_formulas(side, step, pair.precision) for side in (larger, other)]
    if formulas[0] and not formulas[1]:
        name, count = other.name.upper(), other.get_facts(step)["micro_batches"]
        sentence = f"the loss of {name} is divided twice by the {count} micro-batches: does the library divide it too?"
        return Explanation("accumulation_divided_twice", sentence, side=other.name)
    if formulas[0] and formulas[1]:
        return None
    sentence = f"every gradient of B is {factor:.6g} times A's: compare how both divide by the micro-batches"
    return Explanation("scaled_gradient", sentence)


def explain_unequal_batches(pair: RecordPair, step: int) -> Explanation | None:
    """Check whether only one side adds up the means of micro-batches that count different numbers of labels."""
    counts = {side.name: count_labels(side, step) for side in pair.sides if side.get_facts(step)["micro_batches"] > 1}
    unequal = {name: numbers for name, numbers in counts.items() if len(set(numbers)) > 1}
    if len(unequal) != 1 or len(pair.a.record.ranks) != len(pair.b.record.ranks):
        return None
    ((name, numbers),) = unequal.items()
    listed = ", ".join(f"{number:g}" for number in numbers[:LISTED])
    sentence = (
        f"{name.upper()} averages the means of its micro-batches, though they count different numbers of labels "
        f"({listed}): divide the sum of all losses by the number of all labels"
    )
    return Explanation("mean_of_means", sentence, confirmed=False, side=name)


def list_titles(differing: Sequence[str]) -> str:
    """Return the first titles of parameters, for a sentence."""
    return ", ".join(differing[:LISTED]) + (" and others" if len(differing) > LISTED else "")
