"""Agreement of all ranks to stop, or to save a checkpoint, after the same unit of work.

A unit is one batch that the strategy receives, for training or evaluation, or one call of `Stop.check`. All ranks begin
the same units in the same order, so a number of begun units means the same moment on every rank.
"""

import logging
import signal
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from queue import SimpleQueue
from threading import Condition, Thread
from types import FrameType
from typing import Protocol, TypeVar

from common.errors import Interrupted

log = logging.getLogger("lockstep")

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
IGNORED = {signum for signum in SIGNALS if signal.getsignal(signum) is signal.SIG_IGN}  # such as SIGHUP by nohup
SAVE = 0  # stands for the number of a signal: requests a checkpoint, after which the run continues
DECISION_SECONDS = 8.0  # how long a rank waits for the decision before it stops alone

T = TypeVar("T")

Handler = Callable[[int, FrameType | None], object] | int | None  # the type of what signal.getsignal returns


class Channel(Protocol):
    """Connection between the Stops of all ranks. Its thread calls `freeze`, `decide` and `save_after` of a Stop."""

    def request(self, signum: int) -> None:
        """Ask for a stop of all ranks, or for a checkpoint. Must not raise if the ranks cannot be reached."""


class Stop:
    """Handler that turns SIGINT, SIGTERM, SIGHUP and SIGQUIT into a stop of this rank between two units.

    Without a channel, the unit that has begun is the last one. With a channel, the ranks agree: `freeze` holds each
    rank before its next unit. Then `decide` names the last unit, which all ranks finish, or `save_after` releases them.
    signum: the signal that stops the run, or None. saving: whether a requested checkpoint is due; the loop resets it.
    Only the main thread may create a Stop, because Python lets no other thread install signal handlers.
    """

    def __init__(self) -> None:
        self.signum: int | None = None
        self.saving = False
        self._begun_units = 0
        self._last_unit: int | None = None  # None until it is decided
        self._save_units: deque[int] = deque()  # decided units after which to save
        self._frozen = False
        self._changed = Condition()  # guards the attributes above
        self._requested = False
        self._requests: SimpleQueue[int] = SimpleQueue()  # the first request, for the channel
        self._channel: Channel | None = None
        self._previous_handlers = _get_handlers()
        self.listen()

    def listen(self) -> None:
        """Handle the signals. Call it again after a library, such as TensorFlow, has installed its own handlers."""
        _install_handler(self._handle)

    def restore(self) -> None:
        """Reinstall the handlers that were there before."""
        _reinstall_handlers(self._previous_handlers)

    def _handle(self, signum: int, frame: FrameType | None) -> None:
        self.request(signum)

    def request(self, signum: int) -> None:
        """Request a stop, as a signal does. All but the first request are ignored.

        This method takes no lock: the signal may have interrupted code of this thread that holds the lock.
        """
        if self._requested or self.signum is not None:
            return
        self._requested = True
        self._requests.put(signum)
        if self._channel is None:
            self.signum = signum
            self._last_unit = self._begun_units

    def connect(self, channel: Channel) -> None:
        """Let a channel decide from now on. An earlier request is sent to the channel."""
        self._channel = channel
        self._last_unit = None  # a request without a channel may have decided it
        Thread(target=self._send_request, args=(channel,), name="stop-requests", daemon=True).start()

    def _send_request(self, channel: Channel) -> None:
        channel.request(self._requests.get())

    def save(self) -> None:
        """Request a checkpoint of all ranks after the same unit. Only the main thread of the chief may call this."""
        begun = self.freeze(SAVE)
        if self._channel is None:
            self.save_after(begun)
        else:
            self._channel.request(SAVE)

    def freeze(self, signum: int) -> int:
        """Begin no further unit until `decide`, or `save_after` if signum is SAVE. Return the number of begun units."""
        with self._changed:
            if self._last_unit is None:
                self._frozen = True
                if signum != SAVE:
                    self.signum = signum
                    self._changed.notify_all()
            return self._begun_units

    def decide(self, last: int) -> None:
        """Stop after this unit, or before the next one if it has begun already. Later decisions have no effect."""
        with self._changed:
            if self._last_unit is None:
                self._last_unit = last
                self._changed.notify_all()

    def save_after(self, unit: int | None) -> None:
        """Continue after `freeze`, and save after this unit. None: continue only, since the ranks agreed on no unit."""
        with self._changed:
            if unit is not None:
                self._save_units.append(unit)
            self._frozen = False
            self._changed.notify_all()

    def yield_until_stop(self, items: Iterable[T]) -> Iterator[T]:
        """Yield the items and count each as a unit. End early after the last unit, or when a checkpoint is due."""
        for item in items:
            if not self._begin() or self.saving:
                return
            yield item

    def yield_or_interrupt(self, items: Iterable[T]) -> Iterator[T]:
        """Yield the items and count each as a unit. Raise Interrupted after the last unit."""
        for item in items:
            self.check()
            yield item

    def check(self) -> None:
        """Raise Interrupted after the last unit. Every rank must call it, at the same place.

        It counts as a unit itself: what follows, such as gathering the state, then happens on all ranks or on none.
        """
        if not self._begin():
            assert self.signum is not None
            raise Interrupted(self.signum)

    def _begin(self) -> bool:
        """Count one more unit, unless the last one has begun."""
        with self._changed:
            # The decision about a checkpoint may take any time. Only the decision about a stop has a limit.
            self._changed.wait_for(lambda: not self._frozen or self.signum is not None)
            if self._frozen and not self._changed.wait_for(lambda: self._last_unit is not None, DECISION_SECONDS):
                log.warning("no decision about the stop within %g s; stopping without it", DECISION_SECONDS)
                self._last_unit = self._begun_units
            if self._last_unit is not None and self._begun_units >= self._last_unit:
                return False
            self._begun_units += 1
            # The unit to save after has ended: no rank began a later unit before the ranks agreed on it.
            while self._save_units and self._save_units[0] < self._begun_units:
                self._save_units.popleft()
                self.saving = True
            return True


@contextmanager
def interrupt_on_signals() -> Iterator[None]:
    """Raise Interrupted in the body when SIGINT, SIGTERM, SIGHUP or SIGQUIT arrives."""

    def interrupt(signum: int, frame: FrameType | None) -> None:
        raise Interrupted(signum)

    with preserve_handlers():
        _install_handler(interrupt)
        yield


@contextmanager
def preserve_handlers() -> Iterator[None]:
    """Restore the signal handlers after the body, even if a library has replaced one without telling Python."""
    handlers = _get_handlers()
    try:
        yield
    finally:
        _reinstall_handlers(handlers)


def _install_handler(handler: Callable[[int, FrameType | None], None]) -> None:
    for signum in SIGNALS:
        if signum not in IGNORED:
            signal.signal(signum, handler)


def _get_handlers() -> dict[int, Handler]:
    return {signum: signal.getsignal(signum) for signum in SIGNALS}


def _reinstall_handlers(handlers: Mapping[int, Handler]) -> None:
    for signum, handler in handlers.items():
        signal.signal(signum, signal.SIG_DFL if handler is None else handler)
