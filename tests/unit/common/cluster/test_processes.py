import signal
import sys
from collections.abc import Callable, Iterator

import pytest

from common.cluster.processes import Stop, interruptible
from common.cluster.processes import python as python_command
from common.errors import Interrupted


@pytest.fixture
def handlers() -> Iterator[Callable[[], list[object]]]:
    """What handles the signals now; all is put back afterwards."""
    signals = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {signum: signal.getsignal(signum) for signum in signals}
    yield lambda: [signal.getsignal(signum) for signum in signals]
    for signum, handler in before.items():
        signal.signal(signum, handler)


def test_stop(handlers: Callable[[], list[object]]) -> None:
    before = handlers()
    stop = Stop()
    stop.check()
    assert list(stop.end([1, 2])) == [1, 2]
    items = stop.end(iter(range(10)))
    assert [next(items), next(items)] == [0, 1]
    signal.raise_signal(signal.SIGHUP)
    assert list(items) == []
    with pytest.raises(Interrupted, match="^stopped by SIGHUP$") as raised:
        stop.check()
    assert raised.value.exit_code == 129
    stop.restore()
    assert handlers() == before


def test_python_runs_a_module() -> None:
    assert python_command("a.b", "c") == [sys.executable, "-m", "a.b", "c"]


def test_interruptible(handlers: Callable[[], list[object]]) -> None:
    before = handlers()
    with pytest.raises(Interrupted, match="^stopped by SIGTERM$"), interruptible():
        signal.raise_signal(signal.SIGTERM)
    assert handlers() == before


def test_no_items_after_an_interruption(handlers: Callable[[], list[object]]) -> None:
    stop = Stop()
    items = stop.interrupt(iter(range(10)))
    assert next(items) == 0
    signal.raise_signal(signal.SIGTERM)
    with pytest.raises(Interrupted):
        next(items)
    stop.restore()
