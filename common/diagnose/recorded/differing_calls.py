"""Find the call of a model that receives other examples, if a script calls the model several times in a step.

A is the reference record of a diagnosis, and B the record that is compared with it.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from common.diagnose.findings import Stage
from common.diagnose.recorded.example_order import ArrayPair, find_order
from common.diagnose.recorded.matched_arrays import is_constant
from common.diagnose.recorded.model_calls import describe_call
from common.diagnose.recorded.preparation import explain_preparation
from common.diagnose.recorded.record_pair import RecordPair
from common.diagnose.recorded.recorded_side import RecordedSide
from common.diagnose.rounding import rounding_tolerance
from common.map.array_differences import relative_difference


@dataclass(frozen=True)
class DifferingCall:
    """The first call with different examples on both sides, although another call has the same examples on both sides.

    Attributes:
        title: Words for the call, such as "the second of 3 calls of the model".
        equal_calls: Words for the calls with the same examples on both sides.
        arrays: The arrays that differ, with the rows of the call.
        repeated_call: Words for the call of B whose inputs B's call receives again; empty if there is none.
    """

    title: str
    equal_calls: str
    arrays: list[ArrayPair]
    repeated_call: str = ""


def find_differing_call(pair: RecordPair, step: int, arrays: Sequence[ArrayPair]) -> DifferingCall | None:
    """Return the first call that differs; None if no call receives the same, or if the calls have other sizes.

    Args:
        pair: The records.
        step: The step.
        arrays: Pairs of inputs and labels with the rows of all calls.
    """
    rows = _pair_rows(pair, step)
    calls = [[_select(array, *call_rows) for array in arrays] for call_rows in rows]
    are_equal = [find_order(call) is not None for call in calls]
    if not any(are_equal) or all(are_equal):
        return None
    differing, count = are_equal.index(False), len(calls)
    equal = [describe_call(call, count) for call in range(count) if are_equal[call]]
    changed = [array for array in calls[differing] if find_order([array]) is None]
    repeated = [call for call in range(count) if call != differing and _has_same_inputs(calls[call], calls[differing])]
    return DifferingCall(
        describe_call(differing, count),
        " and ".join(equal),
        changed or calls[differing],
        describe_call(repeated[0], count) if repeated else "",
    )


def explain_differing_call(stage: Stage, step: int, differing: DifferingCall) -> None:
    """Add the cause of a difference in the inputs of one call of the model, if the inputs of other calls are equal."""
    explained = [(array, explain_preparation(array.a, array.b, array.is_label)) for array in differing.arrays]
    for array, _ in explained:
        stage.add_mismatch(f"step {step}: {array.title} of {differing.title}")
    constant_labels = [
        array for array in differing.arrays if array.is_label and is_constant(array.a) and is_constant(array.b)
    ]
    for array in constant_labels:
        values = f"is {array.a.flat[0]:g} in A and {array.b.flat[0]:g} in B: the scripts make it themselves"
        sentence = f"step {step}: {array.title} of {differing.title} {values}"
        stage.add_cause("made_labels", "b", array.title, sentence)
    known = [
        (array, x) for array, x in explained if x.confirmed and not any(array is other for other in constant_labels)
    ]
    for array, explanation in known:
        prefix = f"step {step}: {array.title} of {differing.title} of B "
        stage.add_explanation(array.title, explanation, prefix=prefix)
    if not stage.causes:
        sentence = f"step {step}: {differing.title} receives other values in B, and {differing.equal_calls} the same"
        if differing.repeated_call:
            sentence = f"step {step}: {differing.title} receives the examples of {differing.repeated_call} again in B"
        is_known = bool(differing.repeated_call)
        stage.add_cause("other_inputs_of_call", "b", differing.arrays[0].title, sentence, confirmed=is_known)


def _has_same_inputs(call: Sequence[ArrayPair], other: Sequence[ArrayPair]) -> bool:
    """Check whether B's model receives the same in two calls, and A's does not."""
    inputs = [(x, y) for x, y in zip(call, other, strict=True) if not x.is_label]
    return all(np.array_equal(x.b, y.b) for x, y in inputs) and not all(np.array_equal(x.a, y.a) for x, y in inputs)


def describe_other_pairs(pair: RecordPair, step: int, order: np.ndarray) -> str:
    """Return a sentence if B's calls receive the same examples as A's, but other examples together; else nothing.

    An example of the second call may belong to the example in the same row of the first one, as in pairs of texts.

    Args:
        pair: The records.
        step: The step.
        order: The index among A's examples of each example of B.
    """
    rows = _pair_rows(pair, step)
    positions = [np.full(len(order), -1) for _ in rows]
    for call, (rows_a, _) in enumerate(rows):
        positions[call][rows_a] = np.arange(len(rows_a))
    position = np.max(positions, axis=0) if rows else order
    orders = [position[order[rows_b]] for _, rows_b in rows]
    differing = [
        call
        for call, own in enumerate(orders)
        if len(own) == len(orders[0]) and not np.array_equal(own, orders[0])  # rows of other calls form no pairs
    ]
    if not differing:
        return ""
    title = describe_call(differing[0], len(rows))
    return f"step {step}: {title} receives its examples in another order in B, and the first one does not"


def describe_exchanged_calls(pair: RecordPair, step: int) -> str:
    """Return a sentence if B's calls receive the same examples as A's in another order of the calls; else nothing."""
    rows = _pair_rows(pair, step)
    calls_of_a = [{*rows_a.tolist()} for rows_a, _ in rows]
    received = [{*pair.orders[step][rows_b].tolist()} for _, rows_b in rows]
    if not all(call in calls_of_a for call in received):
        return ""
    exchanged = [(call, calls_of_a.index(examples)) for call, examples in enumerate(received)]
    differing = next(((call, other) for call, other in exchanged if call != other), None)
    if differing is None:
        return ""
    title, other_title = (describe_call(call, len(rows)) for call in differing)
    return f"{title} receives in B the examples of {other_title} in A, and both scripts compute the same formula"


def describe_unjoined(pair: RecordPair, step: int, kind: str) -> str:
    """Return a sentence if some calls lack an input or an output of another call, so that it is not compared.

    Args:
        pair: The records.
        step: The step.
        kind: "input" or "output".
    """
    verb = {"input": "receives", "output": "returns"}[kind]
    for side in pair.sides:
        for rank, number in side.batches.list_micro_batches(step):
            calls = side.batches.count_rows(step, rank, number)
            if len(calls) == 1:
                continue
            joined = side.batches.read_micro_batch(step, rank, number, kind)
            for call in range(len(calls)):
                arrays = side.batches.read_call(step, rank, number, kind, call)
                if len([name for name in arrays if arrays[name].ndim]) > len(joined):
                    title = describe_call(call, len(calls))
                    return f"{title} in {side.title} {verb} other {kind}s ({', '.join(arrays)}) than another call"
            if kind == "output" and any(len(array) % max(sum(calls), 1) for array in joined.values()):
                return f"the {len(calls)} calls of the model in {side.title} do not return one row for each example"
    return ""


def has_several_calls(pair: RecordPair, step: int) -> bool:
    """Check whether both scripts call their models several times in a step, and as often."""
    return len(_pair_rows(pair, step)) > 1


def _pair_rows(pair: RecordPair, step: int) -> list[tuple[np.ndarray, np.ndarray]]:
    """Return the rows of each call in A and in B; none unless a side has several calls, and the other fits them.

    A side may join the calls, or compute the gradients after each of them.
    """
    rows = [side.batches.list_call_rows(step) for side in pair.sides]
    sizes = [[len(call) for call in calls] for calls in rows]
    if sum(sizes[0]) != sum(sizes[1]) or (min(map(len, sizes)) > 1 and sizes[0] != sizes[1]):
        return []
    several = [calls for calls in rows if len(calls) > 1]
    if len(several) == 2:
        return list(zip(*rows, strict=True))
    return [(call, call) for call in several[0]] if several else []


def _select(array: ArrayPair, rows_a: np.ndarray, rows_b: np.ndarray) -> ArrayPair:
    return replace(array, a=array.a[rows_a], b=array.b[rows_b])


def describe_call_counts(sides: Sequence[RecordedSide], step: int) -> str:
    """Describe the numbers of calls in a micro-batch if they differ between the sides; otherwise return ""."""
    counts = [_list_call_counts(side, step) for side in sides]
    if max(map(max, counts)) == 1 or {*counts[0]} == {*counts[1]}:
        return ""
    words = [f"{max(numbers)} time{'s' if max(numbers) > 1 else ''}" for numbers in counts]
    sentence = f"A calls the model {words[0]} before it computes the gradients, and B {words[1]}"
    return f"{sentence}, not counting calls that are detached from the loss"


def describe_uncounted_calls(sides: Sequence[RecordedSide], step: int) -> str:
    """Return a sentence if a record may hold one of several calls only, and the other has several; else nothing."""
    for side, other in (sides, sides[::-1]):
        count = max(_list_call_counts(other, step))
        has_count = all("calls" in facts for facts in side.record.get_step_facts(step))
        if not has_count and max(_list_call_counts(side, step)) == 1 < count:
            return (
                f"{side.title} does not say how often its script calls the model, and {other.title} calls it {count} "
                f"times before it computes the gradients: record {side.name.upper()} again with this version"
            )
    return ""


def _list_call_counts(side: RecordedSide, step: int) -> list[int]:
    """Return the number of recorded calls of the model in each micro-batch."""
    return [len(side.batches.count_rows(step, *micro_batch)) for micro_batch in side.batches.list_micro_batches(step)]


def describe_call_of_outputs(pair: RecordPair, a: np.ndarray, b: np.ndarray) -> str:
    """Describe the first call of A's model with different outputs, if another call has equal outputs.

    Args:
        pair: The records.
        a: An output of A's model for all examples of the first step.
        b: The same of B's model.
    """
    rows = pair.a.batches.list_call_rows(pair.equal_steps[0])
    differences = [relative_difference(a[call], b[call]) for call in rows] if len(rows) > 1 else []
    tolerance = rounding_tolerance(pair.noise, pair.precision)
    differing = [call for call, difference in enumerate(differences) if difference > tolerance]
    return describe_call(differing[0], len(rows)) if 0 < len(differing) < len(rows) else ""
