"""Parts of a user's model that a training run would lose or compute differently on several replicas."""

from collections.abc import Collection

import keras

from common.map.keras_paths import variables_by_path
from common.map.keras_unsupported import find_lost_parts


def find_unsupported(
    model: keras.Layer,
    buffers: Collection[str],
    changed_in_evaluation: Collection[str],
    created: Collection[str],
) -> list[str]:
    """Return a sentence for each part of the model that cannot be trained, with what to do about it.

    Args:
        model: The model, after a forward pass in training mode.
        buffers: The paths of the variables that forward passes in training mode change, except BatchNorm's.
        changed_in_evaluation: The paths of the variables that forward passes in evaluation mode change.
        created: The paths of the variables that the first forward pass in training mode creates.
    """
    sentences = [
        f"variable {name} changes in forward passes in evaluation mode, so that evaluations would change the training "
        "run; change it only in training mode"
        for name in changed_in_evaluation
    ]
    sentences += [
        f"variable {name} is created by the first forward pass in training mode; create it with the model"
        for name in created
    ]
    variables = variables_by_path(model)
    sentences += [
        f"variable {name} has aggregation={variables[name].aggregation!r}, so that its value would depend on the "
        "number of replicas; remove it"
        for name in buffers
        if variables[name].aggregation != "none"
    ]
    return [*sentences, *find_lost_parts(model)]
