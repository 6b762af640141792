import ctypes
import os
import random
import signal
import threading
import time
from collections.abc import Callable, Iterator
from queue import SimpleQueue

import pytest
from omegaconf import OmegaConf

from common.errors import Interrupted
from common.training import stop as stop_module
from common.training.stop import SAVE, SIGNALS, Stop, interrupt_on_signals, preserve_handlers
from tests.conftest import Python


class FakeChannel:
    def __init__(self) -> None:
        self.requests: SimpleQueue[int] = SimpleQueue()

    def request(self, signum: int) -> None:
        self.requests.put(signum)


@pytest.fixture(autouse=True)
def handlers() -> Iterator[Callable[[], list[object]]]:
    """Return a function that returns the current handlers. Afterwards, wait for all timers and restore the handlers."""
    before = {signum: signal.getsignal(signum) for signum in SIGNALS}
    yield lambda: [signal.getsignal(signum) for signum in SIGNALS]
    for thread in threading.enumerate():
        if isinstance(thread, threading.Timer):
            thread.join()
    for signum, handler in before.items():
        signal.signal(signum, signal.SIG_IGN)  # discards pending signals
        signal.signal(signum, handler)


def test_alone(handlers: Callable[[], list[object]]) -> None:
    before = handlers()
    stop = Stop()
    stop.check()
    assert list(stop.yield_until_stop([1, 2])) == [1, 2]
    items = stop.yield_until_stop(iter(range(10)))
    assert [next(items), next(items)] == [0, 1]
    assert stop.signum is None
    signal.raise_signal(signal.SIGHUP)
    signal.raise_signal(signal.SIGTERM)  # a second signal is ignored
    assert stop.signum == signal.SIGHUP
    assert list(items) == [] and list(stop.yield_until_stop([1])) == []
    for _ in range(2):
        with pytest.raises(Interrupted, match=r"^stopped by SIGHUP$") as raised:
            stop.check()
        assert raised.value.exit_code == 129
    stop.restore()
    assert handlers() == before


def test_no_items_after_an_interruption() -> None:
    stop = Stop()
    items = stop.yield_or_interrupt(iter(range(10)))
    assert next(items) == 0
    signal.raise_signal(signal.SIGTERM)
    with pytest.raises(Interrupted, match=r"^stopped by SIGTERM$"):
        next(items)


def test_listen_takes_the_signals_back() -> None:
    stop = Stop()
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    stop.listen()
    signal.raise_signal(signal.SIGTERM)
    assert stop.signum == signal.SIGTERM


def test_restore_where_the_handler_was_not_installed_by_python(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(signal, "getsignal", lambda signum: None)
    stop = Stop()
    monkeypatch.undo()
    stop.restore()
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL


@pytest.mark.parametrize(("begun", "last", "done"), [(3, 3, 3), (3, 5, 5), (0, 0, 0), (0, 2, 2), (3, 1, 3)])
def test_a_frozen_rank_continues_up_to_the_decided_unit(begun: int, last: int, done: int) -> None:
    stop = Stop()
    items = stop.yield_until_stop(iter(range(10)))
    got = [next(items) for _ in range(begun)]
    assert stop.freeze(signal.SIGTERM) == begun
    start = time.monotonic()
    threading.Timer(0.05, stop.decide, (last,)).start()
    got += items
    assert time.monotonic() - start >= 0.05
    assert got == list(range(done))
    stop.decide(9)  # this decision comes too late
    with pytest.raises(Interrupted, match="SIGTERM"):
        stop.check()


def test_a_decision_may_lie_beyond_a_check() -> None:
    """A rank that is frozen at a check must pass it if another rank has passed it, because collectives may follow."""
    stop = Stop()
    assert list(stop.yield_until_stop(range(3))) == [0, 1, 2]
    stop.freeze(signal.SIGTERM)
    stop.decide(4)
    stop.check()
    with pytest.raises(Interrupted):
        next(stop.yield_or_interrupt([0]))


def test_without_a_decision_it_stops_alone(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(stop_module, "DECISION_SECONDS", 0.05)
    stop = Stop()
    items = stop.yield_until_stop(iter(range(10)))
    next(items)
    stop.freeze(signal.SIGTERM)
    assert list(items) == []
    assert "no decision about the stop" in caplog.text


def test_a_request_is_sent_to_the_channel() -> None:
    stop, channel = Stop(), FakeChannel()
    stop.connect(channel)
    items = stop.yield_until_stop(iter(range(10)))
    next(items)
    signal.raise_signal(signal.SIGTERM)
    assert channel.requests.get(timeout=5) == signal.SIGTERM
    assert stop.signum is None  # the ranks have not agreed yet
    assert next(items) == 1
    assert stop.freeze(signal.SIGINT) == 2  # the request of another rank came first
    stop.decide(2)
    assert list(items) == []
    assert stop.signum == signal.SIGINT


def test_an_earlier_request_is_sent_when_the_channel_is_connected() -> None:
    stop, channel = Stop(), FakeChannel()
    signal.raise_signal(signal.SIGHUP)
    stop.connect(channel)
    assert channel.requests.get(timeout=5) == signal.SIGHUP
    stop.freeze(signal.SIGHUP)
    stop.decide(2)
    assert list(stop.yield_until_stop(range(10))) == [0, 1]


def test_the_handler_needs_no_lock() -> None:
    stop, channel = Stop(), FakeChannel()
    stop.connect(channel)
    with stop._changed:
        signal.raise_signal(signal.SIGTERM)
        assert channel.requests.get(timeout=5) == signal.SIGTERM


def test_signals_while_the_main_thread_waits() -> None:
    stop, channel = Stop(), FakeChannel()
    stop.connect(channel)
    stop.freeze(signal.SIGTERM)
    for seconds in (0.02, 0.04, 0.06):
        threading.Timer(seconds, os.kill, (os.getpid(), signal.SIGINT)).start()
    threading.Timer(0.1, stop.decide, (1,)).start()
    assert list(stop.yield_until_stop(range(10))) == [0]
    assert stop.signum == signal.SIGTERM
    assert channel.requests.empty()


def test_the_wait_is_interruptible() -> None:
    stop = Stop()
    stop.freeze(signal.SIGTERM)
    threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGINT)).start()
    with pytest.raises(Interrupted, match="SIGINT"), interrupt_on_signals():
        stop.check()


def test_a_checkpoint_alone() -> None:
    stop = Stop()
    items = stop.yield_until_stop(iter(range(10)))
    assert [next(items), next(items)] == [0, 1]
    stop.save()
    assert not stop.saving
    assert list(items) == [] and stop.saving
    stop.saving = False
    assert list(stop.yield_until_stop(range(3))) == [0, 1, 2] and not stop.saving
    stop.save()
    stop.check()
    assert stop.saving


@pytest.mark.parametrize(("begun", "unit", "done"), [(3, 3, 3), (3, 5, 5), (0, 0, 0), (0, 2, 2)])
def test_a_frozen_rank_saves_after_the_decided_unit(begun: int, unit: int, done: int) -> None:
    stop = Stop()
    items = stop.yield_until_stop(iter(range(10)))
    got = [next(items) for _ in range(begun)]
    assert stop.freeze(SAVE) == begun
    start = time.monotonic()
    threading.Timer(0.05, stop.save_after, (unit,)).start()
    got += items
    assert time.monotonic() - start >= 0.05
    assert got == list(range(done)) and stop.saving
    stop.saving = False
    assert list(stop.yield_until_stop(range(3))) == [0, 1, 2] and not stop.saving


def test_a_checkpoint_is_asked_of_the_channel() -> None:
    stop, channel = Stop(), FakeChannel()
    stop.connect(channel)
    items = stop.yield_until_stop(iter(range(10)))
    next(items)
    stop.save()
    assert channel.requests.get(timeout=5) == SAVE
    threading.Timer(0.05, stop.save_after, (2,)).start()  # another rank has begun the second unit
    assert list(items) == [1] and stop.saving


def test_an_evaluation_ends_before_a_checkpoint() -> None:
    stop = Stop()
    items = stop.yield_or_interrupt(range(3))
    next(items)
    stop.save()
    assert list(items) == [1, 2] and stop.saving


def test_two_checkpoints_may_be_decided_before_the_first_is_due() -> None:
    """A rank that runs ahead may pass the first checkpoint before the others and request a second one."""
    stop = Stop()
    for unit in (2, 4):
        stop.freeze(SAVE)
        stop.save_after(unit)
    for done in (2, 1, 3):  # the numbers of units that end before a checkpoint or the end
        assert len(list(stop.yield_until_stop(range(3)))) == done
        assert stop.saving == (done < 3)
        stop.saving = False


def test_no_checkpoint_is_agreed_on() -> None:
    """The chief has ended, so the ranks agree on no checkpoint."""
    stop = Stop()
    stop.freeze(SAVE)
    threading.Timer(0.05, stop.save_after, (None,)).start()
    assert list(stop.yield_until_stop(range(3))) == [0, 1, 2] and not stop.saving


@pytest.mark.parametrize("decided", [False, True])
def test_a_stop_while_a_checkpoint_is_agreed_on(decided: bool) -> None:
    stop = Stop()
    items = stop.yield_until_stop(iter(range(10)))
    next(items)
    stop.freeze(SAVE)
    stopping = threading.Timer(0.05, lambda: stop.decide(stop.freeze(signal.SIGTERM) + 1))
    stopping.start()
    if decided:
        stop.save_after(3)
        stopping.join()
    assert list(items) == [1]
    with pytest.raises(Interrupted, match="SIGTERM"):
        stop.check()
    stop.save()  # has no effect, because the stop saves a checkpoint
    assert list(stop.yield_until_stop(range(3))) == []


@pytest.mark.slow
def test_a_storm_of_signals() -> None:
    """A signal may arrive anywhere in the main thread. It is handled once, and no lock stays locked."""
    randomness = random.Random(0)
    for _ in range(30):
        stop, channel = Stop(), FakeChannel()
        stop.connect(channel)

        def agree(stop: Stop = stop, channel: FakeChannel = channel) -> None:
            signum = channel.requests.get(timeout=5)
            stop.decide(stop.freeze(signum) + 100)

        agreeing = threading.Thread(target=agree)
        agreeing.start()
        sending = [
            threading.Timer(randomness.random() * 0.02, os.kill, (os.getpid(), signal.SIGTERM)) for _ in range(5)
        ]
        for timer in sending:
            timer.start()
        begun = sum(1 for _ in stop.yield_until_stop(iter(int, 1)))
        agreeing.join(5)
        assert stop._begun_units == begun == stop._last_unit
        for timer in sending:  # late signals
            timer.join()
        assert channel.requests.empty()


def test_interruptible(handlers: Callable[[], list[object]]) -> None:
    before = handlers()
    with pytest.raises(Interrupted, match=r"^stopped by SIGTERM$"), interrupt_on_signals():
        signal.raise_signal(signal.SIGTERM)
    assert handlers() == before


def test_a_library_that_catches_exceptions_does_not_replace_an_interruption() -> None:
    """OmegaConf catches every Exception, and raises another error of the same type, which is built from a message."""
    OmegaConf.register_new_resolver("interrupt", lambda: signal.raise_signal(signal.SIGTERM))
    try:
        with pytest.raises(Interrupted, match=r"^stopped by SIGTERM$"), interrupt_on_signals():
            _ = OmegaConf.create({"key": "${interrupt:}"}).key
    finally:
        OmegaConf.clear_resolver("interrupt")


def test_handlers_are_kept_where_a_library_replaces_them() -> None:
    """TensorFlow's collectives replace handlers without the knowledge of Python."""
    stop = Stop()
    with preserve_handlers():
        ctypes.CDLL(None).signal(int(signal.SIGTERM), ctypes.c_void_p(1))  # 1 is SIG_IGN
        os.kill(os.getpid(), signal.SIGTERM)
        assert stop.signum is None
    os.kill(os.getpid(), signal.SIGTERM)
    assert stop.signum == signal.SIGTERM
    stop.restore()


@pytest.mark.parametrize("ignored", [signal.SIGHUP, signal.SIGINT, signal.SIGQUIT])
def test_a_signal_that_the_command_was_started_to_ignore(python: Python, ignored: int) -> None:
    """A command that was started with an ignored signal keeps ignoring it. nohup starts commands so for SIGHUP."""
    code = """
import os, signal, subprocess, sys
CODE = (
    "import signal; from common.training.stop import Stop; "
    "stop = Stop(); signal.raise_signal(int(sys.argv[1])); print(stop.signum)"
)
signal.signal(int(sys.argv[1]), signal.SIG_IGN)
subprocess.run([sys.executable, "-c", "import sys; " + CODE, sys.argv[1]])
signal.signal(int(sys.argv[1]), signal.SIG_DFL)
subprocess.run([sys.executable, "-c", "import sys; " + CODE, sys.argv[1]])
"""
    assert python(code, str(int(ignored))).split() == ["None", str(int(ignored))]
