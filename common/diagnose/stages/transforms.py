"""The stage "transforms": examples before `data.transforms`, and after each of them.

A is the reference run of a diagnosis, and B the run that is compared with it. The interpreter of each side transforms
its examples, so that another version of NumPy or Pillow, or another module of the user, shows.
"""

import numpy as np

from common.data.transforms.trace import Trace
from common.data.transforms.transform import Example
from common.data.transforms.transformed_split import TransformedSplit
from common.diagnose.comparison import SideComparison
from common.diagnose.explain.batch_arrays import explain_array
from common.diagnose.findings import Stage
from common.map.side import receive_all

TRANSFORM = "transform"  # cause: the interpreters transform equal examples differently


def compare_transforms(comparison: SideComparison) -> list[Stage]:
    """Compare the first examples of each global batch that both sides have, up to the first step that differs."""
    if not all(isinstance(run.prepared.cache.train, TransformedSplit) for run in comparison.runs.values()):
        return []
    stage, processes = Stage("transforms"), comparison.processes.values()
    for batch in comparison.a.batches:
        for process in processes:
            process.send("transforms", step=batch.step)
        compare_traces(stage, f"step {batch.step}", *receive_all(*processes))
        if stage.causes:
            break
    return [stage]


def compare_traces(stage: Stage, step: str, a: Trace, b: Trace) -> None:
    """Compare the examples that both traces have, up to the first transform after which they differ."""
    for (moment, examples_a), (other_moment, examples_b) in zip(a, b, strict=False):  # moment: "after NAME", ...
        if moment != other_moment:
            return  # the transforms of A and B differ, which the stage "config" reports
        ids = [example_id for example_id in examples_a if example_id in examples_b]
        for name in examples_a[ids[0]] if ids else ():
            _compare_array(stage, (step, moment, name), *_collect(name, ids, examples_a, examples_b))
        if stage.causes:
            return


def _collect(name: str, ids: list[int], *sides: dict[int, Example]) -> list[list[np.ndarray]]:
    """Return the array of each example as float64, for A and for B."""
    return [[np.asarray(side[example_id][name], np.float64) for example_id in ids] for side in sides]


def _compare_array(stage: Stage, title: tuple[str, str, str], a: list[np.ndarray], b: list[np.ndarray]) -> None:
    """Compare one array of the examples of a step, and add a cause if it differs.

    Args:
        stage: The stage.
        title: The step, the moment (before or after a transform), and the name of the array.
        a: The array of each example in A.
        b: The array of each example in B.
    """
    step, moment, name = title
    tensor = f"{step}, {moment}: {name}"
    differing = [row for row in range(len(a)) if not np.array_equal(a[row], b[row], equal_nan=True)]
    if any(x.shape != y.shape for x, y in zip(a, b, strict=True)):
        stage.add_mismatch(tensor)
    else:
        flat_a, flat_b = (np.concatenate([np.ravel(array) for array in side]) for side in (a, b))
        stage.compare_arrays(tensor, flat_a, flat_b)
    if not differing:
        return
    if moment.startswith("before"):
        are_rows = len({array.shape for array in (*a, *b)}) == 1
        reason = explain_array(np.stack(a), np.stack(b)).sentence if are_rows else "has other shapes"
        stage.add_cause("other_data", "b", name, f"{step}: before the transforms, {name} of B {reason}")
        return
    sentence = f"{step}: {moment}, {name} differs in {len(differing)} of {len(a)} examples, which were equal before it"
    stage.add_cause(TRANSFORM, "b", name, sentence)
