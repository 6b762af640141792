"""Splits of named arrays, as they are read from memory or from a cache."""
