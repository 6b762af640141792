"""The operations between the last tensors that two scripts have in common and a tensor that differs.

A is the reference record of a diagnosis, and B the record that is compared with it. Two tensors are equal if they have
the same numbers, in any order of their axes.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from itertools import product

from common.diagnose.recorded.operations.joined_losses import drop_joined
from common.diagnose.recorded.operations.masked_parts import holds_zeros_and_ones
from common.diagnose.recorded.operations.operation_names import is_selection, list_values, normalize_name
from common.diagnose.recorded.operations.section_side import SectionSide
from common.diagnose.recorded.operations.selections import are_other_selections
from common.diagnose.recorded.operations.tensor_matches import MOST_COMPARED, TensorMatches
from common.recording.operation_format import Operation, OperationTrace, TensorStatistics


@dataclass(frozen=True)
class DifferingSection:
    """The operations that lead from equal tensors to a tensor that differs.

    Attributes:
        a: Side A; without operations if B's script has computed an equal tensor, too.
        b: Side B; without operations if A's script has computed an equal tensor, too.
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
        layers = [side.target in x["outputs"] and side.find_layer(x) for side, x in self._zip_first()]
        return bool(layers) and all(layers)

    @property
    def has_weights(self) -> bool:
        """Return whether the first operations receive weights of the models."""
        return any(side.is_weight(tensor) for side, x in self._zip_first() for tensor in x["inputs"])

    @property
    def is_first_comparable(self) -> bool:
        """Return whether the difference begins at the first operations: their inputs are equal, and no result is."""
        # The results of two masks with infinity are not known to differ
        return self.has_equal_inputs and all(side.has_statistics(x["outputs"]) for side, x in self._zip_first())

    @property
    def has_same_operation(self) -> bool:
        """Return whether an operation of one name returns something else for equal tensors."""
        is_one_name = self.first is not None and normalize_name(self.first[0]) == normalize_name(self.first[1])
        is_measured = self.first is not None and self.matches.are_measured(self.first[0]["inputs"])
        return is_one_name and is_measured and self.is_first_comparable

    @property
    def has_other_arguments(self) -> bool:
        """Return whether the first operations have other recorded arguments or other numbers of the code.

        Indices are others if they surely select other elements.
        """
        if self.first is None:
            return False
        of_a, of_b = self.first
        are_others = are_other_selections(self.a.find_selection(of_a), self.b.find_selection(of_b))
        if are_others or is_selection(of_a) or is_selection(of_b):
            return are_others
        has_other_values = list_values(of_a) != list_values(of_b)
        return has_other_values or self.a.list_numbers(of_a) != self.b.list_numbers(of_b)

    @property
    def has_equal_sizes(self) -> bool:
        """Return whether the results of the first operations have the same sizes.

        If the sizes differ, one script may reduce an array in several steps.
        """
        counts = [side.count_elements(x["outputs"]) for side, x in self._zip_first()]
        return bool(counts) and counts[0] == counts[1]

    def _zip_first(self) -> list[tuple[SectionSide, Operation]]:
        """Return both sides with their first operation; nothing if there are none."""
        return [*zip((self.a, self.b), self.first or (), strict=self.first is not None)]

    @property
    def reorderings(self) -> tuple[list[Operation], list[Operation]]:
        """The operations of each side before the first ones that change the order of numbers as none of the other's."""
        if self.first is None:
            return [], []
        a, b = (side.list_reorderings(x) for side, x in zip((self.a, self.b), self.first, strict=True))
        of_a, of_b = (
            [side.find_selection(operation) for operation in operations]
            for side, operations in ((self.a, a), (self.b, b))
        )
        return (
            [x for x, taken in zip(a, of_a, strict=True) if all(are_other_selections(taken, y) for y in of_b)],
            [x for x, taken in zip(b, of_b, strict=True) if all(are_other_selections(taken, y) for y in of_a)],
        )

    def narrow(self, tensor_a: int, tensor_b: int) -> "DifferingSection":
        """Return the part of the section that leads to two tensors that differ."""
        a, b = self.a.narrow(tensor_a), self.b.narrow(tensor_b)
        first, has_equal_inputs = _find_first(a, b, self.matches)
        return DifferingSection(a, b, first, has_equal_inputs, (), (), self.matches)

    def begins_with(self, operations: Sequence[Operation], side: int) -> bool:
        """Check whether the difference begins at operations that have no counterpart: the other side omits them.

        The other side then computes its next operation from a tensor that one of the omitted operations receives, or
        it computes nothing else.

        Args:
            operations: The operations.
            side: The side that computes them: 0 or 1.
        """
        longer, shorter = (self.a, self.b)[side], (self.b, self.a)[side]
        if not shorter.operations:
            omitted, following = [*longer.received], [shorter.target]
        elif all(operation in operations for operation in longer.first_operations):
            omitted = [x for operation in operations for x in longer.list_tensors(operation)]
            following = [x for operation in shorter.first_operations for x in shorter.list_tensors(operation)]
        else:
            return False
        return self._share_tensor(*((following, omitted) if side else (omitted, following)))

    def begins_at(self, a: Sequence[Operation], b: Sequence[Operation]) -> bool:
        """Check whether the difference begins at operations of both sides: their first ones receive equal tensors."""
        has_first = bool(a and b) and a[0] in self.a.first_operations and b[0] in self.b.first_operations
        return has_first and self._share_tensor(self.a.list_tensors(a[0]), self.b.list_tensors(b[0]))

    def _share_tensor(self, a: Sequence[int], b: Sequence[int]) -> bool:
        return self.matches.count_equal(a, b)[0] > 0

    def list_unaligned(self) -> tuple[list[Operation], list[Operation]]:
        """Return the operations of each side that have no counterpart of the same name in the other side's order.

        Return all operations if all have a counterpart: the settings or the tensors of some then differ. Also return
        all if an operation without a counterpart has the name of an operation with a counterpart: the other side may
        lack either of the two.
        """
        names_a, names_b = ([normalize_name(x) for x in side.operations] for side in (self.a, self.b))
        remaining: list[list[Operation | None]] = [[*self.a.operations], [*self.b.operations]]
        for block in SequenceMatcher(None, names_a, names_b, autojunk=False).get_matching_blocks():
            for operations, start in zip(remaining, block[:2], strict=True):
                operations[start : start + block.size] = [None] * block.size
        a, b = ([operation for operation in operations if operation is not None] for operations in remaining)
        a, b = drop_joined(a, b), drop_joined(b, a)
        shared = {*names_a} & {*names_b}
        is_clear = bool(a or b) and shared.isdisjoint(normalize_name(operation) for operation in (*a, *b))
        return (a, b) if is_clear else (self.a.operations, self.b.operations)


def find_section(
    trace_a: OperationTrace, trace_b: OperationTrace, targets: tuple[int, int], matches: TensorMatches,
    *, is_known_to_differ: bool = False,
) -> DifferingSection | None:  # fmt: skip
    """Find the operations that lead to a tensor that differs.

    Args:
        trace_a: The operations of A.
        trace_b: The operations of B.
        targets: The numbers of the tensor in A and of its counterpart in B.
        matches: The tensors that are equal.
        is_known_to_differ: Whether the two tensors differ, though perhaps by less than the tolerance of the matches.

    Returns:
        The operations; None if the tensors have the same numbers, or if the operations do not show the difference.
    """
    are_alike = matches.are_equal(*targets)
    if are_alike and not is_known_to_differ:
        return None
    chances = [{x} for x in targets] if are_alike else _list_chance_matches(targets, matches)
    a, b = (
        SectionSide(trace, target, matched - _list_choices(trace) - chance)
        for trace, target, matched, chance in zip((trace_a, trace_b), targets, matches.matched, chances, strict=True)
    )
    if not a.operations and not b.operations:
        return None
    first, has_equal_inputs = _find_first(a, b, matches)
    return DifferingSection(
        a,
        b,
        first,
        has_equal_inputs,
        unused_in_a=_list_unused(b, a, lambda received, used: matches.are_equal(used, received)),
        unused_in_b=_list_unused(a, b, matches.are_equal),
        matches=matches,
    )


def _list_chance_matches(targets: tuple[int, int], matches: TensorMatches) -> list[set[int]]:
    """Return the target of each side if it only seems to equal a tensor of the other side, else nothing."""
    return [
        {target} if matches.is_matched_by_chance(target, is_of_a=is_of_a) else set()
        for target, is_of_a in zip(targets, (True, False), strict=True)
    ]


def _list_choices(trace: OperationTrace) -> set[int]:
    """Return the tensors of zeros and ones, or of integers, that are computed from other numbers, as one-hot codes are.

    Their statistics do not show which elements are chosen. Those of the batch and of buffers are not computed from
    weights, so that they are the same in both scripts.
    """
    tensors, computed = trace["tensors"], SectionSide(trace, 0, ()).computed_from_weights
    choices: set[int] = set()
    for operation in trace["operations"]:
        inputs = operation["inputs"]
        if not choices.isdisjoint(inputs) or any(x in computed and not _is_choice(tensors[x]) for x in inputs):
            choices.update(x for x in operation["outputs"] if _is_choice(tensors[x]))
    return choices


def _is_choice(tensor: TensorStatistics) -> bool:
    return "float" not in tensor["dtype"] or holds_zeros_and_ones(tensor)


def _list_unused(user: SectionSide, other: SectionSide, are_equal: Callable[[int, int], bool]) -> list[str]:
    """Return the inputs of the model that a side's operations receive, and no operation of the other side.

    Args:
        user: The side that uses them.
        other: The other side.
        are_equal: Compares a tensor of the user with one of the other side.
    """
    if not other.has_equal_model_inputs:
        return []
    used = other.used_tensors
    return [name for name, x in user.received_inputs.items() if not any(are_equal(x, y) for y in used)]


def _find_first(
    a: SectionSide, b: SectionSide, matches: TensorMatches
) -> tuple[tuple[Operation, Operation] | None, bool]:
    """Return the first operations of both sides with the most inputs that are equal, and whether all of them are.

    An operation of one name whose inputs are all equal comes before others, then a selection of other elements. The
    operations are None if no two of them have an equal input.
    """
    scores = []
    for of_a in a.first_operations[:MOST_COMPARED]:
        for of_b in b.first_operations[:MOST_COMPARED]:
            equal, others = matches.count_equal(a.list_tensors(of_a), b.list_tensors(of_b))
            is_same = bool(equal) and not others and normalize_name(of_a) == normalize_name(of_b)
            selects_same = not are_other_selections(a.find_selection(of_a), b.find_selection(of_b))
            scores.append(((is_same, equal, -others, selects_same), (of_a, of_b)))
    (is_same, equal, others, _), pair = max(scores, key=lambda score: score[0], default=((False, 0, 0, False), None))
    for of_a, of_b in product(a.first_losses[:MOST_COMPARED], b.first_losses[:MOST_COMPARED]) if not is_same else ():
        equal_floats, other_floats = matches.count_equal(a.list_floats(of_a), b.list_floats(of_b))
        if normalize_name(of_a) == normalize_name(of_b) and equal_floats and not other_floats:
            return (of_a, of_b), True
    if not is_same and (replaced := _find_replaced(a, b, matches.are_equal)) is not None:
        return replaced, True
    if not is_same and (replaced := _find_replaced(b, a, lambda x, y: matches.are_equal(y, x))) is not None:
        return (replaced[1], replaced[0]), True
    return (pair, not others) if equal else (None, False)


def _find_replaced(
    user: SectionSide, other: SectionSide, are_equal: Callable[[int, int], bool]
) -> tuple[Operation, Operation] | None:
    """Return a selection that only one side uses, and the first operation that selects differently on the other side.

    The other side may also have the selected elements, but need them for something else.

    Args:
        user: The side that uses the selection.
        other: The other side.
        are_equal: Compares a tensor of the user with one of the other side.
    """
    for selection in [*filter(is_selection, user.list_received_results())][:MOST_COMPARED]:
        (taken, *_), elements = selection["inputs"], user.find_selection(selection)
        is_used = any(are_equal(output, x) for output in selection["outputs"] for x in other.received)
        for first in other.first_operations[:MOST_COMPARED] if not is_used else ():
            is_other = is_selection(first) and are_other_selections(elements, other.find_selection(first))
            if is_other and are_equal(taken, first["inputs"][0]):
                return selection, first
    return None
