"""Choice of the last unit of work before a stop or a checkpoint, and its effect on this process.

A unit is one batch of training or evaluation, as common.training.stop counts them on every rank. The chief asks each
member (a rank other than the chief) how many units it has begun.
"""

from collections.abc import Hashable, Iterable

from common.training.stop import SAVE, Stop


class StopDecision:
    """The chief's choice of the last unit: the highest unit that any rank has begun.

    The choice is made when every member has answered.

    Args:
        signum: the signal that stops the run, or SAVE for a checkpoint.
        begun: the number of units that the chief itself has begun.
        members: the members whose answers the choice waits for.

    Attributes:
        last: the last unit; None until it is decided.
    """

    def __init__(self, signum: int, begun: int, members: Iterable[Hashable]) -> None:
        self.signum = signum
        self.highest_begun = begun
        self.awaited = set(members)  # the members that have not answered
        self.last: int | None = None

    def record_answer(self, member: Hashable, begun: int) -> None:
        """Record the number of units that a member has begun. Has no effect after the decision."""
        self.awaited.discard(member)
        self.highest_begun = max(self.highest_begun, begun)

    def decide(self, at_once: bool = False) -> bool:
        """Fix the last unit if all members have answered, or `at_once` is true. Return whether this call fixed it."""
        if self.last is not None or (self.awaited and not at_once):
            return False
        self.last = self.highest_begun
        return True


class LocalStop:
    """Proxy of this process's Stop. It keeps a signal and a last unit that arrive before the Stop is attached.

    It keeps no requests for checkpoints: no rank makes one before all ranks have attached their Stop and begun a unit.
    The methods may be called by several threads; every caller holds the lock of the channel that owns this object.
    """

    def __init__(self) -> None:
        self.stop: Stop | None = None
        self.signum: int | None = None
        self.last: int | None = None

    def attach(self, stop: Stop) -> None:
        """Connect the Stop and pass it the signal and the last unit that have arrived before."""
        self.stop = stop
        if self.signum is not None:
            stop.freeze(self.signum)
        if self.last is not None:
            stop.decide(self.last)

    def freeze(self, signum: int) -> int:
        """Begin no further unit. Return the number of units that this process has begun."""
        if self.signum is None and signum != SAVE:
            self.signum = signum
        # SAVE, which is 0, does not replace an earlier signal, because a stop saves a checkpoint, too.
        return self.stop.freeze(self.signum or SAVE) if self.stop is not None else 0

    def decide(self, last: int) -> None:
        """End after this unit. Later calls have no effect."""
        if self.last is None:
            self.last = last
        if self.stop is not None:
            self.stop.decide(self.last)

    def save_after(self, unit: int | None) -> None:
        """Save a checkpoint after this unit and continue. None: continue without one."""
        if self.stop is not None:
            self.stop.save_after(unit)

    def stop_alone(self, signum: int) -> None:
        """Stop this process without asking any other rank."""
        self.decide(self.freeze(signum))
