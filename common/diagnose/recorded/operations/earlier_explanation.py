"""Sentences about the tensors with which the difference of later ones begins.

A is the reference record of a diagnosis, and B the record that is compared with it.
"""

import math

from common.diagnose.findings import Explanation
from common.diagnose.recorded.operations.broadcasts import LOSSES
from common.diagnose.recorded.operations.differing_section import DifferingSection
from common.diagnose.recorded.operations.earlier_tensors import EarlierTensors, OtherParts
from common.diagnose.recorded.operations.operation_names import ELEMENTWISE, LOSS, normalize_name
from common.diagnose.recorded.operations.operation_words import describe_lines
from common.diagnose.recorded.operations.section_words import describe_sides, describe_sources
from common.recording.operation_format import Operation


def explain_sources(
    section: DifferingSection, beginning: EarlierTensors, users: tuple[Operation, Operation], place: str
) -> Explanation:
    """Explain tensors that no operation of the section computes, and that two operations receive alike.

    Args:
        section: The section.
        beginning: The tensors.
        users: The operations.
        place: The place of the section's tensor in reports.
    """
    shapes = section.a.get_statistics(beginning.a)["shape"], section.b.get_statistics(beginning.b)["shape"]
    words = describe_sides(section, users[:1], users[1:])
    are_matched = section.a.is_matched(beginning.a) and section.b.is_matched(beginning.b)
    if are_matched or section.a.is_weight(beginning.a) or section.b.is_weight(beginning.b):
        words += describe_sources(section, (beginning.a, beginning.b), users)
        return Explanation("operation", f"{place}: the same operation receives another tensor: {words}")
    if math.prod(shapes[0]) != math.prod(shapes[1]):
        sentence = f"{place}: {words}: a tensor that is not recorded is {shapes[0]} in A and {shapes[1]} in B"
        are_broadcast = place == LOSS and all(normalize_name(x) in (*ELEMENTWISE, *LOSSES) for x in users)
        return Explanation("broadcast_in_loss" if are_broadcast else "operation", sentence)
    return explain_other_source(shapes[0], words, place)


def explain_other_source(shape: list[int], words: str, place: str) -> Explanation:
    """Explain a tensor of a shape that no operation of the record computes. words: the operations that receive it."""
    sentence = f"{place}: {words}: a tensor {shape} that is not recorded has other numbers, "
    sentence += "such as a weight of another model, which its own optimizer has changed"
    return Explanation("other_state_of_loss" if place == LOSS else "operation", sentence, confirmed=False)


def explain_computed(section: DifferingSection, beginning: EarlierTensors, place: str) -> Explanation | None:
    """Explain a tensor that only one script computes, while the other one has it; None if both compute it.

    Args:
        section: The section that leads to the tensors.
        beginning: The tensors, and the operations that receive them.
        place: The place of the section's tensor in reports.
    """
    sides = section.a, section.b
    computing = [side for side in sides if side.operations]
    if beginning.users is None or len(computing) != 1:
        return None
    of_a, of_b = ([*side.received] if side.operations else [side.target] for side in sides)
    if section.matches.count_equal(of_a, of_b)[0]:
        return None  # it only computes something more from the same tensor
    words = describe_sides(section, beginning.users[:1], beginning.users[1:])
    if not all("int" in x.get_statistics(x.target)["dtype"] for x in sides):
        words += describe_sources(section, (beginning.a, beginning.b), beginning.users)
        return Explanation(
            "operation", f"{place}: the same operation receives another tensor: {words}", confirmed=False
        )
    source = describe_lines(computing[0], computing[0].operations[-1:])
    sentence = f"{place}: the same operation receives other indices: {words}; only "
    return Explanation("operation", f"{sentence}{'A' if computing[0] is section.a else 'B'} computes them, by {source}")


def explain_other_parts(section: DifferingSection, parts: OtherParts, place: str) -> Explanation:
    """Explain a tensor of which the scripts count other shares of the positions."""
    words = []
    for name, side, part in zip("AB", (section.a, section.b), parts, strict=True):
        if part is None:
            words.append(f"all in {name}")
            continue
        words.append(f"{part.count} of {part.total} in {name} ({describe_lines(side, [part.operation])})")
    return Explanation("operation", f"{place}: other numbers count of the same tensor: {', and '.join(words)}")
