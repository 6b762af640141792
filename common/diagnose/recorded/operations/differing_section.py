"""The operations between the last tensors that two scripts have in common and a tensor that differs.

A is the reference record of a diagnosis, and B the record that is compared with it. Two tensors are equal if they have
the same numbers, in any order of their axes.
"""

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from functools import cached_property

from common.diagnose.recorded.operations.tensor_matches import TensorMatches
from common.recording.operation_format import Operation, OperationTrace

INPUT = "batch/0/input/"


class SectionSide:
    """One side of a differing section.

    Attributes:
        target: The number of the tensor that differs.
    """

    def __init__(self, trace: OperationTrace, target: int, matched: Collection[int]) -> None:
        """Prepare the side.

        Args:
            trace: The operations of the script.
            target: The number of the tensor that differs.
            matched: The numbers of the tensors that have an equal one on the other side.
        """
        self.target = target
        self._trace, self._matched = trace, matched
        self._producers = {
            output: index for index, operation in enumerate(trace["operations"]) for output in operation["outputs"]
        }

    @cached_property
    def operations(self) -> list[Operation]:
        """The operations that lead to the target from tensors with an equal one on the other side, in their order.

        The list is empty if the target itself has an equal one there.
        """
        unvisited, indices = [self.target] if self.target not in self._matched else [], set()
        while unvisited:
            index = self._producers.get(unvisited.pop())
            if index is not None and index not in indices:
                indices.add(index)
                unvisited += [x for x in self._trace["operations"][index]["inputs"] if x not in self._matched]
        return [self._trace["operations"][index] for index in sorted(indices)]

    @property
    def first_operations(self) -> list[Operation]:
        """The operations that receive no result of another one of the section."""
        return [
            operation
            for operation in self.operations
            if all(tensor in self._matched or tensor not in self._producers for tensor in operation["inputs"])
        ]

    @property
    def received(self) -> set[int]:
        """The tensors that the operations receive."""
        return {tensor for operation in self.operations for tensor in operation["inputs"]}

    @property
    def received_inputs(self) -> dict[str, int]:
        """The inputs of the model that the operations receive: the number of each tensor by its name."""
        names = self._trace["names"].items()
        return {
            name.removeprefix(INPUT): number
            for name, number in names
            if name.startswith(INPUT) and number in self.received
        }

    @property
    def used_tensors(self) -> set[int]:
        """The tensors that any operation of the script receives."""
        return {tensor for operation in self._trace["operations"] for tensor in operation["inputs"]}

    def list_tensors(self, operation: Operation) -> list[int]:
        """Return the inputs of an operation that are no numbers of the code."""
        return [tensor for tensor in operation["inputs"] if not self._is_number(tensor)]

    def list_numbers(self, operation: Operation) -> list[float]:
        """Return the numbers of the code that an operation receives as tensors, such as 0.5 in `0.5 * x`."""
        values = [self._trace["tensors"][tensor]["sum"] for tensor in operation["inputs"] if self._is_number(tensor)]
        return [value for value in values if value is not None]

    def find_layer(self, operation: Operation) -> str:
        """Return the path of the layer that an operation is; empty if it is a function."""
        paths = {
            number: name.removeprefix("layer/").removesuffix("/output")
            for name, number in reversed(self._trace["names"].items())  # of a layer before those that contain it
            if name.startswith("layer/") and name.endswith("/output")
        }
        return next((paths[output] for output in operation["outputs"] if output in paths), "")

    def _is_number(self, tensor: int) -> bool:
        is_single = math.prod(self._trace["tensors"][tensor]["shape"]) == 1
        return is_single and tensor not in self._producers and tensor not in self._trace["names"].values()


@dataclass(frozen=True)
class DifferingSection:
    """The operations that lead from equal tensors to a tensor that differs.

    Attributes:
        a: Side A; without operations if one of B's receives A's tensor.
        b: Side B; without operations if one of A's receives B's tensor.
        first: The first operations of both sides that receive equal tensors; None if no two of them do.
        unused_in_a: Inputs of the model that B's operations receive, and none of A's in its whole trace.
        unused_in_b: The same with the sides exchanged.
    """

    a: SectionSide
    b: SectionSide
    first: tuple[Operation, Operation] | None
    unused_in_a: Sequence[str]
    unused_in_b: Sequence[str]

    @property
    def is_layer(self) -> bool:
        """Return whether both sides compute the tensor by one layer from equal tensors."""
        layers = [
            side.target in operation["outputs"] and side.find_layer(operation)
            for side, operation in zip((self.a, self.b), self.first or (), strict=self.first is not None)
        ]
        return bool(layers) and all(layers)

    def list_unaligned(self) -> tuple[list[Operation], list[Operation]]:
        """Return the operations of each side that have no counterpart of the same name in the order of the other's.

        If all have one, the settings or the tensors of some differ, and all operations are returned.
        """
        names_a, names_b = ([_normalize_name(x) for x in side.operations] for side in (self.a, self.b))
        remaining: list[list[Operation | None]] = [[*self.a.operations], [*self.b.operations]]
        for block in SequenceMatcher(None, names_a, names_b, autojunk=False).get_matching_blocks():
            for operations, start in zip(remaining, block[:2], strict=True):
                operations[start : start + block.size] = [None] * block.size
        a, b = ([operation for operation in operations if operation is not None] for operations in remaining)
        return (a, b) if a or b else (self.a.operations, self.b.operations)


def _normalize_name(operation: Operation) -> str:
    """Return the name of an operation without the differences of spelling between the frameworks."""
    return operation["name"].replace("_", "").lower().removesuffix("v2")


def find_section(
    trace_a: OperationTrace, trace_b: OperationTrace, targets: tuple[int, int], tolerance: float
) -> DifferingSection | None:
    """Find the operations that lead to a tensor that differs.

    Args:
        trace_a: The operations of A.
        trace_b: The operations of B.
        targets: The numbers of the tensor in A and of its counterpart in B.
        tolerance: Largest relative difference of statistics that count as equal.

    Returns:
        The operations; None if the tensors have the same numbers, or if the operations do not show the difference.
    """
    matches = TensorMatches(trace_a["tensors"], trace_b["tensors"], tolerance)
    if matches.are_equal(*targets):
        return None
    a, b = (
        SectionSide(trace, target, matched)
        for trace, target, matched in zip((trace_a, trace_b), targets, matches.matched, strict=True)
    )
    if not (a.operations or any(matches.are_equal(a.target, tensor) for tensor in b.received)):
        return None
    if not (b.operations or any(matches.are_equal(tensor, b.target) for tensor in a.received)):
        return None
    used_in_a, used_in_b = a.used_tensors, b.used_tensors
    return DifferingSection(
        a,
        b,
        first=_find_first(a, b, matches),
        unused_in_a=[
            name for name, y in b.received_inputs.items() if not any(matches.are_equal(x, y) for x in used_in_a)
        ],
        unused_in_b=[
            name for name, x in a.received_inputs.items() if not any(matches.are_equal(x, y) for y in used_in_b)
        ],
    )


def _find_first(a: SectionSide, b: SectionSide, matches: TensorMatches) -> tuple[Operation, Operation] | None:
    """Return the first operations of both sides with the most inputs that are equal; None if no two have one."""
    scores = [
        (_count_equal(a.list_tensors(of_a), b.list_tensors(of_b), matches), (of_a, of_b))
        for of_a in a.first_operations
        for of_b in b.first_operations
    ]
    (equal, _), best = max(scores, key=lambda score: score[0], default=((0, 0), None))
    return best if equal else None


def _count_equal(a: Sequence[int], b: Sequence[int], matches: TensorMatches) -> tuple[int, int]:
    """Return how many tensors of two lists are equal, and minus the number of the others."""
    remaining = [*b]
    for tensor in a:
        counterpart = next((other for other in remaining if matches.are_equal(tensor, other)), None)
        if counterpart is not None:
            remaining.remove(counterpart)
    equal = len(b) - len(remaining)
    return equal, 2 * equal - len(a) - len(b)
