"""Operations that broadcast their operands, so that the result is larger than they are."""

import math
from typing import NamedTuple

from common.diagnose.recorded.operations.operation_names import ELEMENTWISE, normalize_name
from common.diagnose.recorded.operations.section_side import SectionSide
from common.recording.operation_format import Operation

LOSSES = ("mseloss", "l1loss", "smoothl1loss", "huberloss")  # losses of PyTorch that broadcast their operands


class Broadcast(NamedTuple):
    """The shapes of the two operands and that of the result, and whether a loss function of PyTorch computes it."""

    a: list[int]
    b: list[int]
    result: list[int]
    is_loss: bool

    def __str__(self) -> str:
        """Return words for a sentence."""
        return f"{self.a} and {self.b} give {self.result}"

    @property
    def is_suspicious(self) -> bool:
        """Return whether a script rarely intends it: operands with different numbers of axes, or a loss function."""
        return len(self.a) != len(self.b) or self.is_loss


def find_broadcast(side: SectionSide, operation: Operation) -> Broadcast | None:
    """Return the shapes of an operation of two operands; None if its result is not larger than each of them.

    The result of a loss function may be as large as one operand. A single number is no operand of it.
    """
    name, (received, returned) = normalize_name(operation), (operation["inputs"], operation["outputs"])
    if name not in (*ELEMENTWISE, *LOSSES) or (len(received), len(returned)) != (2, 1):
        return None
    a, b, result = side.list_shapes([*received, *returned])
    smallest, largest = sorted(map(math.prod, (a, b)))
    is_loss = name in LOSSES
    is_larger = math.prod(result) > largest or (is_loss and 1 < smallest < largest)
    return Broadcast(a, b, result, is_loss) if is_larger else None
