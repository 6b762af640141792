"""A user's own model, as its factory returns it: see docs/custom_models.md."""

from typing import Any

import keras
import tensorflow as tf
from keras.src.utils.naming import reset_uids

from common.map.factory import build_with
from common.map.transformations import Source, Transformation, parse
from common.models.initial_weights import InitialCheckpoint
from tf_impl.batch_norm import synchronize_batch_norm, use_real_rows
from tf_impl.convolution import patch_strided_convolutions
from tf_impl.dropout import align_dropout, find_dropout_layers, use_dropout_keys
from tf_impl.float64 import compute_in_float64
from tf_impl.input_adapter import build_input_adapter, get_training_argument
from tf_impl.keras_paths import variables_by_path
from tf_impl.models.layout import TransformedParameter
from tf_impl.nested_tensors import name_tensors


class CustomModel(keras.Model):
    """Takes the arrays of a batch by name and returns the task's output."""

    def __init__(self, inner: keras.Layer, settings: dict[str, Any]) -> None:
        super().__init__()
        self.inner, self.result = inner, settings["outputs"]["tf"]
        self.arguments = build_input_adapter("model.tf", inner, list(settings["inputs"]))

    def call(self, inputs: dict[str, tf.Tensor], training: bool) -> tf.Tensor:
        dtype = self.variable_dtype
        cast = {name: tf.cast(each, dtype) if each.dtype.is_floating else each for name, each in inputs.items()}
        args, kwargs = self.arguments(cast)
        with use_dropout_keys(inputs.get("dropout_keys")), use_real_rows(inputs.get("real_rows")):
            returned = self.inner(*args, **kwargs, **get_training_argument(self.inner, training))
        return name_tensors(returned)[self.result]


def build(initial: InitialCheckpoint) -> keras.Model:
    """The model."""
    settings = initial.hf_config
    if keras.config.dtype_policy().variable_dtype == "float64":
        compute_in_float64()
    patch_strided_convolutions()
    reset_uids()  # names count from the start, as when the model was proven
    inner = build_with("model.tf", settings["factories"]["tf"], settings["arguments"])
    model = CustomModel(inner, settings)
    args, kwargs = model.arguments(
        {name: tf.ones([2, *shape], _dtype(dtype)) for name, (dtype, shape) in settings["inputs"].items()}
    )
    inner(*args, **kwargs, **get_training_argument(inner, False))  # creates what layers create at their first call
    if settings["dropouts"] is not None:
        layers = find_dropout_layers(inner)
        for each in settings["dropouts"]:
            align_dropout(layers[each["keras"]], each["torch"], each["layout"])
    synchronize_batch_norm(inner, settings["sync_batch_norm"])
    model.named_parameters = _named_parameters(inner, settings)
    return model


def _dtype(name: str) -> str:
    return keras.config.floatx() if name.startswith("float") else name


def _named_parameters(model: keras.Layer, settings: dict[str, Any]) -> list[TransformedParameter]:
    variables = variables_by_path(model)
    shapes = {name: tuple(shape) for name, shape in settings["shapes"].items()}
    if settings["map"] is None:
        transformations = {name: Transformation((Source(name),)) for name in shapes}
    else:
        transformations = {name: parse(text) for name, text in settings["map"].items()}
    return [
        TransformedParameter(variables[name], each, {source.name: shapes[source.name] for source in each.sources})
        for name, each in transformations.items()
        if all(source.name in shapes for source in each.sources)
    ]
