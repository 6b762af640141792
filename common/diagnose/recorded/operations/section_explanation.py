"""Sentences that name the operations of a differing section from which its tensor differs first.

A is the reference record of a diagnosis, and B the record that is compared with it.
"""

from collections.abc import Sequence

from common.diagnose.findings import Explanation
from common.diagnose.recorded.operations.broadcasts import find_broadcast
from common.diagnose.recorded.operations.differing_section import DifferingSection
from common.diagnose.recorded.operations.earlier_explanation import (
    explain_computed,
    explain_other_parts,
    explain_other_source,
    explain_sources,
)
from common.diagnose.recorded.operations.earlier_tensors import find_earlier_tensors
from common.diagnose.recorded.operations.first_functions import (
    find_other_functions,
    find_other_operand,
    find_repeated_probabilities,
    find_scaled,
    find_unapplied,
)
from common.diagnose.recorded.operations.first_lines import find_other_lines
from common.diagnose.recorded.operations.first_results import (
    find_averaged,
    find_omitted,
    find_other_elements,
    find_other_indices,
    find_other_partners,
    find_unrecorded,
)
from common.diagnose.recorded.operations.layer_outputs import describe_other_output
from common.diagnose.recorded.operations.loss_explanation import (
    explain_broadcast,
    explain_misplaced,
    explain_partial_outputs,
)
from common.diagnose.recorded.operations.masked_parts import drop_masked_parts
from common.diagnose.recorded.operations.number_sources import find_source
from common.diagnose.recorded.operations.operation_names import (
    CHOOSING,
    KEEPING,
    LOSS,
    PROBABILITIES,
    is_selection,
    normalize_name,
)
from common.diagnose.recorded.operations.operation_words import describe_layouts, describe_lines, shorten
from common.diagnose.recorded.operations.other_constants import find_other_constants
from common.diagnose.recorded.operations.packed_sequences import drop_packing, explain_packing
from common.diagnose.recorded.operations.section_words import (
    describe_reorderings,
    describe_sides,
    is_one_line,
)
from common.diagnose.recorded.operations.selections import join_selections
from common.recording.operation_format import Operation

EQUAL_TENSORS = "from tensors with the same numbers"
OTHER_REASONS = "the numbers are in another order, or arguments that are not recorded differ"


def explain_section(section: DifferingSection, place: str) -> Explanation:
    """Name the operations of a section from which its tensor differs first. place: its place in reports."""
    for name, unused in (("A", section.unused_in_a), ("B", section.unused_in_b)):
        if unused:
            sentence = f"{place}: {name} computes nothing from the model's input {shorten(unused[0])}"
            return Explanation("unused_input", sentence, side=name.lower())
    if output := describe_other_output(section.a, section.b, section.matches):
        return Explanation("recurrent_layer", f"{place}: {output}")
    return (
        explain_packing(section, place)
        or explain_broadcast(section, place)
        or _explain_same_operation(section, place)
        or _explain_first_results(section, place)
        or _explain_unrecorded(section, place)
        or _explain_omitted(section, place)
        or explain_misplaced(section, place)
        or _explain_first_functions(section, place)
        or _explain_first_lines(section, place)
        or _explain_other_constants(section, place)
        or _explain_earlier_tensors(section, place)
        or _explain_other_operand(section, place)
        or explain_partial_outputs(section, place)
        or _explain_unaligned(section, place)
    )


def _explain_same_operation(section: DifferingSection, place: str) -> Explanation | None:
    """Explain an operation of one name that returns something else for equal tensors; None if there is none."""
    if section.first is None or not section.has_same_operation or _select_same_elements(section):
        return None
    sentence = f"{place}: {EQUAL_TENSORS} {describe_sides(section, section.first[:1], section.first[1:])}"
    broadcasts = [find_broadcast(side, x) for side, x in zip((section.a, section.b), section.first, strict=True)]
    if not section.has_equal_sizes and any(broadcasts) and not all(broadcasts):
        name, words = next((name, words) for name, words in zip("AB", broadcasts, strict=True) if words)
        return Explanation("operation", f"{sentence}: {words} in {name}, by broadcasting")
    results = [x["outputs"][:1] for x in section.first]
    if section.has_equal_sizes and all(results) and section.matches.are_negated(results[0][0], results[1][0]):
        return Explanation("operation", f"{sentence}: the operands are exchanged, so that the signs are others")
    if not section.has_other_arguments:
        sentence += f": {OTHER_REASONS}{describe_reorderings(section)}"
    return Explanation("operation", sentence, confirmed=section.has_other_arguments and section.has_equal_sizes)


def _select_same_elements(section: DifferingSection) -> bool:
    """Check whether both sides select the same elements of one tensor, one of them in several operations of a loop."""
    assert section.first is not None
    operations = [
        [x for x in side.first_operations if x["inputs"][:1] == first["inputs"][:1]]
        for side, first in zip((section.a, section.b), section.first, strict=True)
    ]
    if not all(map(is_selection, section.first)) or [*map(len, operations)] == [1, 1]:
        return False
    taken = [
        join_selections([side.find_selection(x) for x in of_side])
        for side, of_side in zip((section.a, section.b), operations, strict=True)
    ]
    return taken[0] is not None and taken[0] == taken[1]


def _explain_first_results(section: DifferingSection, place: str) -> Explanation | None:
    """Explain the first results whose difference has a known reason; None if there are none."""
    for find, reason in (
        (find_other_indices, "for the same numbers and other indices,"), (find_other_elements, EQUAL_TENSORS),
    ):  # fmt: skip
        if (selected := find(section.a, section.b, section.matches)) is not None:
            words = describe_sides(section, selected[:1], selected[1:])
            return Explanation("operation", f"{place}: {reason} {words}")
    averaged = find_averaged(section.a, section.b, section.matches)
    if averaged is not None:
        name, words = "AB"[averaged.side], describe_sides(section, averaged.a, averaged.b)
        reason = f"only {name} divides by {averaged.count}, the number of elements of its mean"
        return Explanation("operation", f"{place}: {EQUAL_TENSORS} {words}: {reason}")
    scaled = find_scaled(section.a, section.b, section.matches)
    if scaled is not None:
        words = describe_sides(section, scaled.a, scaled.b)
        reason = f"B's numbers are {scaled.factor:.6g} times A's"
        return Explanation("operation", f"{place}: {EQUAL_TENSORS} {words}: {reason}", confirmed=False)
    combined = find_other_partners(section.a, section.b, section.matches)
    if combined is not None:
        words = describe_sides(section, combined[:1], combined[1:])
        sentence = f"{place}: the same tensors are combined in other pairs: {words}"
        return Explanation("operation", sentence, confirmed=False)
    return None


def find_unrecorded_shape(section: DifferingSection) -> list[int] | None:
    """Return the shape of a tensor that no operation computes, and in which alone the first operations differ."""
    return None if section.first is None else find_unrecorded(section.a, section.b, section.first, section.matches)


def _explain_unrecorded(section: DifferingSection, place: str) -> Explanation | None:
    """Explain an operation of both scripts that receives another tensor, which no operation of the record computes."""
    shape = find_unrecorded_shape(section)
    if section.first is None or shape is None:
        return None
    return explain_other_source(shape, describe_sides(section, section.first[:1], section.first[1:]), place)


def _explain_omitted(section: DifferingSection, place: str) -> Explanation | None:
    """Explain an operation that only one script computes before equal ones; None if there is none."""
    sides = section.a, section.b, section.matches
    omitted = find_omitted(*sides) or find_repeated_probabilities(*sides)
    if omitted is None:
        return None
    shorter = section.b if omitted[0] else section.a
    names = {normalize_name(x) for side in omitted for x in side}
    # The other script may compute it for another term of its loss
    misplaced = explain_misplaced(section, place) if names & {*PROBABILITIES} & shorter.all_names else None
    return misplaced or _explain_one_side(section, place, *omitted, confirmed=True)


def _explain_one_side(
    section: DifferingSection, place: str, a: Sequence[Operation], b: Sequence[Operation], *, confirmed: bool
) -> Explanation:
    """Name operations that only one side computes: the operations of the other side are none."""
    longer, shorter = (section.a, section.b) if a else (section.b, section.a)
    names = {normalize_name(x) for x in (*a, *b)} - KEEPING
    sources = [find_source(shorter, x)[0] for x in {*shorter.received, shorter.target} if shorter.is_matched(x)]
    chosen = [x for x in sources if x is not None and normalize_name(x) in CHOOSING]
    if chosen and names and names <= CHOOSING:  # its result equals another tensor, such as one of two that it chooses
        words = describe_lines(longer, [*a, *b]), describe_lines(shorter, chosen[:1])
        of_a, of_b = words if a else words[::-1]
        sentence = f"{place}: the scripts choose other elements: A computes {of_a}, and B {of_b}"
        return Explanation("operation", sentence, confirmed=False)
    if a:
        return Explanation(
            "missing_operation", f"{place}: B does not compute {describe_lines(section.a, a)}", confirmed=confirmed
        )
    return Explanation(
        "added_operation", f"{place}: B also computes {describe_lines(section.b, b)}", confirmed=confirmed
    )


def _explain_first_functions(section: DifferingSection, place: str) -> Explanation | None:
    """Explain other functions or operands that are applied to the same tensors; None if there are none."""
    sides = section.a, section.b, section.matches
    functions = find_other_functions(*sides)
    if functions is not None:
        reason = "the same functions are applied to other tensors:" if functions.is_exchange else EQUAL_TENSORS
        sentence = f"{place}: {reason} {describe_sides(section, functions.a, functions.b)}"
        return Explanation("operation", sentence, confirmed=not functions.is_exchange)
    unapplied = find_unapplied(*sides)
    if unapplied is not None:
        return _explain_one_side(section, place, *unapplied, confirmed=False)
    return None


def _explain_other_operand(section: DifferingSection, place: str) -> Explanation | None:
    """Explain operations of one name that combine an equal tensor with other ones; None if there are none."""
    operands = find_other_operand(section.a, section.b, section.matches)
    if operands is None:
        return None
    sentence = f"{place}: a tensor is combined with another one: {describe_sides(section, operands[:1], operands[1:])}"
    return Explanation("operation", sentence, confirmed=False)


def _explain_first_lines(section: DifferingSection, place: str) -> Explanation | None:
    """Explain lines that compute other numbers from equal tensors; None if there are none."""
    is_clear = section.list_unaligned() != (section.a.operations, section.b.operations)
    lines = None if is_clear else find_other_lines(section.a, section.b, section.matches)
    if lines is None:
        return None
    return Explanation("operation", f"{place}: {EQUAL_TENSORS} {describe_sides(section, *lines)}")


def _explain_other_constants(section: DifferingSection, place: str) -> Explanation | None:
    """Explain operations that receive other numbers of the code; None if there are none."""
    constants = find_other_constants(section.a, section.b, section.matches)
    if constants is None:
        return None
    sentence = f"{place}: other constants, {constants.words}: {describe_sides(section, constants.a, constants.b)}"
    return Explanation("operation", sentence)


def _explain_earlier_tensors(section: DifferingSection, place: str) -> Explanation | None:
    """Explain tensors from which both scripts compute the differing ones in the same way; None if there are none."""
    beginnings, other_parts = find_earlier_tensors(section.a, section.b, section.matches)
    for beginning in beginnings:
        if (beginning.a, beginning.b) == (section.a.target, section.b.target):
            return None
        earlier = section.narrow(beginning.a, beginning.b)
        if earlier.a.operations or earlier.b.operations:
            explanation = explain_section(earlier, place)
            # Not the claim that one script lacks something
            is_certain = explanation.confirmed or explanation.cause == "operation"
            return explanation if is_certain else explain_computed(earlier, beginning, place) or explanation
        if beginning.users is not None:
            return explain_sources(section, beginning, beginning.users, place)
    return explain_other_parts(section, other_parts[0], place) if other_parts else None


def _explain_unaligned(section: DifferingSection, place: str) -> Explanation:
    """Name the operations that have no counterpart on the other side, or all of them."""
    a, b = drop_packing(*section.list_unaligned())
    begins = not (a and b) and section.begins_with(a or b, 0 if a else 1)
    if not (a and b):
        a, b = drop_masked_parts(section.a, a), drop_masked_parts(section.b, b)
        return _explain_one_side(section, place, a, b, confirmed=begins)
    is_exact = is_one_line(a) and is_one_line(b) and section.begins_at(a, b)
    sentence = f"{place}: {f'{EQUAL_TENSORS} ' if is_exact else ''}{describe_sides(section, a, b)}"
    if place == LOSS and not is_exact:  # two notations of one loss, perhaps of numbers in another order
        words = describe_layouts((section.a, section.b), [[*section.a.received], [*section.b.received]])
        sentence += f"; before, {words}" if words else ""
    # All other operations are aligned, such as a product before a sum and after a mean
    are_other_reductions = sorted(map(normalize_name, [*a, *b])) == ["mean", "sum"]
    return Explanation("operation", sentence, confirmed=is_exact or are_other_reductions)
