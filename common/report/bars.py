"""The report's bars: speed, memory, staleness, and communication between replicas. The page draws them as HTML."""

from dataclasses import dataclass, field

import numpy as np

from common.compare.read import MOVED
from common.compare.runs import Run
from common.compare.speed import efficiency, speed
from common.report.formats import format_bytes
from common.report.traffic import per_step

MOST_ROWS = 12  # of one run; what is beyond is one row


@dataclass(frozen=True)
class Bar:
    """One bar. `end`, `low` and `high` are shares of the width; low and high are the spread, where there is one."""

    name: str
    text: str
    end: float
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True)
class Chart:
    """Bars in groups, one for each run: (index of the run, its bars)."""

    title: str
    caption: str
    groups: list[tuple[int, list[Bar]]] = field(default_factory=list)


def charts(runs: list[Run]) -> list[Chart]:
    """The charts for which a run has numbers."""
    found = [
        _throughput(runs),
        _split(runs),
        _peaks(runs),
        _staleness(runs),
        _traffic(runs),
        _memory(runs),
        _sent(runs),
    ]
    return [chart for chart in found if chart.groups]


def _throughput(runs: list[Run]) -> Chart:
    chart = Chart(
        "Throughput",
        "Examples per second after the warm-up steps, evaluations left out. The line marks the middle half of up to 20 "
        "blocks of steps.",
    )
    rows = []
    for index, run in enumerate(runs):
        spread, overall = speed(run), run.summary.get("examples_per_second")
        if value := overall or (spread and spread.median):
            rows.append((index, run, float(value), spread))
    most = max((max(value, spread.upper if spread else 0) for _, _, value, spread in rows), default=1.0)
    for index, run, value, spread in rows:
        text = f"{value:,.0f}/s" + (f" ({spread.lower:,.0f} to {spread.upper:,.0f})" if spread else "")
        if scaled := efficiency(run, runs):
            text += f", {scaled[0]:.0%} efficient against {scaled[1].replicas} replica" + "s" * (scaled[1].replicas > 1)
        ends = (spread.lower / most, spread.upper / most) if spread else (None, None)
        chart.groups.append((index, [Bar("", text, value / most, *ends)]))
    return chart


def _split(runs: list[Run]) -> Chart:
    chart = Chart(
        "Time of a step",
        "Shares of five steps of the first rank, from its profile. A hidden reduction runs while the rank computes "
        "and counts there too; an exposed one is waited for.",
    )
    for index, run in enumerate(runs):
        if run.profile:
            shares = [Bar(phase, f"{share:.1%}", share) for phase, share in run.profile.split.items()]
            chart.groups.append((index, shares))
    return chart


def _peaks(runs: list[Run]) -> Chart:
    peaks = {index: run.summary.get("peak_memory_bytes") for index, run in enumerate(runs)}
    return _bytes("Peak memory", "Of each replica's process or device.", peaks, "replica")


def _memory(runs: list[Run]) -> Chart:
    counted = {index: per_step(run, "memory").tolist() for index, run in enumerate(runs) if "memory" in run.traffic}
    return _bytes(
        "Memory of each replica", "Peak bytes that DataParallel's replicas held in a step.", counted, "replica"
    )


def _sent(runs: list[Run]) -> Chart:
    sent = {index: run.summary.get("bytes_sent") for index, run in enumerate(runs)}
    return _bytes("Sent by each rank", "Bytes of gradients, over all steps.", sent, "rank")


def _bytes(title: str, caption: str, of_runs: dict[int, list[float | None] | None], what: str) -> Chart:
    chart = Chart(title, caption)
    known = {
        index: [(f"{what} {place}", value) for place, value in enumerate(values or []) if value and np.isfinite(value)]
        for index, values in of_runs.items()
    }
    most = max((value for values in known.values() for _, value in values), default=1)
    for index, values in known.items():
        if values:
            bars = [Bar(name, format_bytes(value), value / most) for name, value in values]
            chart.groups.append((index, bars))
    return chart


def _staleness(runs: list[Run]) -> Chart:
    chart = Chart("Staleness", "Updates applied between a worker's read of the parameters and its own update.")
    for index, run in enumerate(runs):
        if updates := sum(run.staleness.values()):
            counts = list(run.staleness.items())
            rows = [(str(staleness), count) for staleness, count in counts[:MOST_ROWS]]
            if rest := counts[MOST_ROWS:]:
                rows.append((f"{rest[0][0]} to {rest[-1][0]}", sum(count for _, count in rest)))
            chart.groups.append((index, [Bar(name, f"{n / updates:.1%}", n / updates) for name, n in rows]))
    return chart


def _traffic(runs: list[Run]) -> Chart:
    """A bar for each kind of bytes of each replica, on a logarithmic scale from 1 byte."""
    chart = Chart("Traffic", "Bytes that each replica moved, and bytes of logits that it held, in a step; logarithmic.")
    rows = {
        index: [
            (f"{kind}{' held' if kind == 'logits' else ''}, replica {replica}", float(per_step(run, kind)[replica]))
            for kind in (*MOVED, "logits")
            if kind in run.traffic
            for replica in range(run.replicas)
        ]
        for index, run in enumerate(runs)
        if run.traffic
    }
    most = max((value for values in rows.values() for _, value in values if np.isfinite(value)), default=1)
    for index, values in rows.items():
        shown = [
            Bar(name, format_bytes(value), float(np.log2(1 + value) / np.log2(1 + most)) if most else 0)
            for name, value in values
            if np.isfinite(value)
        ]
        chart.groups.append((index, shown))
    return chart
