"""Colours and strokes of the report: the same for a run in every chart and table."""

from typing import Any

COLOURS = ("#3b82c4", "#e07b16", "#1f9e77", "#c4509b", "#8b6fd8", "#b8912b", "#d64550", "#5f8fa8")
WIDTHS = (6.0, 2.2, 2.2)  # the first lies below, wide; those above leave it visible where they coincide
DASHES = ("solid", "solid", "dot", "dash", "dashdot", "longdash")
SYMBOLS = ("circle", "diamond", "square", "cross", "x", "triangle-up")
SIZES = (14, 9, 6)


def line_style(index: int) -> dict[str, Any]:
    """Colour, width and dash of the index-th run's curve."""
    return {
        "color": COLOURS[index % len(COLOURS)],
        "width": WIDTHS[min(index, len(WIDTHS) - 1)],
        "dash": DASHES[index % len(DASHES)],
    }
