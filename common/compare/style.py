"""Colours and line styles of the report: a run has the same in every chart and table."""

from typing import Any

COLOURS = ("#3b82c4", "#e07b16", "#1f9e77", "#c4509b", "#8b6fd8", "#b8912b", "#d64550", "#5f8fa8")
WIDTHS = (6.0, 2.2, 2.2)  # the first curve is wide, so that it stays visible below curves that coincide with it
DASHES = ("solid", "solid", "dot", "dash", "dashdot", "longdash")
SYMBOLS = ("circle", "diamond", "square", "cross", "x", "triangle-up")
SIZES = (14, 9, 6)


def line_style(index: int) -> dict[str, Any]:
    """Colour, width and dash of the curve of the run at this index."""
    return {
        "color": COLOURS[index % len(COLOURS)],
        "width": WIDTHS[min(index, len(WIDTHS) - 1)],
        "dash": DASHES[index % len(DASHES)],
    }
