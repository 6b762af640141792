"""Parts of a Keras model that a training run would lose, on either backend.

No process of `common` imports Keras, so this reads the classes by name.
"""

from typing import Any

from common.map.keras_classes import find_keras_class, get_user_model
from common.map.keras_paths import layers_by_path, variables_by_path

TRAINING_METHODS = ("train_step", "compute_loss")  # methods of keras.Model that `fit` calls


def find_lost_parts(model: Any) -> list[str]:  # noqa: ANN401  a keras.Layer
    """Return a sentence for each part of a model that a training run would ignore: what it is, and what to do about it.

    Args:
        model: The model, after a forward pass in training mode. Keras uses the regularizers and constraints of its
            trainable variables only.
    """
    penalties, sentences = [], []
    variables = {name: variable for name, variable in variables_by_path(model).items() if variable.trainable}
    for name, variable in variables.items():
        if variable.regularizer is not None:
            kind = type(variable.regularizer).__name__
            penalties.append(f"variable {name} has a regularizer ({kind}), whose loss training does not add")
        if variable.constraint is not None:
            sentences.append(
                f"variable {name} has a constraint ({type(variable.constraint).__name__}), which training does not "
                "apply; remove it"
            )
    penalties += [
        f"layer {path} has an activity regularizer ({type(layer.activity_regularizer).__name__}), whose loss training "
        "does not add"
        for path, layer in layers_by_path(model).items()
        if getattr(layer, "activity_regularizer", None) is not None
    ]
    sentences += [
        f"layer {path} has renorm=True, which training does not compute; remove it"
        for path, layer in layers_by_path(model).items()
        if getattr(layer, "renorm", False)
    ]
    if not penalties and model.losses and not _has_frozen_penalty(model):
        penalties = ["the model calls add_loss, whose losses training does not add"]
    sentences += [f"{penalty}; remove it" for penalty in penalties]
    remedy = (
        "return keras.Model(model.inputs, model.outputs)"
        if getattr(get_user_model(model), "inputs", None)
        else "return a model that does not override it, such as the network inside"
    )
    sentences += [
        f"the model overrides {name}, which training does not call; {remedy}, and compute the loss with task=custom"
        for name in TRAINING_METHODS
        if _overrides(get_user_model(model), name)
    ]
    return sentences


def _has_frozen_penalty(model: Any) -> bool:  # noqa: ANN401
    """Check whether a variable that is not trained has a regularizer. Keras 2 lists its loss, too."""
    return any(
        variable.regularizer is not None and not variable.trainable for variable in variables_by_path(model).values()
    )


def _overrides(model: Any, name: str) -> bool:  # noqa: ANN401
    """Check whether a model or its class replaces a method of keras.Model."""
    kind = find_keras_class(model, "Model")
    return kind is not None and getattr(getattr(model, name), "__func__", None) is not getattr(kind, name)
