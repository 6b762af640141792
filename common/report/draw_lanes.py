"""Draws what workers and ranks did when, a lane for each. Each function returns the sentences of its caption."""

from matplotlib.axes import Axes

from common.profile.profile import Profile
from common.report.style import COLOURS
from common.report.workers import Timeline

HEIGHT = 0.8  # of a lane, of the distance between two


def draw_step(profile: Profile, axes: Axes) -> list[str]:
    """The last profiled step of a rank; a layer has the same colour forward and backward."""
    for place, parts in enumerate(profile.parts.values()):
        spans = [(part.start, part.end - part.start) for part in parts]
        axes.broken_barh(spans, (place - HEIGHT / 2, HEIGHT), color=[COLOURS[part.colour] for part in parts])
    _finish(axes, list(profile.parts), profile.milliseconds, "milliseconds")
    what = "The last profiled step of the first rank. A layer has the same colour forward and backward"
    return [f"{what}; what belongs to none is grey."]


def draw_updates(timeline: Timeline, axes: Axes) -> list[str]:
    """The updates of each worker in each part of the time."""
    width = timeline.seconds / timeline.bins
    starts = [place * width for place in range(timeline.bins)]
    for place, lane in enumerate(timeline.lanes):
        bottom = place + HEIGHT / 2
        colour = COLOURS[timeline.index % len(COLOURS)]
        axes.bar(starts, -HEIGHT * lane.heights, width, bottom, align="edge", color=colour)
    _finish(axes, [lane.name for lane in timeline.lanes], timeline.seconds, "seconds")
    return ["Height: updates in each part of the time.", *(f"{lane.name}: {lane.text}." for lane in timeline.lanes[:4])]


def _finish(axes: Axes, names: list[str], end: float, unit: str) -> None:
    axes.set_yticks(range(len(names)), names)
    axes.set_ylim(len(names) - 0.5, -0.5)
    axes.set_xlim(0, end)
    axes.set_xlabel(unit)
    axes.spines["left"].set_visible(False)
    axes.tick_params(left=False)
