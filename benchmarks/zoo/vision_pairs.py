"""Pairs of models that classify images."""

from benchmarks.zoo.pairs import ZooPair

VISION_PAIRS: tuple[ZooPair, ...] = ()
