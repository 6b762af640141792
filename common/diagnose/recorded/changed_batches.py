"""Changes that a following script makes to the batches of the record.

A is the reference record of a diagnosis, and B the record that is compared with it.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from common.diagnose.findings import Explanation, Stage
from common.diagnose.recorded.array_layouts import convert_to_layout
from common.diagnose.recorded.example_order import ArrayPair, are_close
from common.diagnose.recorded.preparation import explain_preparation
from common.diagnose.recorded.record_pair import RecordPair


def note_changed_batches(stage: Stage, explanations: Sequence[tuple[ArrayPair, Explanation]]) -> bool:
    """Note that B's script changes the batches of the record that it follows. Return whether it cuts them.

    The script of a language model may cut tokens into x[:-1] and x[1:]. The recorded batches are the inputs of A's
    model, which are cut already. A script that follows the record cuts them a second time.
    """
    if (cut := next((array for array, _ in explanations if _is_cut(array)), None)) is not None:
        stage.checks.clear()
        stage.omit(
            "B's script takes batches from A's record, and passes only a part of them to its model, "
            f"{list(cut.b.shape)} of {list(cut.a.shape)} in {cut.title}: recorder.batches(...) returns what A's model "
            "received, which is cut already; cut the script's own batches before it, not its results"
        )
        return True
    if explanations:
        stage.note = (
            "B's script changes the batches that it takes from A's record, which are what A's model and loss received: "
            "do what both scripts do to a batch, such as adding noise, before recorder.batches(...)"
        )
    return False


def replace_computed_inputs(pairs: Sequence[ArrayPair], pair: RecordPair, step: int) -> list[ArrayPair]:
    """Return the pairs of inputs, with arrays of the batches in place of inputs that one script computes from them.

    A script may compute what its model receives within a step, such as noisy images, and the model of the other script
    receives the images and the noise. The record of the first script has these as labels or as other arrays.

    Args:
        pairs: The pairs of inputs.
        pair: The records, of which B's followed A's.
        step: The step.
    """
    batches = [
        [array for kind in ("label", "other") for array in side.batches.read_step(step, kind).values()]
        for side in pair.sides
    ]
    replaced: list[ArrayPair] = []
    for known in pairs:
        if not _have_other_values(known):
            replaced.append(known)
        elif (of_b := find_equal(known.a, batches[1])) is not None:
            replaced.append(replace(known, b=of_b))
        elif (of_a := find_equal(known.b, batches[0])) is not None:
            replaced.append(replace(known, a=of_a))
        else:
            return [*pairs]
    return replaced


def _have_other_values(pair: ArrayPair) -> bool:
    """Check whether two inputs of one shape differ, and no preparation certainly explains it."""
    if pair.a.shape != pair.b.shape or are_close(pair.a, pair.b):
        return False
    return not explain_preparation(pair.a, pair.b, pair.is_label).confirmed


def find_equal(array: np.ndarray, others: Sequence[np.ndarray]) -> np.ndarray | None:
    """Return the array with the same numbers in the layout of `array`; None if there is none, or if it is constant."""
    converted = [convert_to_layout(other, array) for other in others if len(other) == len(array)]
    is_constant = not array.size or bool((array == array.flat[0]).all())
    return None if is_constant else next((x for x in converted if np.array_equal(x, array)), None)


def omit_computed_inputs(stage: Stage, step: int, explanations: Sequence[tuple[ArrayPair, Explanation]]) -> bool:
    """Omit a later step if all that differs are inputs that the scripts compute. Return whether the step is omitted.

    The batches that B's script takes from A's record are equal in each step. Inputs that it computes, with an encoder
    that is trained as well for example, differ as soon as something differs that is not recorded here.
    """
    if not explanations or any(array.is_label or array.a.dtype.kind != "f" for array, _ in explanations):
        return False
    titles = [array.title for array, _ in explanations]
    for title in titles:
        stage.add_mismatch(f"step {step}: {title}", may_begin_here=False)
    are = "is equal in earlier steps, and no array" if len(titles) == 1 else "are equal in earlier steps, and no arrays"
    reason = (
        f"{' and '.join(titles)} {are} of the batches: the scripts compute such inputs themselves, for example with "
        "another model that they train; record that model as well, and compare its records"
    )
    stage.omit(reason, f"only compared before step {step}")
    return True


def _is_cut(array: ArrayPair) -> bool:
    """Check whether B's input is A's without its first or last elements along the second axis, such as the tokens."""
    a, b = array.a, array.b
    if array.is_label or a.ndim < 2 or a.ndim != b.ndim or b.shape[1] >= a.shape[1]:
        return False
    count = b.shape[1]
    return any(x.shape == b.shape and np.array_equal(x, b) for x in (a[:, :count], a[:, -count:]))
