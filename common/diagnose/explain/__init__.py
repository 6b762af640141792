"""Explanations of differences, each confirmed by a computation that reproduces it."""
