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
MOST_COMPARED = 64  # operations of a side, and tensors of an operation, that are compared with each of the other side's


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
    def has_equal_model_inputs(self) -> bool:
        """Return whether each input of the model has an equal tensor on the other side.

        Another input may be one of the other side's in another form, such as a mask that the script has inverted.
        """
        return all(x in self._matched for name, x in self._trace["names"].items() if name.startswith(INPUT))

    @property
    def used_tensors(self) -> set[int]:
        """The tensors that any operation of the script receives."""
        return {tensor for operation in self._trace["operations"] for tensor in operation["inputs"]}

    @cached_property
    def computed_from_weights(self) -> frozenset[int]:
        """The weights of the model, and the tensors that are computed from them."""
        tensors = {number for name, number in self._trace["names"].items() if name.startswith("weight/")}
        for operation in self._trace["operations"]:
            if not tensors.isdisjoint(operation["inputs"]):
                tensors.update(operation["outputs"])
        return frozenset(tensors)

    def has_statistics(self, tensors: Sequence[int]) -> bool:
        """Check whether all of several tensors hold finite numbers, so that they can be compared."""
        return all(self._trace["tensors"][tensor]["norm"] is not None for tensor in tensors)

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
        first: The first operations of both sides with the most inputs that are equal; None if no two have one.
        has_equal_inputs: Whether all tensors that the two first operations receive are equal.
        unused_in_a: Inputs of the model that B's operations receive, and none of A's in its whole trace.
        unused_in_b: The same with the sides exchanged.
        matches: The tensors that are equal.
    """

    a: SectionSide
    b: SectionSide
    first: tuple[Operation, Operation] | None
    has_equal_inputs: bool
    unused_in_a: Sequence[str]
    unused_in_b: Sequence[str]
    matches: TensorMatches

    @property
    def is_layer(self) -> bool:
        """Return whether both sides compute the tensor by one layer from equal tensors."""
        layers = [
            side.target in operation["outputs"] and side.find_layer(operation)
            for side, operation in zip((self.a, self.b), self.first or (), strict=self.first is not None)
        ]
        return bool(layers) and all(layers)

    @property
    def is_first_comparable(self) -> bool:
        """Return whether the difference begins at the first operations: their inputs are equal, and no result is."""
        sides = zip((self.a, self.b), self.first or (), strict=self.first is not None)
        # The results of two masks with infinity are not known to differ
        return self.has_equal_inputs and all(side.has_statistics(x["outputs"]) for side, x in sides)

    @property
    def has_other_function(self) -> bool:
        """Return whether the first operations of both sides have other names or other recorded arguments."""
        if self.first is None:
            return False
        of_a, of_b = self.first
        return (
            _normalize_name(of_a) != _normalize_name(of_b)
            or of_a["arguments"] != of_b["arguments"]
            or self.a.list_numbers(of_a) != self.b.list_numbers(of_b)
        )

    def begins_with(self, operations: Sequence[Operation], side: int) -> bool:
        """Check whether the difference begins at operations that have no counterpart: the other side omits them.

        It then computes the next operation from a tensor that one of them receives.

        Args:
            operations: The operations.
            side: The side that computes them: 0 or 1.
        """
        own, other = (self.a, self.b)[side], (self.b, self.a)[side]
        if not other.operations or not all(operation in operations for operation in own.first_operations):
            return not other.operations and bool(operations)  # the other side receives the tensor itself
        omitted = [tensor for operation in operations for tensor in own.list_tensors(operation)]
        following = [tensor for operation in other.first_operations for tensor in other.list_tensors(operation)]
        pair = (following, omitted) if side else (omitted, following)
        return _count_equal(*pair, self.matches)[0] > 0

    def list_unaligned(self) -> tuple[list[Operation], list[Operation]]:
        """Return the operations of each side that have no counterpart of the same name in the order of the other's.

        If all have one, the settings or the tensors of some differ, and all operations are returned. They are returned
        as well if an operation without a counterpart has the name of one with a counterpart: either may be the one.
        """
        names_a, names_b = ([_normalize_name(x) for x in side.operations] for side in (self.a, self.b))
        remaining: list[list[Operation | None]] = [[*self.a.operations], [*self.b.operations]]
        for block in SequenceMatcher(None, names_a, names_b, autojunk=False).get_matching_blocks():
            for operations, start in zip(remaining, block[:2], strict=True):
                operations[start : start + block.size] = [None] * block.size
        a, b = ([operation for operation in operations if operation is not None] for operations in remaining)
        shared = {*names_a} & {*names_b}
        is_clear = bool(a or b) and shared.isdisjoint(_normalize_name(operation) for operation in (*a, *b))
        return (a, b) if is_clear else (self.a.operations, self.b.operations)


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
    first, has_equal_inputs = _find_first(a, b, matches)
    return DifferingSection(
        a,
        b,
        first,
        has_equal_inputs,
        unused_in_a=[
            name
            for name, y in b.received_inputs.items()
            if a.has_equal_model_inputs and not any(matches.are_equal(x, y) for x in used_in_a)
        ],
        unused_in_b=[
            name
            for name, x in a.received_inputs.items()
            if b.has_equal_model_inputs and not any(matches.are_equal(x, y) for y in used_in_b)
        ],
        matches=matches,
    )


def _find_first(
    a: SectionSide, b: SectionSide, matches: TensorMatches
) -> tuple[tuple[Operation, Operation] | None, bool]:
    """Return the first operations of both sides with the most inputs that are equal, and whether all of them are.

    The operations are None if no two of them have an equal input.
    """
    scores = [
        (_count_equal(a.list_tensors(of_a), b.list_tensors(of_b), matches), (of_a, of_b))
        for of_a in a.first_operations[:MOST_COMPARED]
        for of_b in b.first_operations[:MOST_COMPARED]
    ]
    (equal, others), best = max(scores, key=lambda score: score[0], default=((0, 0), None))
    return (best, not others) if equal else (None, False)


def _count_equal(a: Sequence[int], b: Sequence[int], matches: TensorMatches) -> tuple[int, int]:
    """Return how many tensors of two lists are equal, and minus the number of the others."""
    remaining = [*b[:MOST_COMPARED]]
    for tensor in a[:MOST_COMPARED]:
        counterpart = next((other for other in remaining if matches.are_equal(tensor, other)), None)
        if counterpart is not None:
            remaining.remove(counterpart)
    equal = len(b[:MOST_COMPARED]) - len(remaining)
    return equal, 2 * equal - len(a) - len(b)
