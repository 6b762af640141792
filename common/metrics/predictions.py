"""The predictions of all validation examples, as an evaluation gathers them from the replicas."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from common.config.metrics import CLASSES
from common.data.batches import GlobalBatch
from common.errors import UserError

# Arrays of a micro-batch: for each example of the global batch, the row of its prediction; -1 if it has none
PREDICTION_PLACES = ("class_places", "output_places")
PADDING = -1  # label of a position that an example does not have


@dataclass(frozen=True)
class Predictions:
    """The predictions of all validation examples, in the order of the ids. Rows that fill up a batch are left out.

    Attributes:
        kind: CLASSES or OUTPUTS of `common.config.metrics`.
        ids: The indices of the examples in the split, int64 [n].
        labels: The labels [n, ...]. PADDING fills up the labels of examples that have fewer tokens than others.
        outputs: float64. CLASSES: the predicted class [n, ...], at each position. OUTPUTS: the outputs of the model; in
            the shape of the labels if an example has as many outputs as labels, otherwise [n, outputs].
    """

    kind: str
    ids: np.ndarray
    labels: np.ndarray
    outputs: np.ndarray


def collect_predictions(gathered: Sequence[tuple[GlobalBatch, np.ndarray]]) -> Predictions | None:
    """Return the predictions of an evaluation; None if nothing was gathered.

    gathered: The global batches, each with the predictions of all its examples, float64, flat.
    """
    if not gathered:
        return None
    batches, vectors = zip(*gathered, strict=True)
    kind = batches[0].predictions
    ids = np.concatenate([batch.ids for batch in batches])
    order = np.argsort(ids)
    labels = _concatenate_padded([batch.labels for batch in batches])
    if kind == CLASSES:
        outputs = _concatenate_padded(
            [vector.reshape(batch.prediction_shape) for batch, vector in zip(batches, vectors, strict=True)]
        )
    else:
        outputs = _concatenate_outputs(
            [vector.reshape(batch.size, -1) for batch, vector in zip(batches, vectors, strict=True)]
        )
        if outputs.size == labels.size:
            outputs = outputs.reshape(labels.shape)
    return Predictions(kind, ids[order], labels[order], outputs[order])


def _concatenate_padded(arrays: Sequence[np.ndarray]) -> np.ndarray:
    """Concatenate arrays [n, ...] along the first axis. Shorter arrays are padded with PADDING to the longest."""
    shape = np.max([array.shape[1:] for array in arrays], axis=0).astype(int)
    padded = [
        np.pad(array, [(0, 0), *((0, width) for width in shape - array.shape[1:])], constant_values=PADDING)
        for array in arrays
    ]
    return np.concatenate(padded)


def _concatenate_outputs(arrays: Sequence[np.ndarray]) -> np.ndarray:
    if len({array.shape[1] for array in arrays}) > 1:
        raise UserError(
            "metrics: the shape of the model's outputs differs between batches, so they cannot be gathered; remove "
            "metrics and train.predictions"
        )
    return np.concatenate(arrays)
