"""The stage "batch": examples and arrays of each global batch.

A is the reference run of a diagnosis, and B the run that is compared with it. How a run divides a global batch into
shards and micro-batches is not compared: the rows of the arrays are the examples in the order of their ids.
"""

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import replace

import numpy as np

from common.data.batch_plan import deal_examples
from common.data.batches import Arrays, GlobalBatch
from common.diagnose.comparison import SideComparison
from common.diagnose.explain.batch_arrays import explain_array, index_examples
from common.diagnose.findings import Stage, TensorCheck

MISSING_ARRAY = "missing_array"  # ends the diagnosis: no model accepts the batches of both runs


def compare_batches(comparison: SideComparison) -> list[Stage]:
    """Compare the examples' ids and the arrays of each step, up to the first step that differs."""
    stage = Stage("batch")
    are_unpadded = [[batch.padding == "unpadded" for batch in run.batches] for run in (comparison.a, comparison.b)]
    should_pad = are_unpadded[0] == are_unpadded[1]
    arrays_of_a = [_gather_arrays(batch, should_pad) for batch in comparison.a.batches]
    known_examples = index_examples(arrays_of_a)
    for batch_a, arrays_a, batch_b in zip(comparison.a.batches, arrays_of_a, comparison.b.batches, strict=True):
        if _compare_ids(stage, batch_a, batch_b):
            arrays_b = _gather_arrays(batch_b, should_pad)
            _compare_arrays(stage, f"step {batch_a.step}", arrays_a, arrays_b, known_examples)
        if stage.causes:
            break
    return [stage]


def _gather_arrays(batch: GlobalBatch, should_pad: bool) -> Arrays:
    """Return the arrays of a global batch, as one micro-batch.

    Args:
        batch: The global batch.
        should_pad: Whether to pad the arrays and to put the rows in the order of the ids. If only one of the runs pads
            its batches, the arrays must stay as the model receives them, so that this difference is found.
    """
    if not should_pad:
        padding = "unpadded" if batch.padding == "unpadded" else "global"
        return replace(batch, padding=padding, micro_batches=1).shard(0, 1)[0]
    (arrays,) = replace(batch, padding="global", micro_batches=1, mark_places=False).shard(0, 1)
    (rows,) = deal_examples(batch.split.lengths(batch.ids), 1)  # the index in batch.ids of each row of the shard
    return {name: array[np.argsort(rows)] for name, array in arrays.items()}


def _compare_ids(stage: Stage, a: GlobalBatch, b: GlobalBatch) -> bool:
    """Compare the ids of the examples of one step. Return whether the ids and their order are equal."""
    step = f"step {a.step}"
    if len(a.ids) != len(b.ids):
        stage.add_mismatch(f"{step}: ids")
        stage.add_cause("batch_size", "b", "ids", f"{step} has {len(a.ids)} examples in A and {len(b.ids)} in B")
        return False
    moved_count = int((a.ids != b.ids).sum())
    stage.checks.append(TensorCheck(f"{step}: ids", moved_count / len(a.ids)))
    other_count = (Counter(b.ids.tolist()) - Counter(a.ids.tolist())).total()
    if other_count:
        sentence = f"{step}: {other_count} of B's {len(b.ids)} examples are not in A's batch"
        stage.add_cause("other_examples", "b", "ids", sentence)
    elif moved_count:
        sentence = f"{step}: B has the same examples in another order"
        stage.add_cause("order_of_examples", "b", "ids", sentence)
    return moved_count == 0


def _compare_arrays(
    stage: Stage,
    step: str,
    a: Mapping[str, np.ndarray],
    b: Mapping[str, np.ndarray],
    known_examples: Mapping[str, Collection[bytes]],
) -> None:
    """Compare the arrays of one global batch by name.

    Args:
        stage: The stage, which gets the checks and causes.
        step: The name of the step, for sentences.
        a: The arrays of A.
        b: The arrays of B.
        known_examples: The keys of all examples of A in all steps, by array name, to find out whether a row of B is
            another example of A.
    """
    for name in dict.fromkeys([*a, *b]):
        tensor = f"{step}: {name}"
        if name not in a or name not in b:
            stage.add_mismatch(tensor)
            side, other = ("b", "A") if name in a else ("a", "B")
            stage.add_cause(MISSING_ARRAY, side, name, f"{name} is in the batch of {other} only")
        elif a[name].shape != b[name].shape:
            stage.add_mismatch(tensor)
            sentence = f"the shape of {name} is {list(a[name].shape)} in A and {list(b[name].shape)} in B"
            stage.add_cause("shape", "b", name, sentence)
        else:
            array_a, array_b = a[name].astype(np.float64), b[name].astype(np.float64)
            if stage.compare_arrays(tensor, array_a, array_b).differs:
                explanation = explain_array(array_a, array_b, known_examples[name])
                stage.add_explanation(name, explanation, prefix=f"{tensor} of B ")
