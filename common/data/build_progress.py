"""Progress of building a cache: a bar on a terminal, otherwise a log line from time to time."""

import logging
import sys
import time
from collections.abc import Iterable, Iterator
from typing import TypeVar

log = logging.getLogger("lockstep")

LOG_SECONDS = 15.0  # between log lines
ITEMS_PER_UPDATE = 256  # items between updates of the bar, or between looks at the clock

Item = TypeVar("Item")


def show_progress(items: Iterable[Item], title: str, total: int | None = None) -> Iterator[Item]:
    """Yield the items, and show how many were yielded and, if the total is known, the time left."""
    return _show_bar(items, title, total) if sys.stdout.isatty() else _log_lines(items, title, total)


def _show_bar(items: Iterable[Item], title: str, total: int | None) -> Iterator[Item]:
    from rich import progress as bars

    columns = (bars.TextColumn(title), bars.BarColumn(), bars.MofNCompleteColumn(), bars.TimeElapsedColumn())
    time_left = () if total is None else (bars.TextColumn("left"), bars.TimeRemainingColumn())
    with bars.Progress(*columns, *time_left, transient=True) as progress:
        task = progress.add_task(title, total=total)
        for number, item in enumerate(items, 1):
            if number % ITEMS_PER_UPDATE == 0:
                progress.update(task, completed=number)
            yield item


def _log_lines(items: Iterable[Item], title: str, total: int | None) -> Iterator[Item]:
    start = last_line = time.monotonic()
    for number, item in enumerate(items, 1):
        if number % ITEMS_PER_UPDATE == 0 and (now := time.monotonic()) - last_line >= LOG_SECONDS:
            last_line, rate = now, number / (now - start)
            if total is None:
                log.info("%s: %d so far, %.0f per second", title, number, rate)
            else:
                left = (total - number) / rate
                log.info("%s: %d of %d, %.0f per second, %.0f s left", title, number, total, rate, left)
        yield item
