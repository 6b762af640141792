"""Explain why a step has more examples in one script than in the other script.

A is the reference record of a diagnosis, and B the record that is compared with it. A projection is one number that
identifies an example: a random weighted sum of its values.
"""

from collections.abc import Sequence

import numpy as np

from common.diagnose.findings import Explanation
from common.diagnose.recorded.differing_calls import describe_call_counts
from common.diagnose.recorded.example_order import count_known, pair_arrays, project_steps
from common.diagnose.recorded.operations.stopped_gradients import explain_call_without_gradient
from common.diagnose.recorded.record_pair import RecordPair
from common.diagnose.recorded.recorded_batches import LABELS
from common.diagnose.recorded.recorded_side import RecordedSide
from common.diagnose.recorded.time_axis import describe_exchange, takes_time_first


def explain_counts(pair: RecordPair, step: int, counts: Sequence[int]) -> Explanation:
    """Explain why a step has more examples on one side. The sentence of the explanation follows "step 3".

    Args:
        pair: The records.
        step: The step.
        counts: The number of examples of the step in A and in B.
    """
    if explanation := _explain_time_axis(pair, step):
        return explanation
    difference = f" has {counts[0]} examples in A and {counts[1]} in B"
    for side, other in (pair.sides, pair.sides[::-1]):
        if side.get_facts(step).get("passes_of_others") and not other.get_facts(step).get("passes_of_others"):
            sentence = f": {side.name.upper()} adds the gradients of a backward pass for another optimizer: zero_grad "
            return Explanation("zero_grad_missing", f"{sentence}is missing", side=side.name)
    calls = describe_call_counts(pair.sides, step)
    if calls and (explanation := explain_call_without_gradient(pair, step)):
        return explanation
    if calls:
        return Explanation("number_of_calls", f"{difference}: {calls}", confirmed=False)
    earlier = [number for number in pair.steps if number < step]
    smaller, larger = pair.sides if counts[0] < counts[1] else pair.sides[::-1]
    if not earlier or min(counts) >= min(sum(smaller.batches.count_examples(number)) for number in earlier):
        return _explain_accumulation(smaller, larger, step, difference) or Explanation("batch_size", difference)
    name, extra = larger.name.upper(), abs(counts[1] - counts[0])
    pairs, *_ = pair_arrays(smaller.batches.read_step(step, "input"), larger.batches.read_step(step, "input"))
    arrays = [array for array in pairs if array.name != LABELS]
    last_of_smaller = project_steps(smaller, [array.name for array in arrays], [step], arrays)
    names = [array.name_b for array in arrays]
    last, before = (project_steps(larger, names, steps, arrays) for steps in ([step], earlier))
    if last.size and count_known(last_of_smaller, last) == min(counts):
        repeated = count_known(last, np.concatenate([before, _find_repeated(last)]))
        if repeated >= extra:
            sentence = f"{difference}: {name} fills its last batch with {extra} examples that it has already used, as "
            sentence += "DistributedSampler does: they count twice"
            return Explanation("sampler_padding", sentence, side=larger.name)
    sentence = (
        f"{difference}: the last batch of {smaller.name.upper()} is smaller, and {name} goes on with a full one: "
    )
    sentence += f"does {name} drop the last batch (drop_last)?"
    return Explanation("last_batch_dropped", sentence, confirmed=False, side=larger.name)


def _explain_accumulation(
    smaller: RecordedSide, larger: RecordedSide, step: int, difference: str
) -> Explanation | None:  # fmt: skip
    """Check whether only the number of micro-batches of a step differs, and not their sizes."""
    few, many = (side.batches.count_examples(step) for side in (smaller, larger))
    sizes = {*few, *many}
    has_ranks = len(smaller.record.ranks) > 1 or len(larger.record.ranks) > 1
    if has_ranks or len(few) == len(many) or len(sizes) > 1:
        return None
    sentence = (
        f"{difference}: {larger.name.upper()} adds the gradients of {len(many)} micro-batches of {sizes.pop()} before "
        f"its update, and {smaller.name.upper()} those of {len(few)}"
    )
    return Explanation("accumulation_steps", sentence, side=larger.name)


def _explain_time_axis(pair: RecordPair, step: int) -> Explanation | None:
    """Check whether only one side has a layer that takes the examples for time steps, because they are in front."""
    for side, other in (pair.sides, pair.sides[::-1]):
        layer = next((layer["path"] for layer in side.layers if takes_time_first(layer)), None)
        arrays, other_arrays = (x.batches.read_step(step, "input").values() for x in (side, other))
        if layer is not None and any(
            x.ndim > 1 and np.array_equal(x.swapaxes(0, 1), y) for x in arrays for y in other_arrays
        ):
            return Explanation("time_axis", f": {describe_exchange(layer, side.name)}", side=side.name)
    return None


def _find_repeated(projections: np.ndarray) -> np.ndarray:
    """Return the projections of the examples that occur more than once."""
    return np.array([value for index, value in enumerate(projections) if count_known(projections[:index], value[None])])
