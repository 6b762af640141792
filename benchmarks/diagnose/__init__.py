"""Benchmark of common.diagnose: causes that are planted and must be named."""
