import io
import logging
import sys

import pytest

from common.data import build_progress
from common.data.build_progress import show_progress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("total", [None, 1000])
def test_log_lines(total: int | None, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    clock = iter(range(0, 1000, 6))
    monkeypatch.setattr(build_progress.time, "monotonic", lambda: next(clock))
    with caplog.at_level(logging.INFO, "lockstep"):
        assert list(show_progress(range(1000), "tokenizing", total)) == list(range(1000))
    # The clock is read after 256, 512 and 768 items, and advances by 6 s in between.
    expected = "768 so far, 43 per second" if total is None else "768 of 1000, 43 per second, 5 s left"
    assert caplog.messages == [f"tokenizing: {expected}"]


def test_nothing_is_logged_for_short_work(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "lockstep"):
        assert list(show_progress(range(1000), "tokenizing", 1000)) == list(range(1000))
    assert not caplog.messages


@pytest.mark.parametrize("total", [None, 1000])
def test_a_bar_on_a_terminal(total: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", terminal := Terminal())
    assert list(show_progress(range(1000), "tokenizing", total)) == list(range(1000))
    assert "tokenizing" in terminal.getvalue()
    assert ("left" in terminal.getvalue()) == (total is not None)


def test_it_is_lazy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Items are taken only when the caller asks for them."""
    for stream in (sys.stdout, Terminal()):
        monkeypatch.setattr(sys, "stdout", stream)
        items = iter(range(10))
        assert next(show_progress(items, "x", 10)) == 0
        assert next(items) == 1
