"""A user's own model, as its factory returns it: see docs/custom_models.md."""

from typing import Any

import keras
import tensorflow as tf
from keras.src.utils.naming import reset_uids

from common.map.factory import build_with
from common.map.transformations import Source, Transformation, parse
from common.models.initial_weights import InitialCheckpoint
from tf_impl.batch_norm import leave_out, synchronize
from tf_impl.calling import arguments_of, mode, variables_by_path
from tf_impl.convolution import skip_inputs_first
from tf_impl.dropout import align_dropout, dropout_layers, use_keys
from tf_impl.float64 import compute_in_float64
from tf_impl.models.layout import Mapped
from tf_impl.trace import tensors_of


class Custom(keras.Model):
    """Takes the arrays of a batch by name and returns the task's output."""

    def __init__(self, inner: keras.Layer, settings: dict[str, Any]) -> None:
        super().__init__()
        self.inner, self.result = inner, settings["outputs"]["tf"]
        self.arguments = arguments_of("model.tf", inner, list(settings["inputs"]))

    def call(self, inputs: dict[str, tf.Tensor], training: bool) -> tf.Tensor:
        dtype = self.variable_dtype
        cast = {name: tf.cast(each, dtype) if each.dtype.is_floating else each for name, each in inputs.items()}
        args, kwargs = self.arguments(cast)
        with use_keys(inputs.get("dropout_keys")), leave_out(inputs.get("real_rows")):
            returned = self.inner(*args, **kwargs, **mode(self.inner, training))
        return tensors_of(returned)[self.result]


def build(initial: InitialCheckpoint) -> keras.Model:
    """The model."""
    settings = initial.hf_config
    if keras.config.dtype_policy().variable_dtype == "float64":
        compute_in_float64()
    skip_inputs_first()
    reset_uids()  # names count from the start, as when the model was proven
    inner = build_with("model.tf", settings["factories"]["tf"], settings["arguments"])
    model = Custom(inner, settings)
    args, kwargs = model.arguments(
        {name: tf.ones([2, *shape], _dtype(dtype)) for name, (dtype, shape) in settings["inputs"].items()}
    )
    inner(*args, **kwargs, **mode(inner, False))  # creates what layers create at their first call
    if settings["dropouts"] is not None:
        layers = dropout_layers(inner)
        for each in settings["dropouts"]:
            align_dropout(layers[each["keras"]], each["torch"], each["layout"])
    synchronize(inner, settings["sync_batch_norm"])
    model.named_parameters = _named_parameters(inner, settings)
    return model


def _dtype(name: str) -> str:
    return keras.config.floatx() if name.startswith("float") else name


def _named_parameters(model: keras.Layer, settings: dict[str, Any]) -> list[Mapped]:
    variables = variables_by_path(model)
    shapes = {name: tuple(shape) for name, shape in settings["shapes"].items()}
    if settings["map"] is None:
        transformations = {name: Transformation((Source(name),)) for name in shapes}
    else:
        transformations = {name: parse(text) for name, text in settings["map"].items()}
    return [
        Mapped(variables[name], each, {source.name: shapes[source.name] for source in each.sources})
        for name, each in transformations.items()
        if all(source.name in shapes for source in each.sources)
    ]
