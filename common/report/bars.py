"""Bar charts of the report: speed, memory, staleness, and communication between replicas.

A chart has a group of bars for each run that has values. Bars are drawn on a scale from 0 to 1, the width of the chart.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from common.compare.columns import MOVED_KINDS
from common.compare.measures import measure_efficiency, measure_speed
from common.compare.runs import Run
from common.report.formats import format_bytes

MAX_STALENESS_BARS = 12  # bars of one run; all larger staleness shares one more bar


@dataclass(frozen=True)
class Bar:
    """One bar, from 0 to `end`. Positions are shares of the width of the chart."""

    name: str
    text: str  # the value as text, shown beside the bar
    end: float
    low: float | None = None  # start of a thin line that shows the spread of the value
    high: float | None = None  # end of this line


@dataclass(frozen=True)
class BarChart:
    """Bars in groups, one group for each run."""

    title: str
    caption: str
    groups: list[tuple[int, list[Bar]]] = field(default_factory=list)  # index of the run, and its bars


def build_bar_charts(runs: list[Run]) -> list[BarChart]:
    """Return the charts for which a run has values."""
    charts = [
        _build_throughput(runs),
        _build_step_time(runs),
        _build_peak_memory(runs),
        _build_staleness(runs),
        _build_traffic(runs),
        _build_replica_memory(runs),
        _build_sent(runs),
    ]
    return [chart for chart in charts if chart.groups]


def _build_throughput(runs: list[Run]) -> BarChart:
    chart = BarChart(
        "Throughput",
        "Examples per second after the warm-up steps, evaluations left out. The line marks the middle half of up to 20 "
        "blocks of steps.",
    )
    rows = []
    for index, run in enumerate(runs):
        speed, overall = measure_speed(run), run.summary.get("examples_per_second")
        if value := overall or (speed and speed.median):
            rows.append((index, run, float(value), speed))
    largest = max((max(value, speed.upper if speed else 0) for _, _, value, speed in rows), default=1.0)
    for index, run, value, speed in rows:
        text = f"{value:,.0f}/s" + (f" ({speed.lower:,.0f} to {speed.upper:,.0f})" if speed else "")
        if efficiency_and_base := measure_efficiency(run, runs):
            efficiency, base = efficiency_and_base
            text += f", {efficiency:.0%} efficient against {base.replicas} replica{'s' if base.replicas > 1 else ''}"
        low, high = (speed.lower / largest, speed.upper / largest) if speed else (None, None)
        chart.groups.append((index, [Bar("", text, value / largest, low, high)]))
    return chart


def _build_step_time(runs: list[Run]) -> BarChart:
    chart = BarChart(
        "Time of a step",
        "Shares of five steps of the first rank, from its profile. A hidden reduction runs while the rank computes, so "
        "its time counts as computation, too; the rank waits for an exposed reduction.",
    )
    for index, run in enumerate(runs):
        if run.profile:
            bars = [Bar(phase, f"{share:.1%}", share) for phase, share in run.profile.shares.items()]
            chart.groups.append((index, bars))
    return chart


def _build_peak_memory(runs: list[Run]) -> BarChart:
    peaks = {index: run.summary.get("peak_memory_bytes") for index, run in enumerate(runs)}
    return _build_bytes_chart("Peak memory", "Of each replica's process or device.", peaks, "replica")


def _build_replica_memory(runs: list[Run]) -> BarChart:
    peaks = {
        index: run.get_traffic_per_step("memory").tolist()
        for index, run in enumerate(runs)
        if "memory" in run.bytes_by_kind
    }
    caption = "Peak bytes that DataParallel's replicas held in a step."
    return _build_bytes_chart("Memory of each replica", caption, peaks, "replica")


def _build_sent(runs: list[Run]) -> BarChart:
    sent = {index: run.summary.get("bytes_sent") for index, run in enumerate(runs)}
    return _build_bytes_chart("Sent by each rank", "Bytes of gradients, over all steps.", sent, "rank")


def _build_bytes_chart(
    title: str, caption: str, values_of_runs: Mapping[int, Sequence[float | None] | None], unit: str
) -> BarChart:
    """Build a chart of bytes with a bar for each replica or rank of each run; unknown values have no bar."""
    chart = BarChart(title, caption)
    known = {
        index: [
            (f"{unit} {number}", value) for number, value in enumerate(values or []) if value and np.isfinite(value)
        ]
        for index, values in values_of_runs.items()
    }
    largest = max((value for values in known.values() for _, value in values), default=1)
    for index, values in known.items():
        if values:
            bars = [Bar(name, format_bytes(value), value / largest) for name, value in values]
            chart.groups.append((index, bars))
    return chart


def _build_staleness(runs: list[Run]) -> BarChart:
    chart = BarChart("Staleness", "Updates applied between a worker's read of the parameters and its own update.")
    for index, run in enumerate(runs):
        if updates := sum(run.staleness.values()):
            counts = list(run.staleness.items())
            rows = [(str(staleness), count) for staleness, count in counts[:MAX_STALENESS_BARS]]
            if larger := counts[MAX_STALENESS_BARS:]:
                rows.append((f"{larger[0][0]} to {larger[-1][0]}", sum(count for _, count in larger)))
            bars = [Bar(name, f"{count / updates:.1%}", count / updates) for name, count in rows]
            chart.groups.append((index, bars))
    return chart


def _build_traffic(runs: list[Run]) -> BarChart:
    """Build a chart with a bar for each kind of bytes of each replica, on a logarithmic scale from 1 byte."""
    chart = BarChart(
        "Traffic", "Bytes that each replica moved, and bytes of logits that it held, in a step; logarithmic."
    )
    rows = {
        index: [
            (f"{kind}{' held' if kind == 'logits' else ''}, replica {replica}", float(values[replica]))
            for kind in (*MOVED_KINDS, "logits")
            if kind in run.bytes_by_kind
            for values in [run.get_traffic_per_step(kind)]
            for replica in range(run.replicas)
            if np.isfinite(values[replica])
        ]
        for index, run in enumerate(runs)
        if run.bytes_by_kind
    }
    largest = max((value for values in rows.values() for _, value in values), default=1)
    for index, values in rows.items():
        bars = [
            Bar(name, format_bytes(value), float(np.log2(1 + value) / np.log2(1 + largest)) if largest else 0)
            for name, value in values
        ]
        chart.groups.append((index, bars))
    return chart
