"""The report's charts as plotly.js traces and layouts. The page adds the colours that depend on its theme."""

import base64
from html import escape
from itertools import pairwise
from typing import Any

import numpy as np

from common.compare import bars
from common.compare.pair import differences
from common.compare.runs import Run
from common.compare.style import SIZES, SYMBOLS, line_style
from common.compare.verdict import Comparison

FLOOR = 1e-17  # where zeros are drawn on a logarithmic axis
LABEL_HEIGHT = 0.07  # of a chart


def charts(comparison: Comparison) -> list[dict[str, Any]]:
    """One dict per chart: title, caption, plotly's data and layout.

    A chart that is as wide as the page has a `height` (pixels) too. Labels are escaped for plotly's pseudo-HTML.
    """
    runs, axis = comparison.runs, _axis(comparison.runs)
    others = [run for run in runs if run is not comparison.reference and not run.asynchronous]
    comparable = bool(others) and not comparison.reference.asynchronous
    each = "update's batch" if any(run.asynchronous for run in runs) else "global batch"
    result = [_chart("Training loss", f"Mean over each {each}.", _curves(runs, "loss", axis), "loss", axis)]
    if comparable:
        result.append(_difference_chart(comparison, others, "loss"))
    norms = _curves(runs, "grad_norm", axis)
    result.append(_chart("Gradient norm", "Global norm, before clipping.", norms, "grad_norm", axis))
    if comparable:
        result.append(_difference_chart(comparison, others, "grad_norm"))
    if any(len(run.eval_steps) for run in runs):
        caption = "Mean over all validation examples."
        result.append(_chart("Validation loss", caption, _evals(runs, "loss", axis), "loss", axis))
        accuracy = _chart("Validation accuracy", caption, _evals(runs, "accuracy", axis), "accuracy", axis)
        accuracy["layout"]["yaxis"]["tickformat"] = ".1%"
        result.append(accuracy)
    for chart in result:
        _mark_changes(chart, comparison)
    return result + bars.charts(runs)


def _axis(runs: list[Run]) -> str:
    """The x-axis of curves: steps, or examples where a step does not have the same number of examples in every run."""
    if any(run.asynchronous for run in runs):
        return "examples"
    for run in runs[1:]:
        _, i, j = np.intersect1d(runs[0].steps, run.steps, assume_unique=True, return_indices=True)
        if not np.array_equal(runs[0].metrics["examples"][i], run.metrics["examples"][j]):
            return "examples"
    return "step"


def _curves(runs: list[Run], name: str, axis: str) -> list[dict[str, Any]]:
    return [
        _line(run.label, run.steps if axis == "step" else run.metrics["examples"], run.metrics[name], index, axis)
        for index, run in enumerate(runs)
    ]


def _evals(runs: list[Run], name: str, axis: str) -> list[dict[str, Any]]:
    traces = []
    for index, run in enumerate(runs):
        marker = {"symbol": SYMBOLS[index % len(SYMBOLS)], "size": SIZES[min(index, len(SIZES) - 1)]}
        x = run.eval_steps if axis == "step" else run.evals["examples"]
        trace = _line(run.label, x, run.evals[name], index, axis)
        traces.append(trace | {"mode": "lines+markers", "marker": marker | {"color": line_style(index)["color"]}})
    return traces


def _difference_chart(comparison: Comparison, others: list[Run], name: str) -> dict[str, Any]:
    """|difference| from the reference on a logarithmic axis, with the tolerances of the pairs as dashed lines."""
    reference = comparison.reference
    traces, zeros, gaps = [], False, False
    for run in others:
        steps, loss, norm = differences(reference, run)
        values = loss if name == "loss" else norm
        zeros |= bool((values < FLOOR).any())
        gaps |= bool(np.isinf(values).any())
        drawn = np.where(np.isinf(values), np.nan, np.maximum(values, FLOOR))
        traces.append(_line(run.label, steps, drawn, comparison.runs.index(run), "step", width=1.8))
    steps = np.concatenate([run.steps for run in (reference, *others)])
    of_reference = [pair for pair in comparison.pairs if reference in (pair.a, pair.b) and not pair.asynchronous]
    for tolerance in sorted({getattr(pair.tolerance, name) for pair in of_reference}) if len(steps) else []:
        trace = _line(
            f"tolerance {tolerance:g}", np.array([steps.min(), steps.max()]), np.full(2, tolerance), 0, "step"
        )
        traces.append(trace | {"line": {"dash": "dash", "width": 1.5}, "meta": "tolerance"})
    if name == "loss":
        title, caption = "Loss difference", f"|loss − loss of {reference}|, logarithmic."
    else:
        title = "Gradient norm difference"
        caption = f"|difference from {reference}| / the larger of the two, logarithmic."
    caption += f" Zeros are drawn at {FLOOR:g}." if zeros else ""
    caption += " Gaps: the difference is not finite." if gaps else ""
    chart = _chart(title, caption, traces, "difference" if name == "loss" else "relative difference", "step")
    chart["layout"]["yaxis"] |= {"type": "log", "exponentformat": "power", "dtick": 3 if zeros else None}
    return chart


def _line(name: str, x: np.ndarray, y: np.ndarray, index: int, axis: str, width: float | None = None) -> dict[str, Any]:
    return {
        "type": "scatter",
        "mode": "lines" if len(x) > 1 else "markers",
        "name": escape(name),
        "x": _typed(x),
        "y": _typed(y),
        "line": line_style(index) | ({} if width is None else {"width": width}),
        "marker": {"color": line_style(index)["color"]},
        "hovertemplate": axis + " %{x}: %{y:.8g}",
    }


def _chart(title: str, caption: str, data: list[dict[str, Any]], y_title: str, axis: str) -> dict[str, Any]:
    layout = {"xaxis": {"title": {"text": axis}}, "yaxis": {"title": {"text": y_title}, "automargin": True}}
    return {"title": title, "caption": caption, "data": data, "layout": layout}


def _mark_changes(chart: dict[str, Any], comparison: Comparison) -> None:
    """Draw a line, in the colour of the run, at each step from which on a run had another number of replicas."""
    layout = chart["layout"]
    axis = layout["xaxis"]["title"]["text"]
    drawn = {trace["name"] for trace in chart["data"]} | {escape(comparison.reference.label)}
    runs = [(index, run) for index, run in enumerate(comparison.runs) if escape(run.label) in drawn]
    changed = [(index, run) for index, run in runs if run.replica_changes]
    layout["shapes"] = [
        _change(run, step, f"{before} → {after}", axis, line_style(index)["color"], 1 - LABEL_HEIGHT * (place + 1))
        for place, (index, run) in enumerate(changed)
        for (_, before), (step, after) in pairwise(run.replica_changes)
        if step in run.steps
    ]
    if layout["shapes"]:
        chart["caption"] += " Vertical lines: the number of replicas changed."


def _change(run: Run, step: int, text: str, axis: str, colour: str, height: float) -> dict[str, Any]:
    x = step if axis == "step" else float(run.metrics["examples"][np.searchsorted(run.steps, step)])
    return {
        "type": "line",
        **{"x0": x, "x1": x, "y0": 0, "y1": height, "yref": "paper"},
        "line": {"color": colour, "width": 1, "dash": "dot"},
        "label": {"text": text, "textposition": "end", "textangle": 0, "font": {"color": colour, "size": 11}},
    }


def _typed(values: np.ndarray) -> dict[str, str]:
    """plotly.js' base64 form of an array: full precision, NaN included."""
    kind = "i4" if values.dtype.kind == "i" else "f8"
    return {"dtype": kind, "bdata": base64.b64encode(values.astype(f"<{kind}").tobytes()).decode()}
