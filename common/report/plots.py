"""Plots of a comparison on matplotlib's axes. Each `draw_` function returns the sentences of the plot's caption.

A run has the colour and dash of its index in the list of all runs. A `metric` is "loss", "grad_norm" or
"learning_rate", or a metric of the evaluations. An `axis` is the x-axis: "step", "examples", "tokens" or "seconds".
A long curve is divided into bins, which are groups of consecutive steps.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter

from common.compare.bins import find_first_rows, find_last_rows, max_per_bin, mean_per_bin, min_per_bin
from common.compare.pair import RunPair
from common.compare.runs import Run
from common.report.axes import get_axis_values
from common.report.bars import BarChart
from common.report.formats import describe_metric
from common.report.style import get_colour, get_dash

CURVE_BINS = 1200  # bins of a long curve
UPDATE_BINS = 120  # bins of a curve of asynchronous updates, which are noisy
MAX_LETTERS = 44  # length of a label
MAX_SENTENCES = 3  # sentences on pairs in a caption
MIN_TOLERANCE = 1e-12  # replaces a tolerance of 0 in the range of a logarithmic axis
AXIS_LABELS = {"loss": "loss", "grad_norm": "norm", "learning_rate": "learning rate"}
CAPTIONS = {
    "loss": "Mean over each global batch, or over the batch of each update if updates are asynchronous.",
    "grad_norm": "Global norm of the gradient, before clipping.",
    "learning_rate": "Learning rate of each update.",
}


@dataclass(frozen=True)
class LineStyle:
    """Markers of a line, and whether it connects them."""

    marker: str = ""
    marker_size: float = 4.0
    is_connected: bool = True


DEFAULT_STYLE = LineStyle()


def shorten(text: str, limit: int = MAX_LETTERS) -> str:
    """Return a text in one line, without characters that an SVG cannot hold; only the start of a long text."""
    line = " ".join("".join(letter if letter.isprintable() else " " for letter in text).split())
    return line if len(line) <= limit else f"{line[: limit - 1]}…"


def draw_curves(runs: list[Run], metric: str, axis: str, axes: Axes) -> list[str]:
    """Draw the curve of each run.

    For a long curve, the line connects the last values of its bins, or the means if updates are asynchronous. A band
    spans the smallest and the largest value of each bin.
    """
    lines, is_binned = [], False
    for index, run in enumerate(runs):
        if not run.has_metric(metric):
            continue
        values = run.metrics[metric]
        first_rows = find_first_rows(len(run.steps), UPDATE_BINS if run.is_asynchronous else CURVE_BINS)
        last_rows = find_last_rows(first_rows, len(run.steps))
        x = np.maximum.accumulate(get_axis_values(run, axis))[last_rows]
        y = mean_per_bin(values, first_rows) if run.is_asynchronous else values[last_rows]
        lines.append(_draw_line(axes, index, run, x, y))
        if len(first_rows) < len(values):
            is_binned = True
            low, high = min_per_bin(values, first_rows), max_per_bin(values, first_rows)
            axes.fill_between(x, low, high, color=get_colour(index), alpha=0.2, lw=0)
    _finish(axes, lines, axis, AXIS_LABELS[metric])
    band = "A band spans all steps at one position; the line is the last of them, or the mean of asynchronous updates."
    return [CAPTIONS[metric], band] if is_binned else [CAPTIONS[metric]]


def draw_difference(runs: list[Run], pairs: Sequence[tuple[Run, RunPair]], metric: str, axes: Axes) -> list[str]:
    """Draw differences from the reference run on a logarithmic axis, with the tolerance and the first step beyond it.

    Args:
        runs: All runs, which give the colours.
        pairs: Each run except the reference, with its pair with the reference.
        metric: "loss" or "grad_norm".
        axes: The axes to draw on.
    """
    lines, sentences, has_points = [], [], False  # has_points: whether a difference above 0 is drawn
    for run, pair in pairs:
        differences = getattr(pair.envelope, metric)
        first_rows = find_first_rows(len(differences), CURVE_BINS)
        largest = max_per_bin(differences, first_rows)
        steps = pair.envelope.steps[find_last_rows(first_rows, len(differences))]
        points = np.where(np.isfinite(largest) & (largest > 0), largest, np.nan)
        has_points = has_points or bool(np.isfinite(points).any())
        lines.append(_draw_difference_line(axes, runs.index(run), run, pair, metric, (steps, points)))
        if metric == "loss" and pair.identical_steps:
            sentences.append(f"{shorten(run.label)}: identical at {pair.identical_steps} of {pair.steps} steps.")
        if not np.isfinite(largest).all():
            first = steps[~np.isfinite(largest)][0]
            sentences.append(f"{shorten(run.label)}: some values are not finite from step {first}.")
    if not has_points:
        tolerances = [getattr(pair.tolerance, metric) for _, pair in pairs]
        low, high = min(tolerances) or MIN_TOLERANCE, max(tolerances) or MIN_TOLERANCE
        axes.set_ylim(low / 1e3, high * 10)
        axes.text(0.5, 0.5, "no difference at any step", transform=axes.transAxes, ha="center")
    axes.set_yscale("log")
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.0e}"))
    _finish(axes, lines, "step", "absolute" if metric == "loss" else "relative to the larger")
    more = [f"{len(sentences) - MAX_SENTENCES} more."] if len(sentences) > MAX_SENTENCES else []
    explanation = "The largest difference at each position; equal values have no point. Dashed: the tolerance."
    return [explanation, *sentences[:MAX_SENTENCES], *more]


def _draw_difference_line(
    axes: Axes, index: int, run: Run, pair: RunPair, metric: str, points: tuple[np.ndarray, np.ndarray]
) -> Line2D:
    """Draw one pair: the points (steps and differences), the tolerance, and the first step beyond the tolerance."""
    steps, differences = points
    colour = get_colour(index)
    line = _draw_line(axes, index, run, steps, differences, LineStyle(".", 3.0, is_connected=False))
    axes.axhline(getattr(pair.tolerance, metric), color=colour, lw=0.8, ls=(0, (6, 4)))
    if beyond := pair.first_beyond[metric]:
        axes.axvline(beyond, color=colour, lw=0.8, ls=":")
        axes.annotate(f" step {beyond}", (beyond, 1), xycoords=("data", "axes fraction"), va="top", fontsize=8)
    return line


def draw_evaluations(runs: list[Run], metric: str, axis: str, axes: Axes) -> list[str]:
    """Draw a metric of the evaluations of each run."""
    lines = []
    for index, run in enumerate(runs):
        if not run.has_evaluation(metric):
            continue
        x = run.eval_steps if axis != "examples" else run.evals["examples"]
        lines.append(_draw_line(axes, index, run, x, run.evals[metric], LineStyle("o")))
    _finish(axes, lines, axis, metric.replace("_", " "))
    if metric == "accuracy":
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.4g}"))
    return [describe_metric(metric)]


def draw_bars(runs: list[Run], chart: BarChart, axes: Axes) -> list[str]:
    """Draw the bars of each run, with their values and spread."""
    position, positions, names = 0.0, [], []
    for index, bars in chart.groups:
        label = shorten(runs[index].label)
        for number, bar in enumerate(bars):
            names.append(f"{label if not number else ''}  {bar.name}".rstrip() if bar.name else label)
            positions.append(position)
            axes.barh(position, bar.end, 0.75, color=get_colour(index))
            if bar.low is not None and bar.high is not None:
                axes.plot([bar.low, bar.high], [position, position], color="black", lw=1.5)
            right = max(bar.end, bar.high or 0)
            axes.annotate(bar.text, (right, position), (4, 0), textcoords="offset points", va="center", fontsize=8)
            position += 1
        position += 0.5
    axes.set_yticks(positions, names)
    axes.invert_yaxis()
    axes.set_xlim(0, 1.6)  # bars end at 1 or before; the rest is for their texts
    axes.xaxis.set_visible(False)
    axes.spines["bottom"].set_visible(False)
    return [chart.caption]


def _draw_line(
    axes: Axes, index: int, run: Run, x: np.ndarray, y: np.ndarray, style: LineStyle = DEFAULT_STYLE
) -> Line2D:
    """Draw a line that stays visible below equal later lines: the first is wide, and lines from the third have gaps."""
    width = 3.2 if index == 0 else 1.5
    dash = get_dash(index)
    dashes = (0, tuple(length / 2 for length in dash)) if dash else "-"
    linestyle = dashes if style.is_connected else "none"
    label = f" {shorten(run.label)}"  # begins with a space, because legends leave out labels that begin with "_"
    (line,) = axes.plot(
        x,
        y,
        color=get_colour(index),
        linewidth=width,
        linestyle=linestyle,
        label=label,
        marker=style.marker,
        markersize=style.marker_size,
    )
    return line


def _finish(axes: Axes, lines: list[Line2D], x_label: str, y_label: str) -> None:
    """Add grid, labels and legend."""
    axes.grid(True)
    axes.set_xlabel(x_label)
    axes.set_ylabel(y_label)
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.6g}"))
    if lines:
        axes.legend(handles=lines, fontsize=8, ncols=1 + len(lines) // 7)
