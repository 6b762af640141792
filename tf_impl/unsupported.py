"""Parts of a user's model that a training run would lose or compute differently on several replicas."""

from collections.abc import Collection

import keras

from tf_impl.keras_paths import variables_by_path


def find_unsupported(model: keras.Layer, changed: Collection[str]) -> list[str]:
    """Return a sentence for each part of the model that cannot be trained, with what to do about it.

    Args:
        model: The model, after a forward pass in training mode.
        changed: The paths of the variables that a forward pass in training mode changes, without those of BatchNorm.
    """
    sentences = [
        f"variable {name} changes in forward passes, and is neither averaged over replicas nor saved; compute it from "
        "the inputs, or make it constant"
        for name in changed
    ]
    penalized = []
    for name, variable in variables_by_path(model).items():
        if variable.regularizer is not None:
            penalized.append(f"variable {name} has a regularizer ({type(variable.regularizer).__name__})")
        if variable.constraint is not None:
            sentences.append(
                f"variable {name} has a constraint ({type(variable.constraint).__name__}), which training does not "
                "apply; remove it"
            )
    penalized += [
        f"layer {layer.path} has an activity regularizer ({type(layer.activity_regularizer).__name__})"
        for layer in model._flatten_layers()
        if getattr(layer, "activity_regularizer", None) is not None
    ]
    if not penalized and model.losses:
        penalized = ["the model adds losses with add_loss"]
    return sentences + [f"{part}, whose loss training does not add; remove it" for part in penalized]
