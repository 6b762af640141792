"""Stop of a run, or a checkpoint, on request: after the same unit of work on every rank.

A unit is one batch that the strategy receives, for training or evaluation, or one passed `check`. All ranks take
the same units in the same order, so a count of units names the same moment on each of them.
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
IGNORED = {signum for signum in SIGNALS if signal.getsignal(signum) is signal.SIG_IGN}  # as nohup starts a command
SAVE = 0  # requested in place of a signal: a checkpoint, after which the run continues
DECISION_SECONDS = 8.0  # how long a rank waits for the decision before it stops alone

T = TypeVar("T")

Handler = Callable[[int, FrameType | None], object] | int | None  # as signal.getsignal returns it


class Channel(Protocol):
    """Connection between the Stops of all ranks; its thread calls `freeze` and `decide`."""

    def request(self, signum: int) -> None:
        """Ask for a stop of all ranks, or for a checkpoint. Must not raise if they cannot be reached."""


class Stop:
    """Stop that turns SIGINT, SIGTERM, SIGHUP and SIGQUIT into a request that is honored between two units.

    Without a channel the last unit is the one that began last. With one, the ranks agree: `freeze` holds every rank
    before its next unit, `decide` lets each continue up to the same last one, `save_after` beyond it.

    signum: the signal that stops the run, or None. saving: a checkpoint that was asked for is due; the loop resets it.
    Only the main thread may create one.
    """

    def __init__(self) -> None:
        self.signum: int | None = None
        self.saving = False
        self._begun = 0
        self._last: int | None = None  # the last unit, once decided
        self._saves: deque[int] = deque()  # units after which to save, once decided
        self._frozen = False
        self._changed = Condition()
        self._requested = False
        self._requests: SimpleQueue[int] = SimpleQueue()
        self._channel: Channel | None = None
        self._previous = _get_handlers()
        self.listen()

    def listen(self) -> None:
        """Handle the signals, also after a library such as TensorFlow has installed its own handlers."""
        _on_signals(self._handle)

    def restore(self) -> None:
        """Reinstall the handlers that were there before."""
        _install(self._previous)

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
            self._last = self._begun

    def connect(self, channel: Channel) -> None:
        """Let a channel decide from now on. An earlier request is sent to the channel."""
        self._channel = channel
        self._last = None  # what `request` may have decided until now
        Thread(target=self._send, args=(channel,), name="stop-requests", daemon=True).start()

    def _send(self, channel: Channel) -> None:
        channel.request(self._requests.get())

    def save(self) -> None:
        """Request a checkpoint of all ranks after the same unit. Only the main thread of the chief may call this."""
        begun = self.freeze(SAVE)
        if self._channel is None:
            self.save_after(begun)
        else:
            self._channel.request(SAVE)

    def freeze(self, signum: int) -> int:
        """Begin no further unit until `decide`, or with SAVE `save_after`. Returns the number of units begun."""
        with self._changed:
            if self._last is None:
                self._frozen = True
                if signum != SAVE:
                    self.signum = signum
                    self._changed.notify_all()
            return self._begun

    def decide(self, last: int) -> None:
        """End after this unit, or now if it has begun. The first decision stands."""
        with self._changed:
            if self._last is None:
                self._last = last
                self._changed.notify_all()

    def save_after(self, unit: int | None) -> None:
        """Continue, and save after this unit. None: no unit was agreed on."""
        with self._changed:
            if unit is not None:
                self._saves.append(unit)
            self._frozen = False
            self._changed.notify_all()

    def end(self, items: Iterable[T]) -> Iterator[T]:
        """Yield the items and count each as a unit. End early after the last unit, or if a checkpoint is due."""
        for item in items:
            if not self._begin() or self.saving:
                return
            yield item

    def interrupt(self, items: Iterable[T]) -> Iterator[T]:
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
            self._changed.wait_for(lambda: not self._frozen or self.signum is not None)  # as the next step would wait
            if self._frozen and not self._changed.wait_for(lambda: self._last is not None, DECISION_SECONDS):
                log.warning("no decision about the stop within %g s; stopping without it", DECISION_SECONDS)
                self._last = self._begun
            if self._last is not None and self._begun >= self._last:
                return False
            self._begun += 1
            while self._saves and self._saves[0] < self._begun:  # no rank has begun this unit before the decision
                self._saves.popleft()
                self.saving = True
            return True


@contextmanager
def interrupt_on_signals() -> Iterator[None]:
    """Raise Interrupted in the body when SIGINT, SIGTERM, SIGHUP or SIGQUIT arrives."""

    def interrupt(signum: int, frame: FrameType | None) -> None:
        raise Interrupted(signum)

    with preserve_handlers():
        _on_signals(interrupt)
        yield


@contextmanager
def preserve_handlers() -> Iterator[None]:
    """Restore the signal handlers after the body, even if a library has replaced one without telling Python."""
    handlers = _get_handlers()
    try:
        yield
    finally:
        _install(handlers)


def _on_signals(handler: Callable[[int, FrameType | None], None]) -> None:
    for signum in SIGNALS:
        if signum not in IGNORED:
            signal.signal(signum, handler)


def _get_handlers() -> dict[int, Handler]:
    return {signum: signal.getsignal(signum) for signum in SIGNALS}


def _install(handlers: Mapping[int, Handler]) -> None:
    for signum, handler in handlers.items():
        signal.signal(signum, signal.SIG_DFL if handler is None else handler)
