"""The order in which two models call layers that they call several times, such as the encoder of two sentences.

The arrays of a layer are those of its first call. A functional model of Keras may call its shared layers in another
order than its counterpart, so that the first calls of both are not counterparts.
"""

import re

from common.diagnose.layer_match import LayerMatch
from common.diagnose.recorded.operations.tensor_matches import SAME_NUMBERS, TensorMatches
from common.diagnose.recorded.record_pair import RecordPair
from common.diagnose.recorded.recorded_side import RecordedSide


class CallOrder:
    """Finds out whether the first calls of layers are counterparts."""

    def __init__(self, pair: RecordPair) -> None:
        """Prepare to compare the calls. The layers are asked for in A's order of execution."""
        self._sides = pair.sides
        a, b = (side.record.ranks[0].operations for side in pair.sides)
        self._matches = TensorMatches(a["tensors"], b["tensors"], SAME_NUMBERS) if a and b else None
        self._is_other = False  # whether B calls shared layers in another order

    def has_other_first_call(self, layer: LayerMatch) -> bool:
        """Check whether A's first call of a shared layer is a later call in B, or may be since that is so earlier."""
        paths = layer.path_a, layer.path_b
        a, b = (_list_received(side, path) for side, path in zip(self._sides, paths, strict=True))
        if self._matches is None or len(a) != len(b) or len(a) < 2:
            return False
        is_first = self._matches.are_equal(a[0], b[0])
        self._is_other |= not is_first and any(self._matches.are_equal(a[0], number) for number in b[1:])
        return self._is_other


def _list_received(side: RecordedSide, path: str) -> list[int]:
    """Return the numbers of the tensors that the calls of a layer with variables receive, by call."""
    trace = side.record.ranks[0].operations
    if trace is None:
        return []
    parts = [facts for facts in side.layers if re.match(rf"{re.escape(path)}([./]|$)", facts["path"])]
    names = {f"weight/{name}" for facts in parts for name in facts["variables"].values()}
    numbers = {trace["names"][name] for name in names if name in trace["names"]}
    weights = {number for name, number in trace["names"].items() if name.startswith("weight/")}
    received = [[x for x in operation["inputs"] if x not in weights]
                for operation in trace["operations"] if numbers & {*operation["inputs"]}]  # fmt: skip
    return [inputs[0] for inputs in received if inputs]
