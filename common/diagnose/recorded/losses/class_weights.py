"""Weights of examples that a script computes from its labels, as `fit(class_weight=...)` does.

A script that follows a record gets the record's labels. Their weights follow from the script's own rule.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from common.diagnose.recorded.array_layouts import are_one_hot


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
        """Return the weights [n] of labels [n], [n, 1] or one-hot; None if the weight of a class is not known."""
        classes = _read_classes(labels)
        if classes is None or not self.table.keys() >= {*classes.tolist()}:
            return None
        return np.array([self.table[label] for label in classes.tolist()], self.dtype)


def _read_classes(labels: np.ndarray) -> np.ndarray | None:
    """Return the numbers of the classes [n] of labels [n], [n, 1] or one-hot [n, classes]; None if they are others."""
    if labels.ndim == 2 and are_one_hot(labels):
        return labels.argmax(1).astype(np.float64)
    if labels.size != len(labels) or labels.dtype.kind not in "biuf" or (labels != np.round(labels)).any():
        return None
    return labels.ravel().astype(np.float64)


def find_class_weights(leaves: Mapping[str, np.ndarray], known: Mapping[float, float]) -> dict[str, ClassWeights]:
    """Return the rules of the arrays of a batch that are weights of its labels, by the name of the array.

    Args:
        leaves: The arrays of the batch, with an example in each row. Weights are numbers [n], not negative and not all
            the same.
        known: The weights that the script declares, by class; empty if it declares none. They count for classes that
            are not in the batch.
    """
    rules = {}
    for name, weights in leaves.items():
        if weights.ndim != 1 or weights.dtype.kind != "f" or len(np.unique(weights)) < 2:
            continue
        if not np.isfinite(weights).all() or weights.min() < 0 or np.isin(weights, (0, 1)).all():
            continue  # numbers 0 and 1 are labels
        for other, labels in leaves.items():
            classes = _read_classes(labels) if other != name and len(labels) == len(weights) else None
            if classes is None:
                continue
            pairs = np.unique(np.stack([classes, weights.astype(np.float64)]), axis=1)
            # Few classes: a column with many values, such as an age, has as many weights
            if len(np.unique(pairs[0])) == pairs.shape[1] <= len(weights) / 2:
                table = dict(pairs.T.tolist())
                are_declared = all(np.isclose(known.get(label, np.nan), weight) for label, weight in table.items())
                rules[name] = ClassWeights(other, {**known, **table} if are_declared else table, weights.dtype)
    return rules
