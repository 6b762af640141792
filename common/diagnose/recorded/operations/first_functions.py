"""First operations of two scripts that apply something else to the same tensors: a function, an operand or a factor.

A is the reference record of a diagnosis, and B the record that is compared with it. A `side` is the part of a script
that leads from tensors with an equal one in the other script to a tensor that differs.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product

from common.diagnose.recorded.operations.first_results import list_surplus
from common.diagnose.recorded.operations.joined_losses import drop_joined
from common.diagnose.recorded.operations.operation_names import (
    ACTIVATIONS,
    ELEMENTWISE,
    FUNCTIONS,
    LOGIT_LOSSES,
    NLL_LOSS,
    PROBABILITIES,
    normalize_name,
)
from common.diagnose.recorded.operations.section_side import SectionSide
from common.diagnose.recorded.operations.tensor_matches import MOST_COMPARED, TensorMatches
from common.recording.operation_format import Operation

COMBINING = (*ELEMENTWISE, "matmul")  # operations of two tensors, in one spelling


@dataclass(frozen=True)
class OtherFunctions:
    """Functions that the scripts apply to the same tensors.

    Attributes:
        a: The functions of A.
        b: The functions of B, in the order of the tensors.
        is_exchange: Whether A and B apply the same functions, but each to another tensor.
    """

    a: Sequence[Operation]
    b: Sequence[Operation]
    is_exchange: bool


@dataclass(frozen=True)
class ScaledResult:
    """Tensors that differ by a factor.

    Attributes:
        a: The operations of A that compute its tensor from tensors with an equal one in B.
        b: The same for B.
        factor: B's numbers divided by A's.
    """

    a: Sequence[Operation]
    b: Sequence[Operation]
    factor: float


def find_other_functions(a: SectionSide, b: SectionSide, matches: TensorMatches) -> OtherFunctions | None:
    """Return functions of one tensor that are others in B, such as hardsigmoid for sigmoid; None without any.

    Args:
        a: Side A.
        b: Side B.
        matches: The tensors that are equal.
    """
    functions_a, functions_b = [*_list_functions(a)], [*_list_functions(b)]
    pairs: list[tuple[Operation, Operation]] = []
    for tensor, of_a in functions_a:
        counterparts = [of_b for other, of_b in functions_b if matches.are_equal(tensor, other)]
        is_single = [received for received, _ in functions_a].count(tensor) == 1
        if is_single and len(counterparts) == 1 and _are_others(of_a, counterparts[0]):
            pairs.append((of_a, counterparts[0]))
    names_a, names_b = (sorted(normalize_name(pair[side]) for pair in pairs) for side in (0, 1))
    if not pairs:
        return None
    return OtherFunctions([x for x, _ in pairs], [y for _, y in pairs], is_exchange=names_a == names_b)


def _are_others(a: Operation, b: Operation) -> bool:
    """Check whether two functions are others. One script may compute the logarithm of the other one's probabilities."""
    return normalize_name(a).removeprefix("log") != normalize_name(b).removeprefix("log")


def _list_functions(side: SectionSide) -> Iterator[tuple[int, Operation]]:
    """Yield the first functions of one tensor, such as activations, each after the tensor that it receives."""
    for operation in side.first_operations[:MOST_COMPARED]:
        tensors = side.list_tensors(operation)
        if len(tensors) == 1 and normalize_name(operation) in FUNCTIONS:
            yield tensors[0], operation


def find_unapplied(
    a: SectionSide, b: SectionSide, matches: TensorMatches
) -> tuple[list[Operation], list[Operation]] | None:
    """Return an activation that only one side applies to an equal tensor, in that side's list; None if there is none.

    Args:
        a: Side A.
        b: Side B.
        matches: The tensors that are equal.
    """
    for side, (longer, shorter) in enumerate(((a, b), (b, a))):
        # Without a sigmoid that is a part of the other side's loss
        remaining = drop_joined(longer.operations, shorter.operations)
        activations = {
            tensor: x
            for tensor, x in _list_functions(longer)
            if normalize_name(x) in ACTIVATIONS and any(x is y for y in remaining)
        }
        surplus = list_surplus([*activations.values()], longer, shorter)
        users = [(x, operation) for operation in shorter.first_operations for x in shorter.list_tensors(operation)]
        for tensor, operation in activations.items():
            same = [user for x, user in users if matches.are_equal(*((x, tensor) if side else (tensor, x)))]
            if operation in surplus and same and all(normalize_name(x) not in FUNCTIONS | LOGIT_LOSSES for x in same):
                return ([], [operation]) if side else ([operation], [])
    return None


def find_repeated_probabilities(
    a: SectionSide, b: SectionSide, matches: TensorMatches
) -> tuple[list[Operation], list[Operation]] | None:
    """Return a softmax or sigmoid whose result only one side passes to a loss of logits, in that side's list, or None.

    The other side passes what the function receives to its loss.

    Args:
        a: Side A.
        b: Side B.
        matches: The tensors that are equal.
    """
    for side, (longer, shorter) in enumerate(((a, b), (b, a))):
        losses = [x for x in longer.operations if normalize_name(x) in LOGIT_LOSSES]
        for probabilities in [x for loss in losses for x in longer.list_floats(loss)[:1]]:  # further ones are labels
            function = longer.find_producer(probabilities)
            if function is None or normalize_name(function) not in PROBABILITIES:
                continue
            logits = longer.list_floats(function)
            received = shorter.received
            if any(matches.are_equal(*((x, y) if side else (y, x))) for x in received for y in logits):
                return ([], [function]) if side else ([function], [])
    return None


def find_misplaced_probabilities(side: SectionSide) -> tuple[Operation, Operation] | None:
    """Return a softmax or sigmoid, and the loss of logits or of logarithms that receives its result; None if none does.

    The function may belong to the model, and lie before the section.
    """
    for loss in (x for x in side.operations if normalize_name(x) in (NLL_LOSS, *LOGIT_LOSSES)):
        functions = [side.find_producer(x) for x in side.list_floats(loss)[:1]]  # further ones are labels
        if functions and functions[0] is not None and normalize_name(functions[0]) in ("softmax", "sigmoid"):
            return functions[0], loss
    return None


def find_other_operand(a: SectionSide, b: SectionSide, matches: TensorMatches) -> tuple[Operation, Operation] | None:
    """Return operations of one name that combine an equal tensor with other ones; None without any.

    A tensor that only one script combines must not be used by the section of the other one: (x * y) * z is x * (y * z).

    Args:
        a: Side A.
        b: Side B.
        matches: The tensors that are equal.
    """
    firsts = [[x for x in side.first_operations if normalize_name(x) in COMBINING] for side in (a, b)]
    for of_a, of_b in product(*(operations[:MOST_COMPARED] for operations in firsts)):
        tensors_a, tensors_b = a.list_floats(of_a, is_nonzero=True), b.list_floats(of_b, is_nonzero=True)
        if normalize_name(of_a) != normalize_name(of_b) or len(tensors_a) != 2 or len(tensors_b) != 2:
            continue
        others_a = [x for x in tensors_a if not any(matches.are_equal(x, y) for y in tensors_b)]
        others_b = [y for y in tensors_b if not any(matches.are_equal(x, y) for x in tensors_a)]
        if (
            (len(others_a), len(others_b)) == (1, 1)
            and a.count_elements(others_a) == b.count_elements(others_b)
            and not any(matches.are_equal(others_a[0], y) for y in b.received)
            and not any(matches.are_equal(x, others_b[0]) for x in a.received)
        ):
            return of_a, of_b
    return None


def find_scaled(a: SectionSide, b: SectionSide, matches: TensorMatches) -> ScaledResult | None:
    """Return the first tensors that differ by a factor that no later operation takes back; None without any.

    Args:
        a: Side A.
        b: Side B.
        matches: The tensors that are equal.
    """
    for of_a, of_b in product(a.operations[:MOST_COMPARED], b.operations[:MOST_COMPARED]):
        results = of_a["outputs"][0], of_b["outputs"][0]
        factor = matches.find_factor(*results)
        if factor is None:
            continue
        leading_a, leading_b = a.list_leading_to(results[0]), b.list_leading_to(results[1])
        if not any(
            math.isclose(number, x, rel_tol=1e-4)
            for side, leading in ((a, leading_a), (b, leading_b))
            for operation in side.operations
            if operation not in leading
            for number in _list_factors(side, operation)
            for x in (factor, 1 / factor)
        ):
            return ScaledResult(leading_a, leading_b, factor)
    return None


def _list_factors(side: SectionSide, operation: Operation) -> list[float]:
    """Return the numbers of the code by which an operation multiplies or divides."""
    if normalize_name(operation) not in ("mul", "div"):
        return []
    values = operation["arguments"].values()
    numbers = [float(x) for x in values if isinstance(x, int | float) and not isinstance(x, bool)]
    return [*side.list_numbers(operation), *numbers]
