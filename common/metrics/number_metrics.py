"""Metrics of numbers, computed by scikit-learn and SciPy: means over the numbers of an example."""

import numpy as np
from scipy import stats
from sklearn.metrics import mean_absolute_error, r2_score

from common.metrics.predictions import Predictions


def compute_number_metric(name: str, predictions: Predictions) -> float:
    """Return a metric of a regression; nan if it is not defined, such as a correlation of equal numbers."""
    labels = predictions.labels.reshape(len(predictions.ids), -1).astype(np.float64)
    outputs = predictions.outputs.reshape(labels.shape)
    if name == "mae":
        return float(mean_absolute_error(labels, outputs))
    if name == "r2":
        return float(r2_score(labels, outputs))
    correlate = stats.pearsonr if name == "pearson" else stats.spearmanr
    return float(np.mean([correlate(labels[:, i], outputs[:, i]).statistic for i in range(labels.shape[1])]))
