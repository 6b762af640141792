"""Chart of one profiled step: a lane for each phase (forward, backward, reduce, update), with a span for each layer.

A palette is the list of colours of the report, which style.py and page.css define.
"""

from dataclasses import dataclass

from common.profile.profile import Profile

MIN_SHARE = 1 / 2000  # smallest share of the step; shorter spans are too narrow to be seen
LAYER_COLOURS = 6  # layers take turns at the first colours of the palette
PLAIN_COLOUR = 6  # index in the palette; colour of reductions, updates and operations of no layer


@dataclass(frozen=True)
class ColouredSpan:
    """Stretch of time of a step, in milliseconds from its start."""

    name: str
    start: float
    end: float
    colour: int  # index in the palette


@dataclass(frozen=True)
class StepChart:
    """Lanes of one step. A layer has the same colour forward and backward."""

    milliseconds: float  # duration of the step
    lanes: dict[str, list[ColouredSpan]]  # the spans of each phase
    layer_colours: dict[str, int]  # index in the palette by layer, in order of the forward pass


def build_step_chart(profile: Profile) -> StepChart:
    """Build the chart of the last profiled step, without spans that are too short to be seen."""
    shortest = MIN_SHARE * profile.milliseconds
    visible = {
        name: [span for span in lane if span.end - span.start >= shortest] for name, lane in profile.lanes.items()
    }
    names = dict.fromkeys(span.name for lane in ("forward", "backward") for span in visible[lane])
    layers = [name for name in names if name not in profile.lanes]  # operations of no layer have the name of their lane
    colours = {name: index % LAYER_COLOURS for index, name in enumerate(layers)}
    lanes = {
        lane: [ColouredSpan(span.name, span.start, span.end, colours.get(span.name, PLAIN_COLOUR)) for span in spans]
        for lane, spans in visible.items()
    }
    return StepChart(profile.milliseconds, lanes, colours)
