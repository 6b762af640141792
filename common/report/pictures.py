"""Pictures of every plot for papers and pull requests: PNG and SVG, drawn by matplotlib without a browser.

A lane is a horizontal strip of a plot of time, such as the updates of one worker or one phase of a step.
"""

import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from textwrap import fill

import matplotlib.style
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from common.compare.labels import format_value
from common.compare.runs import Run, list_evaluated_metrics
from common.compare.verdict import Comparison
from common.errors import build_write_error
from common.report.answers import list_reference_pairs
from common.report.axes import choose_axis
from common.report.bars import build_bar_charts
from common.report.lane_plots import draw_step, draw_updates
from common.report.plots import draw_bars, draw_curves, draw_difference, draw_evaluations, shorten
from common.report.step_chart import build_step_chart
from common.report.time_to_loss import build_time_to_loss_chart
from common.report.worker_updates import build_worker_timelines

WIDTH, HEIGHT = 6.8, 3.9  # size of a picture in inches; the height of a bar chart depends on the number of bars
BAR_HEIGHT = 0.2  # inches
BARS_PER_LANE = 2  # a lane is as high as this number of bars
DPI = 200
CAPTION_LINE = 125  # characters
MAX_SETTINGS_LETTERS = 300
STYLE: dict[str, object] = {
    "font.size": 9,
    "axes.titlesize": 10.5,
    "axes.titleweight": "bold",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "grid.color": "#e3e7eb",
    "legend.frameon": False,
    "text.parse_math": False,  # labels are text of users, not formulas
    "svg.hashsalt": "lockstep",  # not a random one, so that the same runs give the same file
}
# Settings that a caption mentions if all runs share them, and their words.
CAPTION_SETTINGS = {
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
    """One plot and its file name."""

    name: str  # name of the files without the ending
    title: str
    draw: Callable[[Axes], list[str]]  # draws the plot and returns the sentences of its caption
    bars: int = 0  # number of bars that the height has room for; 0 for a plot of curves


def write_pictures(comparison: Comparison, directory: Path) -> list[Path]:
    """Write NAME.png and NAME.svg of every plot into `directory`, which is created if missing.

    Returns:
        The absolute paths of the files.

    Raises:
        UserError: The files cannot be written.
    """
    paths = []
    with matplotlib.style.context(["default", STYLE]), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph")  # a label of a user may have letters that the font lacks
        for picture in list_pictures(comparison):
            figure = draw_picture(picture, describe_settings(comparison))
            for ending in ("png", "svg"):
                path = directory.resolve() / f"{picture.name}.{ending}"
                try:
                    path.parent.mkdir(parents=True, exist_ok=True)
                    figure.savefig(path, dpi=DPI, metadata={"Date": None} if ending == "svg" else None)
                except OSError as error:
                    raise build_write_error(f"pictures={directory}", error) from error
                paths.append(path)
    return paths


def list_pictures(comparison: Comparison) -> list[Picture]:
    """Return the plots of the page, in their order."""
    return [*_list_curves(comparison), *_list_charts(comparison.runs), *_list_lanes(comparison.runs)]


def _list_curves(comparison: Comparison) -> Iterator[Picture]:
    runs, axis = comparison.runs, choose_axis(comparison.runs)
    pairs = [(run, pair) for run, pair in list_reference_pairs(comparison) if pair.steps]
    for metric, title in {"loss": "Training loss", "grad_norm": "Gradient norm"}.items():
        if any(run.has_metric(metric) for run in runs):
            yield Picture(metric, title, partial(draw_curves, runs, metric, axis))
        if pairs:
            difference = f"{title}: difference from {shorten(comparison.reference.label)}"
            yield Picture(f"{metric}_difference", difference, partial(draw_difference, runs, pairs, metric))
    has_evaluations = any(run.has_evaluation("loss") for run in runs)
    for metric in [*(["loss"] if has_evaluations else []), *list_evaluated_metrics(runs)]:
        title = f"Validation {metric.replace('_', ' ')}"
        yield Picture(f"validation_{metric}", title, partial(draw_evaluations, runs, metric, axis))
    if any(run.has_metric("learning_rate") for run in runs):
        yield Picture("learning_rate", "Learning rate", partial(draw_curves, runs, "learning_rate", axis))


def _list_charts(runs: list[Run]) -> Iterator[Picture]:
    for chart in [*build_bar_charts(runs), build_time_to_loss_chart(runs)]:
        if bars := sum(len(group) for _, group in chart.groups):
            name = chart.title.lower().replace(" ", "_")
            yield Picture(name, chart.title, partial(draw_bars, runs, chart), bars)


def _list_lanes(runs: list[Run]) -> Iterator[Picture]:
    """Yield the plots with lanes: the last profiled step of a run, and the updates of its workers."""
    for index, run in enumerate(runs):
        if run.profile:
            chart = build_step_chart(run.profile)
            title = f"A step of {shorten(run.label)}"
            yield Picture(f"step_{index + 1}", title, partial(draw_step, chart), BARS_PER_LANE * len(chart.lanes))
    for timeline in build_worker_timelines(runs):
        title = f"Updates of {shorten(runs[timeline.index].label)}"
        bars = BARS_PER_LANE * len(timeline.lanes)
        yield Picture(f"updates_{timeline.index + 1}", title, partial(draw_updates, timeline), bars)


def draw_picture(picture: Picture, settings: str) -> Figure:
    """Draw one figure.

    Args:
        picture: The plot.
        settings: The settings of the runs, for the caption.
    """
    height = 1.2 + BAR_HEIGHT * picture.bars if picture.bars else HEIGHT
    figure = Figure(figsize=(WIDTH, height), layout="constrained")
    axes = figure.subplots()
    axes.set_title(picture.title, loc="left")
    sentences = picture.draw(axes)
    caption = fill(" ".join([*sentences, settings]), CAPTION_LINE)
    figure.supxlabel(caption, x=0.01, ha="left", fontsize=7.5, color="#55616d", linespacing=1.4)
    return figure


def describe_settings(comparison: Comparison) -> str:
    """Return the settings that all runs with a config share: "Settings: model bert_tiny, data corpus."."""
    configs = [run.config for run in comparison.runs if run.config]
    shared = [
        words.format(format_value(configs[0][key]))
        for key, words in CAPTION_SETTINGS.items()
        if configs and all(key in config and config[key] == configs[0].get(key) for config in configs)
    ]
    return f"Settings: {shorten(', '.join(shared), MAX_SETTINGS_LETTERS)}." if shared else ""
