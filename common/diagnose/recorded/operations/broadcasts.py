"""Operations that broadcast their operands to a result that is larger than each of them."""

import math
from typing import NamedTuple

from common.diagnose.recorded.operations.operation_names import ELEMENTWISE, normalize_name
from common.diagnose.recorded.operations.section_side import SectionSide
from common.recording.operation_format import Operation

LOSSES = ("mseloss", "l1loss", "smoothl1loss", "huberloss")  # losses of PyTorch that broadcast their operands


class Broadcast(NamedTuple):
    """The shapes of the two operands, and that of the result."""

    a: list[int]
    b: list[int]
    result: list[int]

    def __str__(self) -> str:
        """Return words for a sentence."""
        return f"{self.a} and {self.b} give {self.result}"

    @property
    def has_other_ranks(self) -> bool:
        """Return whether the operands have different numbers of axes, which a script rarely intends in a loss."""
        return len(self.a) != len(self.b)


def find_broadcast(side: SectionSide, operation: Operation) -> Broadcast | None:
    """Return the shapes of an operation of two operands; None if its result is not larger than each of them."""
    shapes = side.list_shapes([*operation["inputs"], *operation["outputs"]])
    is_known = normalize_name(operation) in (*ELEMENTWISE, *LOSSES)
    if not is_known or (len(operation["inputs"]), len(operation["outputs"])) != (2, 1):
        return None
    broadcast = Broadcast(shapes[0], shapes[1], shapes[2])
    is_larger = math.prod(broadcast.result) > max(math.prod(broadcast.a), math.prod(broadcast.b))
    return broadcast if is_larger else None
