"""Colours and dashes of the report: a run has the same in every chart and table."""

# Okabe and Ito's palette, which readers of every colour vision can tell apart, the light ones darker for thin lines on
# white. page/page.css has them too, and lighter ones for a dark page.
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#c0659a", "#d08a00", "#3ba0dd", "#6b7178", "#9c8a00")
# In pixels. Where curves coincide, the gaps of the upper ones show those below.
DASHES = ((), (), (8, 5), (3, 3), (10, 3, 2, 3), (14, 5))


def dash(index: int) -> list[int]:
    """The dashes of the curve of the run at this index; the first two are solid."""
    return list(DASHES[index % len(DASHES)])
