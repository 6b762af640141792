"""Which unit of work is the last before a stop or a checkpoint, and how the Stop of this process learns it."""

from collections.abc import Hashable, Iterable

from common.training.stop import SAVE, Stop


class StopDecision:
    """Which unit is the last: the maximum of the counts that have come once nobody's is awaited."""

    def __init__(self, signum: int, begun: int, members: Iterable[Hashable]) -> None:
        self.signum, self.highest = signum, begun
        self.awaited = set(members)
        self.last: int | None = None

    def answer(self, member: Hashable, begun: int) -> None:
        """A member's count. Has no effect after the decision."""
        self.awaited.discard(member)
        self.highest = max(self.highest, begun)

    def decide(self, at_once: bool = False) -> bool:
        """Fix the last unit if every answer has come, or `at_once`. Returns whether this call has done it."""
        if self.last is not None or (self.awaited and not at_once):
            return False
        self.last = self.highest
        return True


class LocalStop:
    """The Stop of this process, or what one that is attached later must be told.

    That is nothing of checkpoints: no rank asks for one before all have attached theirs and begun a unit.
    """

    def __init__(self) -> None:
        self.stop: Stop | None = None
        self.signum: int | None = None
        self.last: int | None = None

    def attach(self, stop: Stop) -> None:
        self.stop = stop
        if self.signum is not None:
            stop.freeze(self.signum)
        if self.last is not None:
            stop.decide(self.last)

    def freeze(self, signum: int) -> int:
        if self.signum is None and signum != SAVE:
            self.signum = signum
        return self.stop.freeze(self.signum or SAVE) if self.stop is not None else 0

    def decide(self, last: int) -> None:
        if self.last is None:
            self.last = last
        if self.stop is not None:
            self.stop.decide(self.last)

    def save_after(self, unit: int | None) -> None:
        if self.stop is not None:
            self.stop.save_after(unit)

    def stop_alone(self, signum: int) -> None:
        self.decide(self.freeze(signum))
