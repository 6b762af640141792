"""Pictures of every plot for papers and pull requests: PNG and SVG, by matplotlib, without a browser."""

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from textwrap import fill
from typing import Any

import matplotlib.style
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from common.compare.labels import format_value
from common.compare.verdict import Comparison
from common.config.tasks import METRICS
from common.errors import build_write_error
from common.report.answers import with_reference
from common.report.bars import charts
from common.report.curves import usual_axis
from common.report.draw_curves import draw_bars, draw_curves, draw_difference, draw_evaluations, short
from common.report.draw_lanes import draw_step, draw_updates
from common.report.time_to_loss import times_to_a_loss
from common.report.workers import timelines

WIDTH, HEIGHT, BAR, DPI = 6.8, 3.9, 0.2, 200  # inches, of a bar too, and pixels of each
LANE = 2  # bars that a lane is as high as
CAPTION_LINE = 125  # characters
STYLE: dict[Any, Any] = {
    "font.size": 9,
    "axes.titlesize": 10.5,
    "axes.titleweight": "bold",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "grid.color": "#e3e7eb",
    "legend.frameon": False,
    "text.parse_math": False,  # labels are users' text
    "svg.hashsalt": "lockstep",  # the same runs make the same file
}
# What a caption says of the settings that all runs share.
SETTINGS = {
    "model.name": "model {}",
    "data.kind": "data {}",
    "train.global_batch_size": "global batch {}",
    "optimizer.kind": "optimizer {}",
    "optimizer.learning_rate": "learning rate {}",
    "schedule.kind": "schedule {}",
    "train.precision": "{}",
    "train.seed": "seed {}",
}


@dataclass(frozen=True)
class Picture:
    """One picture. draw: draws it, and returns the sentences of its caption. bars: how many, where it has bars."""

    name: str
    title: str
    draw: Callable[[Axes], list[str]]
    bars: int = 0


def write_pictures(comparison: Comparison, directory: Path) -> list[Path]:
    """Write NAME.png and NAME.svg of every plot into `directory`, made if missing. Returns their absolute paths.

    Raises UserError where they cannot be written.
    """
    written = []
    with matplotlib.style.context(["default", STYLE]), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph")  # that the font lacks, in a user's label
        for picture in pictures(comparison):
            figure = draw(picture, settings(comparison))
            for ending in ("png", "svg"):
                path = directory.resolve() / f"{picture.name}.{ending}"
                try:
                    path.parent.mkdir(parents=True, exist_ok=True)
                    figure.savefig(path, dpi=DPI, metadata={"Date": None} if ending == "svg" else None)
                except OSError as error:
                    raise build_write_error(f"pictures={directory}", error) from error
                written.append(path)
    return written


def pictures(comparison: Comparison) -> list[Picture]:
    """The plots of the page, in its order."""
    runs, axis = comparison.runs, usual_axis(comparison.runs)
    pairs = [(run, pair) for run, pair in with_reference(comparison) if pair.steps]
    found = []
    for metric, title in {"loss": "Training loss", "grad_norm": "Gradient norm"}.items():
        if any(run.has(metric) for run in runs):
            found.append(Picture(metric, title, partial(draw_curves, runs, metric, axis)))
        if pairs:
            title += f": difference from {short(comparison.reference.label)}"
            found.append(Picture(f"{metric}_difference", title, partial(draw_difference, runs, pairs, metric)))
    for metric in ("loss", *METRICS):
        if any(run.evaluated(metric) for run in runs):
            title = f"Validation {metric.replace('_', ' ')}"
            found.append(Picture(f"validation_{metric}", title, partial(draw_evaluations, runs, metric, axis)))
    if any(run.has("learning_rate") for run in runs):
        draw_rate = partial(draw_curves, runs, "learning_rate", axis)
        found.append(Picture("learning_rate", "Learning rate", draw_rate))
    for chart in [*charts(runs), times_to_a_loss(runs)]:
        if count := sum(len(items) for _, items in chart.groups):
            found.append(Picture(_name(chart.title), chart.title, partial(draw_bars, runs, chart), count))
    for index, run in enumerate(runs):
        if run.profile:
            title = f"A step of {short(run.label)}"
            found.append(
                Picture(f"step_{index + 1}", title, partial(draw_step, run.profile), LANE * len(run.profile.lanes))
            )
    for timeline in timelines(runs):
        title = f"Updates of {short(runs[timeline.index].label)}"
        draw_them = partial(draw_updates, timeline)
        found.append(Picture(f"updates_{timeline.index + 1}", title, draw_them, LANE * len(timeline.lanes)))
    return found


def _name(title: str) -> str:
    return title.lower().replace(" ", "_")


def draw(picture: Picture, said: str) -> Figure:
    """One figure. said: the settings of the runs, for the caption."""
    height = 1.2 + BAR * picture.bars if picture.bars else HEIGHT
    figure = Figure(figsize=(WIDTH, height), layout="constrained")
    axes = figure.subplots()
    axes.set_title(picture.title, loc="left")
    sentences = picture.draw(axes)
    caption = fill(" ".join([*sentences, said]), CAPTION_LINE)
    figure.supxlabel(caption, x=0.01, ha="left", fontsize=7.5, color="#55616d", linespacing=1.4)
    return figure


def settings(comparison: Comparison) -> str:
    """What all runs that have a config share, in words: "model bert_tiny, data corpus, ..."."""
    configs = [run.config for run in comparison.runs if run.config]
    shared = [
        words.format(format_value(configs[0][key]))
        for key, words in SETTINGS.items()
        if configs and all(key in config and config[key] == configs[0].get(key) for config in configs)
    ]
    return f"Settings: {short(', '.join(shared), 300)}." if shared else ""
