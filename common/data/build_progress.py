"""How far the building of a cache is: a progress bar on a terminal, a line now and then elsewhere."""

import logging
import sys
import time
from collections.abc import Iterable, Iterator
from typing import TypeVar

log = logging.getLogger("lockstep")

SECONDS = 15.0  # between lines
EVERY = 256  # items between looks at the clock

Item = TypeVar("Item")


def show_progress(items: Iterable[Item], title: str, total: int | None = None) -> Iterator[Item]:
    """The items, while their number and, where the total is known, the time left are shown."""
    return _with_bar(items, title, total) if sys.stdout.isatty() else _with_lines(items, title, total)


def _with_bar(items: Iterable[Item], title: str, total: int | None) -> Iterator[Item]:
    from rich import progress as bars

    columns = (bars.TextColumn(title), bars.BarColumn(), bars.MofNCompleteColumn(), bars.TimeElapsedColumn())
    left = () if total is None else (bars.TextColumn("left"), bars.TimeRemainingColumn())
    with bars.Progress(*columns, *left, transient=True) as progress:
        task = progress.add_task(title, total=total)
        for number, item in enumerate(items, 1):
            if number % EVERY == 0:
                progress.update(task, completed=number)
            yield item


def _with_lines(items: Iterable[Item], title: str, total: int | None) -> Iterator[Item]:
    start = last = time.monotonic()
    for number, item in enumerate(items, 1):
        if number % EVERY == 0 and (now := time.monotonic()) - last >= SECONDS:
            last, rate = now, number / (now - start)
            if total is None:
                log.info("%s: %d so far, %.0f a second", title, number, rate)
            else:
                left = (total - number) / rate
                log.info("%s: %d of %d, %.0f a second, %.0f s left", title, number, total, rate, left)
        yield item
