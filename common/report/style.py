"""Colours and dashes of the report. A run looks the same in every chart and table."""

# Okabe and Ito's palette, which readers of every colour vision can distinguish. Light colours are darkened for thin
# lines on white. page/page.css repeats the palette, and has lighter colours for a dark page.
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#c0659a", "#d08a00", "#3ba0dd", "#6b7178", "#9c8a00")
# Lengths of dashes and gaps in pixels. If curves coincide, a lower curve shows through the gaps of an upper one.
DASHES = ((), (), (8, 5), (3, 3), (10, 3, 2, 3), (14, 5))


def get_colour(index: int) -> str:
    """Return the colour of the run at this index."""
    return COLOURS[index % len(COLOURS)]


def get_dash(index: int) -> list[int]:
    """Return the dashes of the curve of the run at this index; the first two curves are solid."""
    return list(DASHES[index % len(DASHES)])
