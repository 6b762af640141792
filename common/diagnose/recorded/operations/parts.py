"""Layers that only one script computes as one operation: its parts take the operation's place."""

from collections import Counter
from collections.abc import Callable

from common.diagnose.recorded.operations.operation_names import normalize_name
from common.recording.operation_format import Operation, OperationTrace, Part

# In the spelling of normalize_name. The recurrent layers of one framework have other names in the other one.
RECURRENT = {
    *("lstm", "gru", "rnn", "simplernn", "bidirectional", "convlstm1d", "convlstm2d", "convlstm3d"),
    *("lstmcell", "grucell", "rnncell", "simplernncell", "convlstmcell", "stackedrnncells"),
}


def expand_parts(a: OperationTrace, b: OperationTrace) -> tuple[OperationTrace, OperationTrace]:
    """Return the operations of two scripts, with parts in place of the layers that only one of them calls.

    Layers that both scripts call are compared by their settings.
    """
    a, b = map(_drop_idle_dropouts, (a, b))
    counts_a, counts_b = (Counter(map(normalize_name, trace["operations"])) for trace in (a, b))
    return _expand(a, _choose_expanded(counts_a, counts_b)), _expand(b, _choose_expanded(counts_b, counts_a))


def _drop_idle_dropouts(trace: OperationTrace) -> OperationTrace:
    """Return the operations without dropouts that drop nothing: what they return is what they receive."""
    same: dict[int, int] = {}
    operations: list[Operation] = []
    for operation in trace["operations"]:
        inputs = [same.get(x, x) for x in operation["inputs"]]
        rates = [operation["arguments"].get(name) for name in ("p", "rate")]
        if normalize_name(operation).startswith("dropout") and 0 in rates and inputs:
            same.update(dict.fromkeys(operation["outputs"][:1], inputs[0]))
        else:
            operations.append({**operation, "inputs": inputs})
    names = {name: same.get(number, number) for name, number in trace["names"].items()}
    return {**trace, "operations": operations, "names": names}


def _choose_expanded(counts: Counter[str], others: Counter[str]) -> Callable[[Operation], bool]:
    """Return a check of an operation: whether the other script has no counterpart of it.

    Args:
        counts: How many operations of each name the script has.
        others: The same of the other script.
    """
    is_recurrent = not RECURRENT.isdisjoint(others)

    def is_expanded(operation: Operation) -> bool:
        name = normalize_name(operation)
        return not is_recurrent if name in RECURRENT else counts[name] != others[name]

    return is_expanded


def _expand(trace: OperationTrace, is_expanded: Callable[[Operation], bool]) -> OperationTrace:
    operations: list[Operation] = []
    for operation in trace["operations"]:
        parts = operation.get("parts", ()) if is_expanded(operation) else ()
        operations += [_drop_line(part, operation) for part in parts] or [operation]
    return {**trace, "operations": operations}


def _drop_line(part: Part, layer: Operation) -> Operation:
    """Return a part without the line that calls its layer. The line of a script's own cell stays."""
    is_of_layer = (part["file"], part["line"]) == (layer["file"], layer["line"])
    return {**part, "file": "", "line": 0, "code": ""} if is_of_layer else {**part}
