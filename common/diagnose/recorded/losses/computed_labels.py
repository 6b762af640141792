"""Labels that a script computes from other arrays, such as the target of a Q-network or the mask of a risk set.

Computed labels are not compared as data. The operations that compute them are compared as a part of the loss. A is the
reference record of a diagnosis, and B the record that is compared with it.
"""

import numpy as np

from common.diagnose.recorded.example_order import ArrayPair
from common.diagnose.recorded.matched_arrays import is_constant
from common.diagnose.recorded.operations.operation_names import KEEPING, normalize_name
from common.diagnose.recorded.preparation import LABELS_SHIFTED, LABELS_TRANSPOSED, explain_preparation
from common.diagnose.recorded.record_pair import RecordPair
from common.diagnose.recorded.recorded_side import RecordedSide

MOST_VALUES = 2  # largest number of values of labels that a script makes


def is_computed(pair: RecordPair, label: ArrayPair, step: int) -> bool:
    """Check whether an operation of A's or of B's script returned a label of a step.

    Operations before the first call of the model are not recorded. Then a label of a loss function may be computed if
    the other side's label is only an array of its batch, because the recorder saw no loss function.

    Labels still count as data if they differ by a known mistake, such as inverted one-hot labels or another order, or
    if they have one or two values, as those of a GAN.
    """
    if label.a.shape == label.b.shape and all(len(np.unique(x)) <= MOST_VALUES for x in (label.a, label.b)):
        return False
    explanation = explain_preparation(label.a, label.b, is_label=True)
    if explanation.cause in (LABELS_TRANSPOSED, LABELS_SHIFTED) or _are_reordered(label):
        return False
    is_made = _is_made(pair.a, label.name) and _is_made(pair.b, label.name_b)
    if is_made and (is_constant(label.a) or is_constant(label.b)):  # such as the places of the positive pairs
        return True
    if _is_made_from(pair.a, label.name, label.b, step) or _is_made_from(pair.b, label.name_b, label.a, step):
        return True
    is_result = _is_result(pair.a, label.name) or _is_result(pair.b, label.name_b)
    if not (is_result or (label.a.dtype.kind == "f" and _sees_one_loss(pair))):
        return False
    if label.a.shape == label.b.shape and np.allclose(label.a, np.negative(label.b)):
        return True  # the loss of one script adds what the loss of the other one subtracts
    return not explanation.confirmed or explanation.cause == "shape"


def _are_reordered(label: ArrayPair) -> bool:
    """Check whether both labels have the same values in another order, as those of other examples."""
    a, b = label.a, label.b
    return a.shape == b.shape and not np.array_equal(a, b) and np.array_equal(np.sort(a, None), np.sort(b, None))


def _is_made(side: RecordedSide, name: str) -> bool:
    """Check whether a label is no array of the script's batch, of which others are known: the script made it."""
    step = side.record.steps[0]
    keys = side.get_facts(step).get("keys", {})
    return f"label/{name}" not in keys and bool(keys or side.batches.read_step(step, "other"))


def _is_made_from(side: RecordedSide, name: str, batch_array: np.ndarray, step: int) -> bool:
    """Check whether a script made a label, and has the other script's array elsewhere in its batch."""
    if not _is_made(side, name):
        return False
    ordered = np.sort(batch_array, axis=None)
    others = side.batches.read_step(step, "other").values()
    return any(np.array_equal(np.sort(x, axis=None), ordered) for x in others)


def _sees_one_loss(pair: RecordPair) -> bool:
    """Check whether a following script has other labels because the recorder saw the loss function of one side only."""
    return pair.has_followed and (pair.a.record.facts["loss"] is None) != (pair.b.record.facts["loss"] is None)


def _is_result(side: RecordedSide, name: str) -> bool:
    """Check whether an operation of the first micro-batch of the first process computed a label.

    Operations that keep the numbers, such as reshape, compute nothing.
    """
    trace = side.record.ranks[0].operations
    if trace is None:
        return False
    producers = {output: operation for operation in trace["operations"] for output in operation["outputs"]}
    number, visited = trace["names"].get(f"batch/0/label/{name}"), set[int]()
    while number is not None and number in producers and number not in visited:
        visited.add(number)
        operation = producers[number]
        if normalize_name(operation) not in KEEPING or not operation["inputs"]:
            return True
        number = operation["inputs"][0]
    return False
