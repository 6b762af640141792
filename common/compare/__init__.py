"""Several runs -> verdict, tables, report. `python -m common.compare --help` explains the command."""

from common.compare.runs import Run
from common.compare.verdict import Comparison, Pair, Tolerance, compare_runs

__all__ = ["Comparison", "Pair", "Run", "Tolerance", "compare_runs"]
