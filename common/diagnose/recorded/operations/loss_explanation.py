"""Sentences that name the operations of a differing section by which two scripts compute other losses.

A is the reference record of a diagnosis, and B the record that is compared with it.
"""

from common.diagnose.findings import Explanation
from common.diagnose.recorded.operations.broadcasts import find_broadcast
from common.diagnose.recorded.operations.differing_section import DifferingSection
from common.diagnose.recorded.operations.first_functions import find_misplaced_probabilities
from common.diagnose.recorded.operations.first_results import find_partial_outputs
from common.diagnose.recorded.operations.operation_names import LOSS, NLL_LOSS, normalize_name
from common.diagnose.recorded.operations.operation_words import describe_lines


def explain_broadcast(section: DifferingSection, place: str) -> Explanation | None:
    """Explain a loss that one script computes from operands of other ranks, so that they are broadcast; else None."""
    if section.first is None or place != LOSS:
        return None
    sides = section.a, section.b
    broadcasts = [find_broadcast(side, x) for side, x in zip(sides, section.first, strict=True)]
    index = next((index for index, x in enumerate(broadcasts) if x is not None and x.is_suspicious), None)
    if index is None or broadcasts[1 - index] is not None:
        return None
    words = describe_lines(sides[index], [section.first[index]])
    sentence = f"{place}: {broadcasts[index]} in {'AB'[index]}, by broadcasting, in {words}"
    return Explanation("broadcast_in_loss", sentence, side="ab"[index])


def explain_misplaced(section: DifferingSection, place: str) -> Explanation | None:
    """Explain probabilities that only one script passes to a loss of logits or logarithms; None if there are none."""
    misplaced = [find_misplaced_probabilities(side) for side in (section.a, section.b)]
    if all(misplaced) or not any(misplaced):
        return None
    name, side = ("A", section.a) if misplaced[0] else ("B", section.b)
    function, loss = next(filter(None, misplaced))
    words, loss_words = (describe_lines(side, [operation]) for operation in (function, loss))
    taken = "logarithms of probabilities" if normalize_name(loss) == NLL_LOSS else "logits"
    sentence = f"{place}: {name} passes the result of {words} to {loss_words}, which takes {taken}"
    return Explanation("operation", sentence, side=name.lower())


def explain_partial_outputs(section: DifferingSection, place: str) -> Explanation | None:
    """Explain a loss that one script computes from a slice of what the other script takes; None if it does not."""
    partial = find_partial_outputs(section.a, section.b) if place == LOSS else None
    if partial is None:
        return None
    name, side, slices = next(x for x in zip("AB", (section.a, section.b), partial, strict=True) if x[2])
    shapes = [side.get_statistics(slices[0][key][0])["shape"] for key in ("inputs", "outputs")]
    sentence = f"{place}: {name} takes a part {shapes[1]} of {shapes[0]}, by {describe_lines(side, slices)}, and "
    return Explanation("operation", f"{sentence}{'BA'['AB'.index(name)]} takes all", confirmed=False, side=name.lower())
