"""The stage "batch": examples and arrays of each global batch.

A is the reference run of a diagnosis, and B the run that is compared with it. This stage compares a whole global batch
as the only shard of a single replica: `shard(0, 1)`, which is a list of micro-batches, here called parts.
"""

from collections.abc import Collection, Mapping

import numpy as np

from common.data.batches import GlobalBatch
from common.diagnose.comparison import SideComparison
from common.diagnose.explain.batch_arrays import explain_array, index_examples
from common.diagnose.findings import Stage, TensorCheck

MISSING_ARRAY = "missing_array"


def compare_batches(comparison: SideComparison) -> list[Stage]:
    """Compare the examples' ids and the arrays of each step, up to the first step that differs."""
    stage = Stage("batch")
    known_examples = index_examples(part for batch in comparison.a.batches for part in batch.shard(0, 1))
    for batch_a, batch_b in zip(comparison.a.batches, comparison.b.batches, strict=True):
        if _compare_ids(stage, batch_a, batch_b):
            parts_a, parts_b = batch_a.shard(0, 1), batch_b.shard(0, 1)
            if len(parts_a) == len(parts_b):
                for part_a, part_b in zip(parts_a, parts_b, strict=True):
                    _compare_arrays(stage, f"step {batch_a.step}", part_a, part_b, known_examples)
        if stage.causes:
            break
    return [stage]


def _compare_ids(stage: Stage, a: GlobalBatch, b: GlobalBatch) -> bool:
    """Compare the ids of the examples of one step. Return whether the ids and their order are equal."""
    step = f"step {a.step}"
    if len(a.ids) != len(b.ids):
        stage.add_mismatch(f"{step}: ids")
        stage.add_cause("batch_size", "b", "ids", f"{step} has {len(a.ids)} examples in A and {len(b.ids)} in B")
        return False
    count = int((a.ids != b.ids).sum())
    stage.checks.append(TensorCheck(f"{step}: ids", count / len(a.ids)))
    if sorted(a.ids.tolist()) != sorted(b.ids.tolist()):
        sentence = f"{step}: in B {count} of {len(a.ids)} examples are others"
        stage.add_cause("other_examples", "b", "ids", sentence)
    elif count:
        sentence = f"{step}: in B the same examples in another order"
        stage.add_cause("order_of_examples", "b", "ids", sentence)
    return count == 0


def _compare_arrays(
    stage: Stage,
    step: str,
    a: Mapping[str, np.ndarray],
    b: Mapping[str, np.ndarray],
    known_examples: Mapping[str, Collection[bytes]],
) -> None:
    """Compare the arrays of one micro-batch by name. `known_examples` holds the keys of A's examples in all steps."""
    for name in dict.fromkeys([*a, *b]):
        tensor = f"{step}: {name}"
        if name not in a or name not in b:
            stage.add_mismatch(tensor)
            side, other = ("b", "A") if name in a else ("a", "B")
            stage.add_cause(MISSING_ARRAY, side, name, f"{name} is in the batch of {other} only")
        elif a[name].shape != b[name].shape:
            stage.add_mismatch(tensor)
            sentence = f"{name} is {list(a[name].shape)} in A and {list(b[name].shape)} in B"
            stage.add_cause("shape", "b", name, sentence)
        else:
            array_a, array_b = a[name].astype(np.float64), b[name].astype(np.float64)
            if stage.compare_arrays(tensor, array_a, array_b).differs:
                explanation = explain_array(array_a, array_b, known_examples[name])
                stage.add_explanation(name, explanation, prefix=f"{tensor} of B ")
