"""Weights of examples that a script computes from its labels, as `fit(class_weight=...)` does.

A script that follows a record gets the record's labels. Their weights follow from the script's own rule.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class ClassWeights:
    """A rule that gives a weight to each class.

    Attributes:
        source: The name of the array of labels.
        table: The weights by class.
        dtype: The type of the weights.
    """

    source: str
    table: dict[float, float]
    dtype: np.dtype

    def compute(self, labels: np.ndarray) -> np.ndarray | None:
        """Return the weights [n] of labels [n] or [n, 1]; None if the weight of a class is not known."""
        classes = [float(label) for label in labels.ravel()]
        if not self.table.keys() >= {*classes}:
            return None
        return np.array([self.table[label] for label in classes], self.dtype)


def find_class_weights(leaves: Mapping[str, np.ndarray]) -> dict[str, ClassWeights]:
    """Return the rules of the arrays of a batch that are weights of its labels, by the name of the array.

    Args:
        leaves: The arrays of the batch, with an example in each row. Weights are numbers [n], not negative and not all
            the same.
    """
    rules = {}
    for name, weights in leaves.items():
        if weights.ndim != 1 or weights.dtype.kind != "f" or len(np.unique(weights)) < 2:
            continue
        if not np.isfinite(weights).all() or weights.min() < 0 or np.isin(weights, (0, 1)).all():
            continue  # numbers 0 and 1 are labels
        for other, labels in leaves.items():
            if other == name or labels.size != len(weights) or labels.dtype.kind not in "biuf":
                continue
            if (labels != np.round(labels)).any():
                continue
            pairs = np.unique(np.stack([labels.ravel().astype(np.float64), weights.astype(np.float64)]), axis=1)
            # Few classes: a column with many values, such as an age, has as many weights
            if len(np.unique(pairs[0])) == pairs.shape[1] <= len(weights) / 2:
                rules[name] = ClassWeights(other, dict(pairs.T.tolist()), weights.dtype)
    return rules
