"""Tensors from which two scripts compute differing tensors in the same way, so that the difference begins before them.

A is the reference record of a diagnosis, and B the record that is compared with it. A `side` is the part of a script
that leads from tensors with an equal one in the other script to a tensor that differs.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from common.diagnose.recorded.operations.masked_parts import MaskedPart, find_masked_part, have_same_share
from common.diagnose.recorded.operations.operation_names import KEEPING, normalize_name, simplify_name
from common.diagnose.recorded.operations.parts import RECURRENT
from common.diagnose.recorded.operations.section_side import SectionSide
from common.diagnose.recorded.operations.tensor_matches import TensorMatches
from common.recording.operation_format import Operation

INVERTING = ("invert", "logicalnot", "bitwisenot")  # operations of masks, in one spelling
MOST_PAIRS = 2_000  # pairs of tensors that are compared on the way back
# Operations of one tensor, in one spelling, that scripts apply in any order, and to terms or to their sum
SCALING = ("mean", "sum", "neg", "mul", "div")
AVERAGES = re.compile(r"(adaptiveavgpool|avgpool|globalaveragepooling|averagepooling)\d?d?")
MAXIMA = re.compile(r"(adaptivemaxpool|maxpool|globalmaxpooling|maxpooling)\d?d?|max")
ANY_ORDER = ("add", "mul", "maximum")  # operations of several tensors that are written in any order
# Losses that PyTorch computes in one operation, as functions of the difference of two tensors
OF_DIFFERENCE = {"mseloss": "square", "squareddifference": "square", "l1loss": "abs"}


class Value(NamedTuple):
    """A number of a script, or the difference of two that a single operation computes on its way to a loss.

    Attributes:
        tensor: The number of the tensor; that of the loss for a difference.
        is_difference: Whether it is the difference that an operation computes first.
    """

    tensor: int
    is_difference: bool = False


class EarlierTensors(NamedTuple):
    """Tensors of two scripts that differ, and with which the difference of later ones begins.

    Attributes:
        a: The tensor of A.
        b: The tensor of B.
        users: The operations of A and of B that receive them; None for tensors that no other ones are computed from.
    """

    a: int
    b: int
    users: tuple[Operation, Operation] | None


class OtherParts(NamedTuple):
    """Equal tensors of which the scripts count other shares of the positions.

    Attributes:
        a: The part that A takes; None if all positions count.
        b: The part that B takes.
    """

    a: MaskedPart | None
    b: MaskedPart | None


class _Formula(NamedTuple):
    """The last operation that computes a value, in one form for both frameworks."""

    name: str
    operation: Operation
    inputs: list[Value]


def find_earlier_tensors(
    a: SectionSide, b: SectionSide, matches: TensorMatches
) -> tuple[list[EarlierTensors], list[OtherParts]]:
    """Return the tensors with which the difference of two tensors begins, in A's order, and their other parts.

    Both scripts compute the later tensors from them by operations of the same names, or from a part of the positions.

    Args:
        a: Side A, with its tensor that differs.
        b: Side B.
        matches: The tensors that are equal.
    """
    search = _Search(a, b, matches)
    search.compare(Value(a.target), Value(b.target), None)
    return sorted(search.beginnings, key=lambda x: x.a), search.other_parts


_Parts = tuple[Sequence[MaskedPart], Sequence[MaskedPart]]


@dataclass
class _Search:
    """A way back from two tensors that differ."""

    a: SectionSide
    b: SectionSide
    matches: TensorMatches
    beginnings: list[EarlierTensors] = field(default_factory=list)
    other_parts: list[OtherParts] = field(default_factory=list)
    _visited: set[tuple[Value, Value]] = field(default_factory=set)

    def compare(
        self, a: Value, b: Value, users: tuple[Operation, Operation] | None, parts: _Parts = ((), ())
    ) -> None:  # fmt: skip
        """Go on before two values as long as both scripts compute them in the same way.

        Args:
            a: The value of A.
            b: The value of B.
            users: The operations that receive them; None for the targets.
            parts: The parts of the positions that A and B take of the two values, later on.
        """
        is_target = users is None
        if (a, b) in self._visited or len(self._visited) == MOST_PAIRS or (not is_target and self._are_equal(a, b)):
            return
        self._visited.add((a, b))
        chain_a, chain_b = _list_unscaled(self.a, a), _list_unscaled(self.b, b)
        parts = (*parts[0], *_list_parts(self.a, chain_a)), (*parts[1], *_list_parts(self.b, chain_b))
        of_a, of_b = _find_formula(self.a, chain_a[-1]), _find_formula(self.b, chain_b[-1])
        if any(self._are_equal(x, y) for x in chain_a for y in chain_b if not is_target or (x, y) != (a, b)):
            if not self._compare_parts(a, b, parts):
                self._add(a, b, users)
            return
        if of_a is not None and of_b is not None and of_a.name == of_b.name:
            differing = self._pair_differing(of_a, of_b)
            for x, y in differing:
                self.compare(x, y, (of_a.operation, of_b.operation), parts)
            if differing:
                return
        end_a = _find_end(self.a, chain_a) if of_a is None else chain_a[-1]
        end_b = _find_end(self.b, chain_b) if of_b is None else chain_b[-1]
        self._add(end_a, end_b, users)

    def _compare_parts(self, a: Value, b: Value, parts: _Parts) -> bool:
        """Check whether the scripts take parts of one tensor, so that two values with other sizes are alike or not.

        If their parts have other sizes, they are a reason for the difference.
        """
        if not any(parts):
            return False
        of_a, of_b = (min(x, key=lambda part: part.share, default=None) for x in parts)
        shares = [1.0 if part is None else part.share for part in (of_a, of_b)]
        if not have_same_share(*shares):
            self.other_parts.append(OtherParts(of_a, of_b))
            return True
        return self.a.count_elements([a.tensor]) != self.b.count_elements([b.tensor])

    def _pair_differing(self, of_a: _Formula, of_b: _Formula) -> list[tuple[Value, Value]]:
        """Return the inputs of two operations that are not equal, in pairs; none if they have no counterparts."""
        inputs_a, inputs_b = [*of_a.inputs], [*of_b.inputs]
        for x in of_a.inputs:
            counterpart = next((y for y in inputs_b if self._are_equal(x, y)), None)
            if counterpart is not None:
                inputs_a.remove(x)
                inputs_b.remove(counterpart)
        if len(inputs_a) != len(inputs_b):
            return []
        if of_a.name not in ANY_ORDER or len(inputs_a) == 1:
            return [*zip(inputs_a, inputs_b, strict=True)]
        pairs = []
        for x in inputs_a:
            name, size = _describe_end(self.a, x)
            ends = [_describe_end(self.b, y) for y in inputs_b]
            alike = [y for y, end in zip(inputs_b, ends, strict=True) if end == (name, size)]
            alike += [y for y, end in zip(inputs_b, ends, strict=True) if end[0] == name]
            if not alike:
                return []
            inputs_b.remove(alike[0])
            pairs.append((x, alike[0]))
        return pairs

    def _are_equal(self, a: Value, b: Value) -> bool:
        return not a.is_difference and not b.is_difference and self.matches.are_equal(a.tensor, b.tensor)

    def _add(self, a: Value, b: Value, users: tuple[Operation, Operation] | None) -> None:
        self.beginnings.append(EarlierTensors(a.tensor, b.tensor, users))


def _list_unscaled(side: SectionSide, value: Value) -> list[Value]:
    """Return a value, and before it those of which it is a multiple, a sum, a mean, a part, or another shape or order.

    A tensor with infinite numbers is followed to the mask that tells where they are.
    """
    values = [value]
    while not (values[-1].is_difference or side.is_matched(values[-1].tensor)):
        operation = side.find_producer(values[-1].tensor)
        tensor = None if operation is None else _find_unscaled(side, operation)
        if tensor is None or len(values) == MOST_PAIRS:  # a damaged record may have a circle
            break
        values.append(Value(tensor))
    return values


def _find_unscaled(side: SectionSide, operation: Operation) -> int | None:
    """Return the tensor that an operation only scales, reduces, reorders, or takes a part of; None for another one."""
    name, inputs = normalize_name(operation), side.list_tensors(operation)
    if name == "where" and not side.has_statistics(operation["outputs"]):
        return inputs[-1] if inputs else None
    if part := find_masked_part(side, operation):
        return part.tensor
    if name == "div" and len(inputs) == 2 and side.count_elements(inputs[1:]) == [1]:
        return None if inputs[1] in side.computed_from_weights else inputs[0]  # divided by the number of positions
    is_scaled = name in SCALING or AVERAGES.fullmatch(name) or _keeps_numbers(side, operation)
    return inputs[0] if len(inputs) == 1 and is_scaled else None


def _list_parts(side: SectionSide, chain: Sequence[Value]) -> list[MaskedPart]:
    """Return the parts of the positions that are taken on the way to the first value of a chain."""
    producers = [side.find_producer(value.tensor) for value in chain[:-1]]
    return [part for x in producers if x is not None and (part := find_masked_part(side, x)) is not None]


def _find_end(side: SectionSide, chain: Sequence[Value]) -> Value:
    """Return the part or the average of a source, in whose place the other script may compute something else.

    Return the source without any.
    """
    producers = [(value, side.find_producer(value.tensor)) for value in chain[:-1]]
    parts = [value for value, x in producers if x is not None and find_masked_part(side, x) is not None]
    averages = [value for value, x in producers if x is not None and AVERAGES.fullmatch(normalize_name(x))]
    return next((values[-1] for values in (parts, averages) if values), chain[-1])


def _keeps_numbers(side: SectionSide, operation: Operation) -> bool:
    """Check whether an operation of one tensor returns its numbers, perhaps in another shape."""
    selection = side.find_selection(operation)
    if selection is not None:
        received, returned = (side.count_elements(operation[x]) for x in ("inputs", "outputs"))
        return len(received) == 1 and received == returned and not selection.is_reordering  # no assignment to elements
    return simplify_name(operation["name"]) in KEEPING


def _find_formula(side: SectionSide, value: Value) -> _Formula | None:
    """Return the last operation that computes a value; None if it is a source of the section."""
    operation = side.find_producer(value.tensor)
    if operation is None or (not value.is_difference and side.is_source(value.tensor)):
        return None
    name, inputs = normalize_name(operation), [Value(x) for x in _list_received(side, operation)]
    if value.is_difference:
        return _Formula("add", operation, inputs)
    if name in OF_DIFFERENCE and len(inputs) == 2:
        return _Formula(OF_DIFFERENCE[name], operation, [Value(value.tensor, is_difference=True)])
    if name == "pow" and len(inputs) == 1:
        name = "square"
    elif name in ("max", "min") and len(inputs) == 2:
        name = "maximum"
    elif MAXIMA.fullmatch(name):
        name = "max"
    elif name in RECURRENT:  # the frameworks have other biases
        return _Formula("lstm", operation, [x for x in inputs if not side.is_weight(x.tensor)])
    elif name in ("sub", "add"):
        return _Formula("add", operation, _list_terms(side, value.tensor, ("sub", "add")))
    elif name == "cat":
        inputs = _list_terms(side, value.tensor, ("cat",))
    return _Formula(name, operation, inputs)


def _list_received(side: SectionSide, operation: Operation) -> list[int]:
    """Return the tensors that an operation receives, in one order for both frameworks.

    The numbers of the rows of which it takes elements are left out, and so is the constant that it puts in places of a
    mask, which comes last, and may be inverted in one of them.
    """
    producers = [(x, side.find_producer(x)) for x in side.list_tensors(operation)]
    tensors = [x for x, producer in producers if producer is None or producer["inputs"]]
    if normalize_name(operation) != "where":
        return tensors
    inverted = {x: of["inputs"][0] for x, of in producers if of and of["inputs"] and normalize_name(of) in INVERTING}
    varying = [inverted.get(x, x) for x in tensors if not side.is_constant(x)] or tensors
    return sorted(varying, key=lambda x: side.get_statistics(x)["dtype"] == "bool")


def _list_terms(side: SectionSide, tensor: int, names: Sequence[str]) -> list[Value]:
    """Return the terms of a sum of sums, whatever their signs, or the parts of joined tensors."""
    operation = side.find_producer(tensor)
    if operation is None or side.is_source(tensor) or normalize_name(operation) not in names:
        return [Value(tensor)]
    return [term for x in side.list_tensors(operation) for term in _list_terms(side, x, names)]


def _describe_end(side: SectionSide, value: Value) -> tuple[str, int]:
    """Return the name of the operation that computes a value, and the number of elements of its result."""
    end = _list_unscaled(side, value)[-1]
    formula = _find_formula(side, end)
    name = "" if formula is None else formula.name
    return name, side.count_elements([end.tensor])[0]
