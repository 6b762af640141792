"""Sentences that name the first operation that two training scripts compute differently, with its line in the script.

A is the reference record of a diagnosis, and B the record that is compared with it.
"""

from dataclasses import replace
from itertools import product

from common.diagnose.findings import Explanation
from common.diagnose.recorded.operations.differing_section import DifferingSection, find_section
from common.diagnose.recorded.operations.equal_reductions import (
    LARGEST_ROUNDING,
    explain_other_reduction,
    reduces_equal_tensors,
)
from common.diagnose.recorded.operations.number_sources import find_source
from common.diagnose.recorded.operations.operation_names import LOSS, normalize_name
from common.diagnose.recorded.operations.operation_words import describe_layouts, describe_lines, locate
from common.diagnose.recorded.operations.partial_losses import explain_partial_loss
from common.diagnose.recorded.operations.recorded_traces import are_other_losses, match_tensors, read_traces
from common.diagnose.recorded.operations.section_explanation import explain_section, find_unrecorded_shape
from common.diagnose.recorded.operations.section_side import SectionSide
from common.diagnose.recorded.operations.tensor_matches import MOST_COMPARED
from common.diagnose.recorded.operations.weight_uses import explain_other_weights
from common.diagnose.recorded.record_pair import RecordPair
from common.recording.operation_format import OperationTrace

MOST_TENSORS = 4000  # number of tensors of a script above which their order is not compared
# Causes that name operations. Another cause may say why they differ.
OPERATION_CAUSES = ("operation", "missing_operation", "added_operation")


def explain_operations(
    pair: RecordPair, place: str, name_a: str, name_b: str, *, may_be_reordered: bool = True
) -> Explanation | None:  # fmt: skip
    """Name the operations from which a tensor differs first.

    Everything that the operations receive must be equal: no earlier tensor may differ.

    Args:
        pair: The records.
        place: Where the tensor is, in reports.
        name_a: The tensor's name in A's record, or LOSS.
        name_b: The tensor's name in B's record, or LOSS.
        may_be_reordered: Whether the tensor may have the same numbers in another order. Its statistics do not show
            other numbers if only few of them differ.

    Returns:
        The explanation; None if the operations do not show the difference.
    """
    are_losses = (name_a, name_b) == (LOSS, LOSS)
    if are_losses and (explanation := explain_other_reduction(pair, place)) is not None:
        return explanation
    section = _find_section(pair, name_a, name_b, is_known_to_differ=not may_be_reordered)
    if section is None:
        explanation = (
            _explain_exchange(pair, place, name_a, name_b)
            or _explain_other_tensor(pair, place, name_a, name_b)
            or (_explain_order(pair, place, name_a, name_b) if may_be_reordered else None)
        )
    elif section.is_layer and section.has_weights:  # a layer that computes something else is explained by its settings
        return None
    else:
        explanation = explain_other_weights(pair, section, place) or explain_section(section, place)
    if are_losses and (explanation is None or not explanation.confirmed):
        explanation = explain_partial_loss(pair, place) or explanation
    if explanation is None or explanation.confirmed:
        return explanation
    return _explain_in_order(pair, place, name_a, name_b) or explanation


def _explain_in_order(pair: RecordPair, place: str, name_a: str, name_b: str) -> Explanation | None:
    """Name the operations from which a tensor, or the order of its numbers, differs first; None if that is uncertain.

    Two scripts may order the numbers of the same tensor in different ways, and both be right. Therefore the order
    counts only if numbers alone explain no difference.
    """
    section = _find_section(pair, name_a, name_b, is_ordered=True)
    if section is None or (section.is_layer and section.has_weights):
        return None
    entering = [
        [x for x in side.entering_operations if x["outputs"]][:MOST_COMPARED] for side in (section.a, section.b)
    ]
    for of_a, of_b in product(*entering):
        is_one_name = normalize_name(of_a) == normalize_name(of_b)
        if is_one_name and section.matches.are_reordered(of_a["outputs"][0], of_b["outputs"][0]):
            words = [describe_lines(side, [x]) for side, x in zip((section.a, section.b), (of_a, of_b), strict=True)]
            sentence = f"{place}: the same numbers are in another order: A computes {words[0]}, and B {words[1]}"
            return Explanation("operation", sentence, confirmed=False)
    explanation = explain_section(section, place)
    return explanation if explanation.confirmed else None


def _explain_exchange(pair: RecordPair, place: str, name_a: str, name_b: str) -> Explanation | None:
    """Explain two tensors that both scripts pass to one operation in another order, such as the state as the input."""
    targets = None if LOSS in (name_a, name_b) else _find_targets(pair, name_a, name_b)
    if targets is None:
        return None
    traces, (number_a, number_b) = targets
    matches = match_tensors(pair, traces)
    if matches.are_equal(number_a, number_b):
        return None
    users = [
        [x for x in trace["operations"] if number in x["inputs"]][:MOST_COMPARED]
        for trace, number in zip(traces, (number_a, number_b), strict=True)
    ]
    for of_a, of_b in product(*users):
        has_other_in_a = any(matches.are_equal(x, number_b) for x in of_a["inputs"])
        has_other_in_b = any(matches.are_equal(number_a, x) for x in of_b["inputs"])
        if normalize_name(of_a) == normalize_name(of_b) and has_other_in_a and has_other_in_b:
            sides = (SectionSide(trace, number, ()) for trace, number in zip(traces, (number_a, number_b), strict=True))
            words = [describe_lines(side, [x]) for side, x in zip(sides, (of_a, of_b), strict=True)]
            sentence = f"{place}: the same tensors are passed in another order: {words[0]} in A and {words[1]} in B"
            return Explanation("operation", sentence)
    return None


def _explain_other_tensor(pair: RecordPair, place: str, name_a: str, name_b: str) -> Explanation | None:
    """Explain two tensors that both scripts have, if each script passes another one; None if they are equal."""
    targets = None if LOSS in (name_a, name_b) else _find_targets(pair, name_a, name_b)
    if targets is None:
        return None
    traces, numbers = targets
    if match_tensors(pair, traces).are_equal(*numbers):
        return None
    sides = [SectionSide(trace, number, ()) for trace, number in zip(traces, numbers, strict=True)]
    producers = [find_source(side, side.target)[0] for side in sides]
    words = [describe_lines(side, [x]) for side, x in zip(sides, producers, strict=True) if x is not None]
    if len(words) < len(sides):
        return None
    sentence = f"{place}: each script passes another tensor that both have: the result of {words[0]} in A and of "
    return Explanation("operation", f"{sentence}{words[1]} in B")


def _explain_order(pair: RecordPair, place: str, name_a: str, name_b: str) -> Explanation | None:
    """Name the operations that put the numbers of a tensor into another order; None if it has other numbers."""
    words = _describe_order(pair, name_a, name_b)
    if words is None:
        return None
    return Explanation("operation", f"{place}: the same numbers are in another order: {words}", confirmed=False)


def _describe_order(pair: RecordPair, name_a: str, name_b: str) -> str | None:
    """Return words for the operations that order the numbers of a tensor; None if it has other numbers."""
    targets = None if LOSS in (name_a, name_b) else _find_targets(pair, name_a, name_b)  # a loss is one number
    if targets is None:
        return None
    traces, numbers = targets
    matches = match_tensors(pair, traces)
    sides = [SectionSide(trace, number, ()) for trace, number in zip(traces, numbers, strict=True)]
    words = describe_layouts(sides, [[number] for number in numbers])
    return words if words and matches.are_equal(*numbers) else None


def is_rounding(pair: RecordPair, difference: float) -> bool:
    """Check whether a small difference of the losses is rounding that cancelled terms or another optimizer made larger.

    The losses then reduce equal tensors, or begin to differ at weights of another model, which its optimizer changed.

    Args:
        pair: The records.
        difference: The relative difference of the losses.
    """
    if difference > LARGEST_ROUNDING:
        return False
    if reduces_equal_tensors(pair):
        return True
    section = _find_section(pair, LOSS, LOSS)
    return section is not None and find_unrecorded_shape(section) is not None


def add_lines(explanation: Explanation, pair: RecordPair, name_a: str, name_b: str) -> Explanation:
    """Add the lines of the scripts from which a tensor differs first to its explanation, if the operations show them.

    Args:
        explanation: Explanation of the difference.
        pair: The records.
        name_a: The tensor's name in A's record, or LOSS.
        name_b: The tensor's name in B's record, or LOSS.
    """
    section = _find_section(pair, name_a, name_b)
    if section is None:
        words = _describe_order(pair, name_a, name_b)
        return replace(explanation, sentence=f"{explanation.sentence} ({words})") if words else explanation
    operations = section.first or [side.operations[-1] if side.operations else None for side in (section.a, section.b)]
    lines = [
        f"{name}: {locate(operation)}"
        for name, operation in zip("AB", operations, strict=True)
        if operation is not None and operation["file"]
    ]
    return replace(explanation, sentence=f"{explanation.sentence} ({', '.join(lines)})") if lines else explanation


def _find_section(
    pair: RecordPair, name_a: str, name_b: str, *, is_ordered: bool = False, is_known_to_differ: bool = False
) -> DifferingSection | None:  # fmt: skip
    targets = _find_targets(pair, name_a, name_b)
    if targets is None:
        return None
    traces, numbers = targets
    if is_ordered and max(len(trace["tensors"]) for trace in traces) > MOST_TENSORS:
        return None
    matches = match_tensors(pair, traces, is_ordered=is_ordered)
    is_known_to_differ |= (name_a, name_b) == (LOSS, LOSS) and are_other_losses(traces, numbers)
    return find_section(*traces, numbers, matches, is_known_to_differ=is_known_to_differ)


def _find_targets(
    pair: RecordPair, name_a: str, name_b: str
) -> tuple[tuple[OperationTrace, OperationTrace], tuple[int, int]] | None:
    """Return the operations of both sides, and the number of a tensor in each; None if one of them is not recorded."""
    traces = read_traces(pair)
    if traces is None:
        return None
    a, b = (
        trace["loss"] if name == LOSS else trace["names"].get(name)
        for trace, name in zip(traces, (name_a, name_b), strict=True)
    )
    return None if a is None or b is None else (traces, (a, b))
