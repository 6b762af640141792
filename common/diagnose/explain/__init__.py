"""Explanations of the differences between two runs. A confirmed one reproduces its difference by a computation."""
