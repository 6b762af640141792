"""The report's bar charts: throughput, staleness, and communication between replicas."""

from html import escape
from typing import Any

import numpy as np

from common.compare.formats import readable_bytes
from common.compare.read import MOVED
from common.compare.runs import Run
from common.compare.style import COLOURS, line_style
from common.compare.traffic import per_step

BYTES = {"type": "log", "exponentformat": "SI", "ticksuffix": "B", "dtick": 1, "automargin": True}


def charts(runs: list[Run]) -> list[dict[str, Any]]:
    """The bar charts for which a run has numbers, in the format of common.compare.charts.charts."""
    result = [_throughput(runs)]
    if any(run.staleness for run in runs):
        result.append(_staleness(runs))
    if counted := [run for run in runs if run.traffic]:
        result += [_traffic(counted), _memory(counted)]
    if any(run.summary.get("bytes_sent") for run in runs):
        result.append(_sent(runs))
    return result


def _throughput(runs: list[Run]) -> dict[str, Any]:
    shown = [(run, run.summary.get("examples_per_second")) for run in runs]
    traces: list[dict[str, Any]] = [
        {
            "type": "bar",
            "orientation": "h",
            "y": [escape(run.label) for run, _ in shown],
            "x": [speed for _, speed in shown],
            "text": ["unknown" if speed is None else f"{speed:,.1f}" for _, speed in shown],
            "textposition": "auto",
            "marker": {"color": [line_style(index)["color"] for index in range(len(runs))]},
            "hovertemplate": "%{y}: %{x:,.1f} examples/s<extra></extra>",
        }
    ]
    layout = {
        "xaxis": {"title": {"text": "examples/s"}, "rangemode": "tozero"},
        "yaxis": {"autorange": "reversed", "automargin": True, "type": "category"},
        "showlegend": False,
        "bargap": 0.4,
    }
    chart = _chart("Throughput", "Examples per second, after the warm-up steps.", traces, layout)
    return chart | {"height": 80 + 34 * len(runs)}


def _staleness(runs: list[Run]) -> dict[str, Any]:
    traces = []
    for index, run in enumerate(runs):
        if updates := sum(run.staleness.values()):
            traces.append(
                {
                    "type": "bar",
                    "name": escape(run.label),
                    "x": list(run.staleness),
                    "y": [count / updates for count in run.staleness.values()],
                    "marker": {"color": line_style(index)["color"]},
                    "hovertemplate": "%{y:.1%}",
                }
            )
    layout = {
        "xaxis": {"title": {"text": "staleness (updates)"}, "dtick": _tick(traces)},
        "yaxis": {"title": {"text": "share of the updates"}, "tickformat": ".0%", "automargin": True},
        "showlegend": True,
    }
    caption = "Updates applied between a worker's read of the parameters and its own update."
    return _chart("Staleness", caption, traces, layout)


def _tick(traces: list[dict[str, Any]]) -> int:
    """The distance between ticks: a whole number that makes about ten of them."""
    return max(1, max(max(trace["x"]) for trace in traces) // 10)


def _traffic(runs: list[Run]) -> dict[str, Any]:
    """A group of bars for each replica of each run, with a bar for each kind."""
    groups = _groups(runs)
    traces = []
    for index, kind in enumerate((*MOVED, "logits")):
        values = np.concatenate([per_step(run, kind) for run in runs])
        traces.append(_bars(f"{kind} held" if kind == "logits" else kind, groups, values, COLOURS[index]))
    caption = "Bytes that each replica moved, and bytes of logits that it held, in a step; logarithmic."
    return _chart("Traffic", caption, traces, _grouped(BYTES))


def _memory(runs: list[Run]) -> dict[str, Any]:
    values = np.concatenate([per_step(run, "memory") for run in runs])
    trace = _bars("peak memory", _groups(runs), values, COLOURS[0])
    linear = {"exponentformat": "SI", "ticksuffix": "B", "rangemode": "tozero", "automargin": True}
    return _chart("Memory of each replica", "Peak bytes.", [trace], _grouped(linear) | {"showlegend": False})


def _sent(runs: list[Run]) -> dict[str, Any]:
    traces = []
    for index, run in enumerate(runs):
        if sent := run.summary.get("bytes_sent"):
            ranks = [f"rank {rank}" for rank in range(len(sent))]
            traces.append(_bars(run.label, ranks, np.array(sent, float), line_style(index)["color"]))
    linear = {"exponentformat": "SI", "ticksuffix": "B", "rangemode": "tozero", "automargin": True}
    return _chart("Sent by each rank", "Bytes of gradients, over all steps.", traces, _grouped(linear))


def _groups(runs: list[Run]) -> list[list[str]]:
    """plotly's two-level categories: run, replica."""
    pairs = [(escape(run.label), f"replica {replica}") for run in runs for replica in range(run.replicas)]
    return [list(level) for level in zip(*pairs, strict=True)]


def _bars(name: str, x: list[Any], values: np.ndarray, colour: str) -> dict[str, Any]:
    return {
        "type": "bar",
        "name": escape(name),
        "x": x,
        "y": [value if np.isfinite(value) and value > 0 else None for value in values.tolist()],
        "text": [readable_bytes(value) for value in values.tolist()],
        "textposition": "none",
        "marker": {"color": colour},
        "hovertemplate": "%{text}",
    }


def _grouped(y: dict[str, Any]) -> dict[str, Any]:
    return {"xaxis": {"automargin": True}, "yaxis": dict(y), "barmode": "group", "showlegend": True}


def _chart(title: str, caption: str, data: list[dict[str, Any]], layout: dict[str, Any]) -> dict[str, Any]:
    return {"title": title, "caption": caption, "data": data, "layout": layout}
