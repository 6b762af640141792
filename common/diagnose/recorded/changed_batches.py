"""Changes that a following script makes to the batches of the record.

A is the reference record of a diagnosis, and B the record that is compared with it.
"""

from collections.abc import Sequence

import numpy as np

from common.diagnose.findings import Explanation, Stage
from common.diagnose.recorded.example_order import ArrayPair


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
