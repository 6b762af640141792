"""Parts of a Keras model that a training run would lose, on either backend.

No process of `common` imports Keras, so this reads the classes by name.
"""

from typing import Any

from common.map.keras_paths import layers_by_path, variables_by_path

TRAINING_METHODS = ("train_step", "compute_loss")  # methods of keras.Model that `fit` calls


def find_lost_parts(model: Any) -> list[str]:  # noqa: ANN401  a keras.Layer, as below
    """Return a sentence for each part of a model that training does not compute, with what to do about it."""
    penalized, sentences = [], []
    for name, variable in variables_by_path(model).items():
        if variable.regularizer is not None:
            penalized.append(f"variable {name} has a regularizer ({type(variable.regularizer).__name__})")
        if variable.constraint is not None:
            sentences.append(
                f"variable {name} has a constraint ({type(variable.constraint).__name__}), which training does not "
                "apply; remove it"
            )
    penalized += [
        f"layer {path} has an activity regularizer ({type(layer.activity_regularizer).__name__})"
        for path, layer in layers_by_path(model).items()
        if getattr(layer, "activity_regularizer", None) is not None
    ]
    sentences += [
        f"layer {path} has renorm=True, which training does not compute; remove it"
        for path, layer in layers_by_path(model).items()
        if getattr(layer, "renorm", False)
    ]
    if not penalized and model.losses:
        penalized = ["the model adds losses with add_loss"]
    sentences += [f"{part}, whose loss training does not add; remove it" for part in penalized]
    remedy = (
        "return keras.Model(model.inputs, model.outputs)"
        if getattr(model, "inputs", None)
        else "return a model without it, such as one inside it"
    )
    sentences += [
        f"the model overrides {name}, which training does not call; {remedy}, and compute its loss with task=custom"
        for name in TRAINING_METHODS
        if _overrides(model, name)
    ]
    return sentences


def _overrides(model: Any, name: str) -> bool:  # noqa: ANN401
    """Check whether a model or its class replaces a method of keras.Model."""
    classes = [
        kind for kind in type(model).__mro__ if kind.__module__.startswith("keras.") and kind.__name__ == "Model"
    ]
    return bool(classes) and getattr(getattr(model, name), "__func__", None) is not getattr(classes[0], name)
