"""The losses of two recorded scripts: their formulas, labels, settings, terms and weights."""
