"""Parts of a user's model that a training run would lose or compute differently on several replicas."""

from collections.abc import Collection

import keras

from tf_impl.keras_paths import layers_by_path, variables_by_path

TRAINING_METHODS = ("train_step", "compute_loss")  # methods of keras.Model that `fit` calls


def find_unsupported(
    model: keras.Layer,
    buffers: Collection[str],
    changed_in_evaluation: Collection[str],
    created: Collection[str],
) -> list[str]:
    """Return a sentence for each part of the model that cannot be trained, with what to do about it.

    Args:
        model: The model, after a forward pass in training mode.
        buffers: The paths of the variables that forward passes in training mode change, without those of BatchNorm.
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
    penalized = []
    for name, variable in variables.items():
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
    if not penalized and model.losses:
        penalized = ["the model adds losses with add_loss"]
    sentences += [f"{part}, whose loss training does not add; remove it" for part in penalized]
    is_functional = bool(getattr(model, "inputs", None))
    remedy = (
        "return keras.Model(model.inputs, model.outputs)"
        if is_functional
        else "return a model without it, such as one inside it"
    )
    sentences += [
        f"the model overrides {name}, which training does not call; {remedy}, and compute its loss with task=custom"
        for name in TRAINING_METHODS
        if isinstance(model, keras.Model) and not _is_inherited(getattr(model, name), getattr(keras.Model, name))
    ]
    return sentences


def _is_inherited(method: object, function: object) -> bool:
    """Check whether a method of a model is Keras's function, which neither the model nor its class replaces."""
    return getattr(method, "__func__", None) is function
