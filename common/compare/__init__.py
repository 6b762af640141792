"""Comparison of runs: from run directories to a verdict. `python -m common.compare --help` explains the command."""

from common.compare.pair import RunPair, Tolerance
from common.compare.runs import Run
from common.compare.verdict import Comparison, compare_runs

__all__ = ["Comparison", "Run", "RunPair", "Tolerance", "compare_runs"]
