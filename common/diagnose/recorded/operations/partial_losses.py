"""Losses of which one script differentiates only a part, such as a term to which the other script adds more.

A is the reference record of a diagnosis, and B the record that is compared with it.
"""

from common.diagnose.findings import Explanation
from common.diagnose.recorded.operations.operation_words import describe_lines
from common.diagnose.recorded.operations.recorded_traces import are_other_losses, match_tensors, read_traces
from common.diagnose.recorded.operations.section_side import SectionSide
from common.diagnose.recorded.record_pair import RecordPair


def explain_partial_loss(pair: RecordPair, place: str) -> Explanation | None:
    """Explain a loss that is equal to a number from which the other script computes its loss; else return None.

    Args:
        pair: The records.
        place: Where the loss is, in reports.
    """
    traces = read_traces(pair)
    a, b = (None, None) if traces is None else (trace["loss"] for trace in traces)
    if traces is None or a is None or b is None or not are_other_losses(traces, (a, b)):
        return None
    losses = a, b
    matches = match_tensors(pair, traces)
    for part, whole in ((1, 0), (0, 1)):
        side = SectionSide(traces[whole], losses[whole], ())
        operations = side.list_leading_to(side.target)
        for producer in operations:
            numbers = [x for x in producer["outputs"] if x != side.target and side.count_elements([x]) == [1]]
            equal = [x for x in numbers if matches.are_equal(*((x, losses[1]) if whole == 0 else (losses[0], x)))]
            users = [x for x in operations if not {*equal}.isdisjoint(x["inputs"])]
            if users:
                names = "AB"[part], "AB"[whole]
                sentence = (
                    f"{place}: {names[0]}'s loss is only a part of {names[1]}'s, which {names[1]} computes with "
                    f"{describe_lines(side, [producer])} and passes to {describe_lines(side, users)}"
                )
                cause = "missing_operation" if part == 1 else "added_operation"
                return Explanation(cause, sentence)
    return None
