"""Explanations of differences between two runs. A confirmed explanation reproduces the difference by a computation."""
