"""Verdicts on groups of seeds, and the name of the curve, for packages that only name them: SciPy starts slowly."""

CURVE = "curve"  # name of the metric that is the mean of the whole curve
EQUIVALENT, DIFFERENT, UNDECIDED = "equivalent", "different", "undecided"
