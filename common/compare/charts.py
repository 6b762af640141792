"""The report's charts as plotly.js traces and layouts; colours that depend on the theme are the page's business."""

import base64
from html import escape
from typing import Any

import numpy as np

from common.compare.runs import Run
from common.compare.verdict import Comparison, differences

COLOURS = ("#3b82c4", "#e07b16", "#1f9e77", "#c4509b", "#8b6fd8", "#b8912b", "#d64550", "#5f8fa8")
WIDTHS = (6.0, 2.2, 2.2)  # the first lies below, wide; those above leave it visible where they coincide
DASHES = ("solid", "solid", "dot", "dash", "dashdot", "longdash")
SYMBOLS = ("circle", "diamond", "square", "cross", "x", "triangle-up")
SIZES = (14, 9, 6)
FLOOR = 1e-17  # where zeros are drawn on a logarithmic axis


def charts(comparison: Comparison) -> list[dict[str, Any]]:
    """One dict per chart: title, caption, plotly's data and layout, and `height` (pixels) of one as wide as the page.

    Labels are escaped for plotly's pseudo-HTML.
    """
    runs, several = comparison.runs, len(comparison.runs) > 1
    result = [_chart("Training loss", "Mean over each global batch.", _curves(runs, "loss"), "loss")]
    if several:
        result.append(_difference_chart(comparison, "loss"))
    result.append(_chart("Gradient norm", "Global norm, before clipping.", _curves(runs, "grad_norm"), "grad_norm"))
    if several:
        result.append(_difference_chart(comparison, "grad_norm"))
    if any(len(run.eval_steps) for run in runs):
        result.append(_chart("Validation loss", "Over every validation example once.", _evals(runs, "loss"), "loss"))
        accuracy = _chart("Validation accuracy", result[-1]["caption"], _evals(runs, "accuracy"), "accuracy")
        accuracy["layout"]["yaxis"]["tickformat"] = ".1%"
        result.append(accuracy)
    result.append(_throughput(runs))
    return result


def line_style(index: int) -> dict[str, Any]:
    """Colour, width and dash of the index-th run's curve."""
    return {
        "color": COLOURS[index % len(COLOURS)],
        "width": WIDTHS[min(index, len(WIDTHS) - 1)],
        "dash": DASHES[index % len(DASHES)],
    }


def _curves(runs: list[Run], name: str) -> list[dict[str, Any]]:
    return [_line(run.label, run.steps, run.metrics[name], index) for index, run in enumerate(runs)]


def _evals(runs: list[Run], name: str) -> list[dict[str, Any]]:
    traces = []
    for index, run in enumerate(runs):
        marker = {"symbol": SYMBOLS[index % len(SYMBOLS)], "size": SIZES[min(index, len(SIZES) - 1)]}
        trace = _line(run.label, run.eval_steps, run.evals[name], index)
        traces.append(trace | {"mode": "lines+markers", "marker": marker | {"color": line_style(index)["color"]}})
    return traces


def _difference_chart(comparison: Comparison, name: str) -> dict[str, Any]:
    """|difference| to the reference on a logarithmic axis, with the tolerances of the pairs as dashed lines."""
    reference = comparison.reference
    traces, zeros, gaps = [], False, False
    for index, run in enumerate(comparison.runs):
        if run is reference:
            continue
        steps, loss, norm = differences(reference, run)
        values = loss if name == "loss" else norm
        zeros |= bool((values < FLOOR).any())
        gaps |= bool(np.isinf(values).any())
        drawn = np.where(np.isinf(values), np.nan, np.maximum(values, FLOOR))
        traces.append(_line(run.label, steps, drawn, index, width=1.8))
    steps = np.concatenate([run.steps for run in comparison.runs])
    of_reference = [pair for pair in comparison.pairs if reference in (pair.a, pair.b)]
    for tolerance in sorted({getattr(pair.tolerance, name) for pair in of_reference}) if len(steps) else []:
        trace = _line(f"tolerance {tolerance:g}", np.array([steps.min(), steps.max()]), np.full(2, tolerance), 0)
        traces.append(trace | {"line": {"dash": "dash", "width": 1.5}, "meta": "tolerance"})
    if name == "loss":
        title, caption = "Loss difference", f"|loss − loss of {reference}|, logarithmic."
    else:
        title = "Gradient norm difference"
        caption = f"|difference to {reference}| / the larger of the two, logarithmic."
    caption += f" Zeros are drawn at {FLOOR:g}." if zeros else ""
    caption += " Gaps: not finite." if gaps else ""
    chart = _chart(title, caption, traces, "difference" if name == "loss" else "relative difference")
    chart["layout"]["yaxis"] |= {"type": "log", "exponentformat": "power", "dtick": 3 if zeros else None}
    return chart


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
    chart = _chart("Throughput", "Examples per second, after the warm-up steps.", traces, "")
    chart["layout"] |= {
        "xaxis": {"title": {"text": "examples/s"}, "rangemode": "tozero"},
        "yaxis": {"autorange": "reversed", "automargin": True, "type": "category"},
        "showlegend": False,
        "bargap": 0.4,
    }
    chart["height"] = 80 + 34 * len(runs)
    return chart


def _line(name: str, x: np.ndarray, y: np.ndarray, index: int, width: float | None = None) -> dict[str, Any]:
    return {
        "type": "scatter",
        "mode": "lines" if len(x) > 1 else "markers",
        "name": escape(name),
        "x": _typed(x),
        "y": _typed(y),
        "line": line_style(index) | ({} if width is None else {"width": width}),
        "marker": {"color": line_style(index)["color"]},
        "hovertemplate": "step %{x}: %{y:.8g}",
    }


def _chart(title: str, caption: str, data: list[dict[str, Any]], y_title: str) -> dict[str, Any]:
    layout = {"xaxis": {"title": {"text": "step"}}, "yaxis": {"title": {"text": y_title}, "automargin": True}}
    return {"title": title, "caption": caption, "data": data, "layout": layout}


def _typed(values: np.ndarray) -> dict[str, str]:
    """plotly.js' base64 form of an array: full precision, NaN included."""
    kind = "i4" if values.dtype.kind == "i" else "f8"
    return {"dtype": kind, "bdata": base64.b64encode(values.astype(f"<{kind}").tobytes()).decode()}
