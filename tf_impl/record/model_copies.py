"""Copies that a script makes of its model before it follows a record, such as target networks and averaged models."""

from __future__ import annotations

import gc

import numpy as np

from tf_impl.record.model_facts import Layer
from tf_impl.record.tensors import to_array

COPIES = "weights: copies of the model ({}), such as a target network, got those of the record, too"


def find_copies(model: Layer) -> list[Layer]:
    """Return the other models of the same class that have the same weights, and are no part of the model."""
    parts, weights = {id(part) for part in model._flatten_layers()}, [to_array(x) for x in model.trainable_weights]
    if all((weight == weight.flat[:1]).all() for weight in weights):
        return []  # equal by chance
    candidates = [x for x in gc.get_objects() if type(x) is type(model) and id(x) not in parts]
    return [x for x in candidates if _are_equal(weights, model, x)]


def _are_equal(weights: list[np.ndarray], model: Layer, other: Layer) -> bool:
    """Check whether weights are equal, and not the same variables."""
    if len(model.weights) != len(other.weights) or any(x is y for x, y in zip(model.weights, other.weights)):  # noqa: B905
        return False
    others = [y for x, y in zip(model.weights, other.weights) if x.trainable]  # noqa: B905
    return all(tuple(y.shape) == x.shape and np.array_equal(x, to_array(y)) for x, y in zip(weights, others))  # noqa: B905
