"""Draws the plots of a comparison on matplotlib's axes. Each function returns the sentences of its caption."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter

from common.compare.bins import first_rows, largest, last_rows, mean, smallest
from common.compare.pair import RunPair
from common.compare.runs import Run
from common.report.bars import Chart
from common.report.style import COLOURS, dash

COLUMNS = 1200  # parts of a long curve
PARTS_OF_UPDATES = 120  # of that of asynchronous updates, which are noisy
LONGEST = 44  # characters of a label
MOST_SENTENCES = 3  # on pairs, in a caption
SMALLEST = 1e-12  # of an axis, where the tolerance is 0
NAMES = {"loss": "loss", "grad_norm": "norm", "learning_rate": "learning rate"}


def short(text: str, longest: int = LONGEST) -> str:
    """Text in one line, and the start of a long one, without what an SVG may not hold."""
    line = " ".join("".join(letter if letter.isprintable() else " " for letter in text).split())
    return line if len(line) <= longest else f"{line[: longest - 1]}…"


def draw_curves(runs: list[Run], metric: str, axis: str, axes: Axes) -> list[str]:
    """The curve of each run; of a long one the last value of each part, and a band from its least to its largest.

    Of asynchronous updates it is the mean of each part.
    """
    lines, parted = [], False
    for index, run in enumerate(runs):
        if not run.has(metric):
            continue
        values = run.metrics[metric]
        first = first_rows(len(run.steps), PARTS_OF_UPDATES if run.asynchronous else COLUMNS)
        last = last_rows(first, len(run.steps))
        x = np.maximum.accumulate(run.steps if axis == "step" else run.metrics[axis])[last]
        lines.append(_line(axes, index, run, x, mean(values, first) if run.asynchronous else values[last]))
        if len(first) < len(values):
            parted = True
            axes.fill_between(x, smallest(values, first), largest(values, first), color=_colour(index), alpha=0.2, lw=0)
    _finish(axes, lines, axis, NAMES[metric])
    loss = "Mean over each global batch, or each update's where updates are asynchronous."
    norm, rate = "Global norm of the gradient, before clipping.", "Learning rate of each update."
    said = [{"loss": loss, "grad_norm": norm, "learning_rate": rate}[metric]]
    band = (
        "A band spans the steps that share a place; the line is the last of them, or the mean of asynchronous updates."
    )
    return said + [band] * parted


def draw_difference(runs: list[Run], pairs: Sequence[tuple[Run, RunPair]], metric: str, axes: Axes) -> list[str]:
    """The largest difference in each part, on a logarithmic axis, with the tolerance and the first step beyond it."""
    lines, sentences, shown = [], [], False
    for run, pair in pairs:
        differences = getattr(pair.envelope, metric)
        first = first_rows(len(differences), COLUMNS)
        most = largest(differences, first)
        steps = pair.envelope.steps[last_rows(first, len(differences))]
        visible = np.where(np.isfinite(most) & (most > 0), most, np.nan)
        shown = shown or bool(np.isfinite(visible).any())
        index = runs.index(run)
        lines.append(_line(axes, index, run, steps, visible, ls="none", marker=".", markersize=3))
        axes.axhline(getattr(pair.tolerance, metric), color=_colour(index), lw=0.8, ls=(0, (6, 4)))
        if beyond := pair.first_beyond[metric]:
            axes.axvline(beyond, color=_colour(index), lw=0.8, ls=":")
            axes.annotate(f" step {beyond}", (beyond, 1), xycoords=("data", "axes fraction"), va="top", fontsize=8)
        if metric == "loss" and pair.identical_steps:
            sentences.append(f"{short(run.label)}: identical at {pair.identical_steps} of {pair.steps} steps.")
        if not np.isfinite(most).all():
            sentences.append(f"{short(run.label)}: from step {steps[~np.isfinite(most)][0]} on some are not finite.")
    if not shown:
        tolerances = [getattr(pair.tolerance, metric) for _, pair in pairs]
        axes.set_ylim((min(tolerances) or SMALLEST) / 1e3, (max(tolerances) or SMALLEST) * 10)
        axes.text(0.5, 0.5, "no difference at any step", transform=axes.transAxes, ha="center")
    axes.set_yscale("log")
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.0e}"))
    _finish(axes, lines, "step", "absolute" if metric == "loss" else "relative to the larger")
    rest = [f"{len(sentences) - MOST_SENTENCES} more."] if len(sentences) > MOST_SENTENCES else []
    said = "The largest of the steps that share a place; equal values have no point. Dashed: the tolerance."
    return [said, *sentences[:MOST_SENTENCES], *rest]


def draw_evaluations(runs: list[Run], metric: str, axis: str, axes: Axes) -> list[str]:
    """A metric of the evaluations of each run."""
    lines = []
    for index, run in enumerate(runs):
        if not run.evaluated(metric):
            continue
        x = run.eval_steps if axis != "examples" else run.evals["examples"]
        lines.append(_line(axes, index, run, x, run.evals[metric], marker="o", markersize=4))
    _finish(axes, lines, axis, metric.replace("_", " "))
    if metric == "accuracy":
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.4g}"))
        return ["Share of all validation examples."]
    return [
        "The exponential of the validation loss." if metric == "perplexity" else "Mean over all validation examples."
    ]


def draw_bars(runs: list[Run], chart: Chart, axes: Axes) -> list[str]:
    """The bars of each run, with their values and spread."""
    place, places, names = 0.0, [], []
    for index, items in chart.groups:
        label = short(runs[index].label)
        for count, item in enumerate(items):
            names.append(f"{label if not count else ''}  {item.name}".rstrip() if item.name else label)
            places.append(place)
            axes.barh(place, item.end, 0.75, color=_colour(index))
            if item.low is not None and item.high is not None:
                axes.plot([item.low, item.high], [place, place], color="black", lw=1.5)
            right = max(item.end, item.high or 0)
            axes.annotate(item.text, (right, place), (4, 0), textcoords="offset points", va="center", fontsize=8)
            place += 1
        place += 0.5
    axes.set_yticks(places, names)
    axes.invert_yaxis()
    axes.set_xlim(0, 1.6)
    axes.xaxis.set_visible(False)
    axes.spines["bottom"].set_visible(False)
    return [chart.caption]


def _colour(index: int) -> str:
    return COLOURS[index % len(COLOURS)]


def _line(axes: Axes, index: int, run: Run, x: np.ndarray, y: np.ndarray, **style: Any) -> Line2D:
    """A line that shows below a later one that is the same: the first is wide, the others have gaps."""
    width = 3.2 if index == 0 else 1.5
    dashes = (0, tuple(length / 2 for length in dash(index))) if dash(index) else "-"
    label = f" {short(run.label)}"  # matplotlib leaves out those that begin with "_"
    (line,) = axes.plot(x, y, **{"color": _colour(index), "lw": width, "ls": dashes, "label": label, **style})
    return line


def _finish(axes: Axes, lines: list[Line2D], x: str, y: str) -> None:
    axes.grid(True)
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.6g}"))
    if lines:
        axes.legend(handles=lines, fontsize=8, ncols=1 + len(lines) // 7)
