"""Losses that one script computes in one operation, and the other script in several ones."""

from collections.abc import Mapping, Sequence

from common.diagnose.recorded.operations.operation_names import CROSS_ENTROPY, normalize_name
from common.recording.operation_format import Operation, OperationTrace

# The function before the loss, and the loss, in the spelling of normalize_name, with the operations that compute both
JOINED: Mapping[tuple[str, str], tuple[str, ...]] = {
    ("sigmoid", "binarycrossentropy"): ("binarycrossentropywithlogits",),
    ("logsoftmax", "nllloss"): (CROSS_ENTROPY,),
}
# The operations of tf.nn.sigmoid_cross_entropy_with_logits, of which the last returns the losses
SIGMOID_CROSS_ENTROPY = ("zeroslike", "greaterequal", "where", "neg", "where", "mul", "sub", "exp", "log1p", "add")


def join_losses(a: OperationTrace, b: OperationTrace) -> tuple[OperationTrace, OperationTrace]:
    """Return the operations of two scripts, with one operation for a function and a loss that only one calls apart."""
    a, b = map(_join_parts, (a, b))
    names_a, names_b = ({normalize_name(x) for x in trace["operations"]} for trace in (a, b))
    return _join(a, names_a, names_b), _join(b, names_b, names_a)


def drop_joined(operations: Sequence[Operation], others: Sequence[Operation]) -> list[Operation]:
    """Return operations without a function and a loss that the other script computes in one operation, or as this one.

    Operations may stand between the function and the loss.
    """
    names, other_names = ({normalize_name(x) for x in side} for side in (operations, others))
    pairs = {
        name
        for (function, loss), joined in JOINED.items()
        if ({function, loss} <= names and other_names & {*joined})
        or ({function, loss} <= other_names and names & {*joined})
        for name in (function, loss, *joined)
    }
    return [x for x in operations if normalize_name(x) not in pairs]


def _join_parts(trace: OperationTrace) -> OperationTrace:
    """Return the operations with one operation for those of the binary cross entropy of logits."""
    operations, names = [*trace["operations"]], [normalize_name(x) for x in trace["operations"]]
    count = len(SIGMOID_CROSS_ENTROPY)
    for start in reversed(range(len(names) - count + 1)):
        parts = operations[start : start + count]
        if names[start] == SIGMOID_CROSS_ENTROPY[0] and (*names[start : start + count],) == SIGMOID_CROSS_ENTROPY:
            logits, labels = parts[0]["inputs"][:1], [x for x in parts[5]["inputs"] if x not in parts[0]["inputs"]]
            loss: Operation = {
                **parts[0],
                "name": "SigmoidCrossEntropyWithLogits",
                "arguments": {},
                "inputs": [*logits, *labels],
                "outputs": parts[-1]["outputs"],
            }
            operations[start : start + count], names[start : start + count] = [loss], [normalize_name(loss)]
    return {**trace, "operations": operations}


def _join(trace: OperationTrace, names: set[str], others: set[str]) -> OperationTrace:
    for (function, loss), joined in JOINED.items():
        name = next((x for x in joined if x in others and x not in names), None)
        if name is not None and {function, loss} <= names and loss not in others:
            operations = trace["operations"]
            functions = [x for x in operations if normalize_name(x) == function and x["inputs"] and x["outputs"]]
            applied = {x["outputs"][0]: x["inputs"][0] for x in functions}
            joined_operations = [
                _replace(x, name, applied)
                if normalize_name(x) == loss and not applied.keys().isdisjoint(x["inputs"][:1])
                else x
                for x in operations
            ]
            trace = {**trace, "operations": joined_operations}
    return trace


def _replace(operation: Operation, name: str, applied: Mapping[int, int]) -> Operation:
    """Return a loss under another name that receives what the function before it receives."""
    return {**operation, "name": name, "inputs": [applied[operation["inputs"][0]], *operation["inputs"][1:]]}
