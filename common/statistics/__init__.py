"""Statistics of paired differences, from arrays of numbers to a verdict. docs/statistics.md describes the method."""
