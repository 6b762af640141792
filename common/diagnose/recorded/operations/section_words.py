"""Words for the operations of both sides of a differing section.

A is the reference record of a diagnosis, and B the record that is compared with it.
"""

from collections.abc import Sequence

from common.diagnose.recorded.operations.differing_section import DifferingSection
from common.diagnose.recorded.operations.operation_words import describe_layouts, describe_lines
from common.recording.operation_format import Operation


def describe_sides(section: DifferingSection, a: Sequence[Operation], b: Sequence[Operation]) -> str:
    """Return words for an operation or several of each side."""
    return f"A computes {describe_lines(section.a, a)}, and B {describe_lines(section.b, b)}"


def describe_sources(
    section: DifferingSection, tensors: tuple[int, int], users: tuple[Operation, Operation]
) -> str:  # fmt: skip
    """Return words for the operations that compute two tensors, unless both belong to the lines of their users."""
    results, are_elsewhere = [], []
    for side, tensor, user in zip((section.a, section.b), tensors, users, strict=True):
        producer = side.find_producer(tensor)
        if producer is None:
            return ""
        results.append(describe_lines(side, [producer]))
        are_elsewhere.append(
            not producer["line"] or (producer["file"], producer["line"]) != (user["file"], user["line"])
        )
    return f", of the result of {results[0]} and of {results[1]}" if any(are_elsewhere) else ""


def describe_reorderings(section: DifferingSection) -> str:
    """Return words for the operations through which only one script changes the order of numbers."""
    sides = zip("AB", (section.a, section.b), section.reorderings, strict=True)
    words = [f"{name} computes {describe_lines(side, operations)}" for name, side, operations in sides if operations]
    if not words and section.first is not None:
        inputs = [operation["inputs"] for operation in section.first]
        words = [*filter(None, [describe_layouts((section.a, section.b), inputs)])]
    return f"; before, {' and '.join(words)}" if words else ""


def is_one_line(operations: Sequence[Operation]) -> bool:
    """Check whether one line of the script calls all operations, or whether it is a single one."""
    lines = {(operation["file"], operation["line"]) for operation in operations}
    return len(operations) == 1 or (len(lines) == 1 and bool(operations[0]["file"]))
