"""Plots with one lane per worker or phase on matplotlib axes. Each function returns the sentences of its caption."""

from matplotlib.axes import Axes

from common.report.step_chart import StepChart
from common.report.style import COLOURS, get_colour
from common.report.worker_updates import WorkerTimeline

LANE_HEIGHT = 0.8  # height of a lane as a share of the distance between two lanes
MAX_SENTENCES = 4  # sentences on workers in a caption


def draw_step(chart: StepChart, axes: Axes) -> list[str]:
    """Draw the last profiled step of a rank."""
    for position, spans in enumerate(chart.lanes.values()):
        ranges = [(span.start, span.end - span.start) for span in spans]
        colours = [COLOURS[span.colour] for span in spans]
        axes.broken_barh(ranges, (position - LANE_HEIGHT / 2, LANE_HEIGHT), color=colours)
    _finish(axes, list(chart.lanes), chart.milliseconds, "milliseconds")
    return [
        "The last profiled step of the first rank. A layer has the same colour forward and backward; operations of no "
        "layer are grey."
    ]


def draw_updates(timeline: WorkerTimeline, axes: Axes) -> list[str]:
    """Draw the number of updates of each worker in each bin of the time."""
    width = timeline.seconds / timeline.bins
    starts = [bin_index * width for bin_index in range(timeline.bins)]
    for position, lane in enumerate(timeline.lanes):
        bottom = position + LANE_HEIGHT / 2
        axes.bar(starts, -LANE_HEIGHT * lane.heights, width, bottom, align="edge", color=get_colour(timeline.index))
    _finish(axes, [lane.name for lane in timeline.lanes], timeline.seconds, "seconds")
    workers = [f"{lane.name}: {lane.text}." for lane in timeline.lanes[:MAX_SENTENCES]]
    return ["Height: updates in each part of the time.", *workers]


def _finish(axes: Axes, names: list[str], end: float, unit: str) -> None:
    """Label the lanes and the axis of the time."""
    axes.set_yticks(range(len(names)), names)
    axes.set_ylim(len(names) - 0.5, -0.5)
    axes.set_xlim(0, end)
    axes.set_xlabel(unit)
    axes.spines["left"].set_visible(False)
    axes.tick_params(left=False)
