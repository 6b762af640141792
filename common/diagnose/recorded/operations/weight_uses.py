"""Weights that two scripts use in different numbers of operations though they compute the same loss.

A script may use a number in place of a weight that has this value, so that the weight's gradient lacks a part.
"""

from collections import Counter

from common.diagnose.findings import Explanation
from common.diagnose.recorded.operations.differing_section import DifferingSection
from common.diagnose.recorded.operations.operation_names import normalize_name
from common.diagnose.recorded.operations.operation_words import describe_lines, shorten
from common.diagnose.recorded.operations.recorded_traces import read_traces
from common.diagnose.recorded.operations.section_side import SectionSide
from common.diagnose.recorded.operations.tensor_matches import MOST_COMPARED
from common.diagnose.recorded.record_pair import RecordPair
from common.diagnose.recorded.recorded_side import RecordedSide
from common.recording.operation_format import Operation, OperationTrace


def explain_weight_uses(pair: RecordPair, title: str) -> Explanation | None:
    """Name the operations that use a weight, if one script has more of them; else return None.

    Args:
        pair: The records.
        title: Title of the weight in the pair.
    """
    traces = read_traces(pair)
    match = next((x for x in pair.models.variables if x.title == title), None)
    if traces is None or match is None or len(match.names_a) != 1 or len(match.names_b) != 1:
        return None
    sides = [SectionSide(trace, trace["loss"] or 0, ()) for trace in traces]
    uses = [_list_uses(trace, name) for trace, name in zip(traces, (match.names_a[0], match.names_b[0]), strict=True)]
    if not all(uses) or len(uses[0]) == len(uses[1]):
        return None
    words = [
        f"in {len(x)} {'operations' if len(x) > 1 else 'operation'} of {name} ({describe_lines(side, x)})"
        for name, side, x in zip("AB", sides, uses, strict=True)
    ]
    return Explanation("gradient", f"it is used {' and '.join(words)}")


def explain_other_weights(pair: RecordPair, section: DifferingSection, place: str) -> Explanation | None:
    """Explain an operation that receives a weight in one script, and another weight in the other script; else None.

    Args:
        pair: The records.
        section: The operations that lead to the tensor that differs.
        place: Where the tensor is, in reports.
    """
    uses_a, uses_b = (
        [
            (normalize_name(x), name)
            for x in side.first_operations[:MOST_COMPARED]
            for name in _name_weights(recorded, x)
        ]
        for side, recorded in ((section.a, pair.a), (section.b, pair.b))
    )
    used_a, used_b = ({name for _, name in uses} for uses in (uses_a, uses_b))
    # A weight whose counterpart the other script uses as well, perhaps in another operation, is not exchanged
    common_a = {name for match in pair.models.variables if {*match.names_b} & used_b for name in match.names_a}
    common_b = {name for match in pair.models.variables if {*match.names_a} & used_a for name in match.names_b}
    for operation_a, name_a in uses_a:
        names_b = [name for operation, name in uses_b if operation == operation_a and name not in common_b]
        if names_b and name_a not in common_a:
            sentence = f"{place}: {operation_a} of other weights: {shorten(name_a)} in A and {shorten(names_b[0])} in B"
            return Explanation("operation", sentence)
    return None


def _name_weights(side: RecordedSide, operation: Operation) -> list[str]:
    """Return the names of the weights that an operation receives."""
    trace = side.record.ranks[0].operations
    names = trace["names"].items() if trace is not None else ()
    prefix = "weight/"
    return [name.removeprefix(prefix) for name, x in names if name.startswith(prefix) and x in operation["inputs"]]


def describe_shared_weights(pair: RecordPair, side: str, *, lacks_uses: bool = False) -> str:
    """Return words for the first weight that one script uses more often; empty if its layers are called equally often.

    Args:
        pair: The records.
        side: The name of the side whose script uses the weight more often: "a" or "b".
        lacks_uses: Whether this script must also use a weight less often than the other one: a loop uses all weights of
            its layers more often than one call for a whole sequence.
    """
    a, b = (x.record.ranks[0].operations for x in pair.sides)
    if a is None or b is None:
        return ""
    counts_a, counts_b = (
        Counter(x for operation in trace["operations"] for x in {*operation["inputs"]}) for trace in (a, b)
    )
    uses: list[tuple[str, int, int]] = []
    for match in pair.models.variables:
        number_a, number_b = a["names"].get(f"weight/{match.names_a[0]}"), b["names"].get(f"weight/{match.names_b[0]}")
        count_a = 0 if number_a is None else counts_a[number_a]
        count_b = 0 if number_b is None else counts_b[number_b]
        uses.append((match.title, count_a, count_b) if side == "a" else (match.title, count_b, count_a))
    if lacks_uses and all(count >= fewer for _, count, fewer in uses):
        return ""
    words = (f"{side.upper()} uses {title} {count} times, and the other script {fewer}"
             for title, count, fewer in uses if count > fewer > 0)  # fmt: skip
    return next(words, "")


def _list_uses(trace: OperationTrace, name: str) -> list[Operation]:
    """Return the operations that receive a weight."""
    number = trace["names"].get(f"weight/{name}")
    return [x for x in trace["operations"] if number is not None and number in x["inputs"]]
