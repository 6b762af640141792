"""A user's own model (`model=custom`), as its factory returns it. docs/custom_models.md describes the contract.

Before this, common/models/custom.py examines the user's models. The config.json of the initial checkpoint, `hf_config`,
holds the results: the factories, the inputs, the output that the task uses, the pairs of dropout layers, and the
parameter map, which says how each Keras variable is computed from PyTorch's parameters.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from functools import partial

import keras
import numpy as np
import tensorflow as tf
from typing_extensions import override

from common.errors import UserError
from common.map.dropout_pairs import ChannelLayout
from common.map.keras_calls import get_training_argument
from common.map.keras_paths import layers_by_path, variables_by_path
from common.map.noise import Noise
from common.map.transformation import ParameterTransformation, SourceParameter, parse_transformation
from common.models.initial_weights import InitialCheckpoint
from tf_impl.aligned_layers import align_dropout, use_dropout_keys
from tf_impl.batch_norm import synchronize_batch_norm, use_real_rows
from tf_impl.changing_buffers import mark_changing_buffers
from tf_impl.convolution import patch_strided_convolutions
from tf_impl.float64 import compute_in_float64, keep_float64
from tf_impl.input_adapter import build_input_adapter
from tf_impl.keras_two import KerasTwoModel, build_user_model
from tf_impl.models.layout import TransformedParameter
from tf_impl.nested_tensors import name_tensors

Move = tuple[int, int] | None  # an axis and its new position; None if no axis moves

PART = r"/part_\d+$"  # end of the path of a part of a variable that Keras 2 divides over parameter servers


class CustomModel(keras.Model):
    """A wrapper that takes the arrays of a batch by name and returns the output that the task uses."""

    def __init__(
        self, user_model: keras.Layer, input_names: Sequence[str], select: Callable[[object], tf.Tensor]
    ) -> None:
        """Wrap the model of a user's factory. select: returns the output that the task uses from all outputs."""
        super().__init__()
        self.user_model, self.select = user_model, select
        self.keep_float64 = keep_float64 if self.variable_dtype == "float64" else nullcontext
        self.adapt_inputs = build_input_adapter("model.tf", user_model, input_names)

    @override
    def call(self, inputs: dict[str, tf.Tensor], training: bool) -> tf.Tensor:
        dtype = self.variable_dtype
        cast = {name: tf.cast(x, dtype) if x.dtype.is_floating else x for name, x in inputs.items()}
        args, kwargs = self.adapt_inputs(cast)
        keys, real_rows = inputs.get("dropout_keys"), inputs.get("real_rows")
        with use_dropout_keys(keys), use_real_rows(real_rows), self.keep_float64():
            returned = self.user_model(*args, **kwargs, **get_training_argument(self.user_model, training))
        return self.select(returned)


def _select_output(name: str, move: Move, returned: object) -> tf.Tensor:
    """Select the output that the task uses, and move its axis to the labels' order."""
    output = name_tensors(returned)[name]
    return output if move is None else keras.ops.moveaxis(output, *move)


def _select_outputs(names: Sequence[str], moves: Sequence[Move], returned: object) -> tf.Tensor:
    """Select several outputs, in the order of their labels, and return them one after the other, flat [n, values]."""
    outputs = [_select_output(name, move, returned) for name, move in zip(names, moves, strict=True)]
    dtype = tf.float64 if outputs[0].dtype == tf.float64 else tf.float32
    return tf.concat([tf.cast(tf.reshape(x, [tf.shape(x)[0], -1]), dtype) for x in outputs], 1)


def build(initial: InitialCheckpoint) -> keras.Model:
    """Build the model; the caller loads the initial weights."""
    settings = initial.hf_config
    is_float64 = keras.config.dtype_policy().variable_dtype == "float64"
    if is_float64:
        compute_in_float64()
    patch_strided_convolutions()
    with keep_float64() if is_float64 else nullcontext():
        user_model = build_user_model("model.tf", settings["factories"]["tf"], settings["arguments"])
    output, move = settings["outputs"]["tf"], settings.get("moved_axes", {}).get("tf")
    select = _select_outputs if isinstance(output, list) else _select_output
    model = CustomModel(user_model, list(settings["inputs"]), partial(select, output, move))
    ones = {name: tf.ones([2, *shape], _resolve_dtype(dtype)) for name, (dtype, shape) in settings["inputs"].items()}
    args, kwargs = model.adapt_inputs(ones)
    with model.keep_float64():
        user_model(*args, **kwargs, **get_training_argument(user_model, False))  # layers create their variables
    if settings["dropouts"] is not None:
        layers = layers_by_path(user_model)
        for pair in settings["dropouts"]:
            layout = pair["layout"]  # how PyTorch's layer receives the elements, if in another order; else None
            if layout is not None:
                layout = ChannelLayout(tuple(layout["received"]), tuple(layout["channels_first"]))
            align_dropout(layers[pair["keras"]], pair["torch"], Noise(**pair["noise"]), layout)
    synchronize_batch_norm(user_model, settings["sync_batch_norm"])
    model.named_parameters = _build_parameters(user_model, settings["shapes"], settings["map"])
    if settings["map"] is not None:
        model.lacking_weights = _select_lacking(initial.weights(), model.named_parameters)
        for path, variable in variables_by_path(user_model).items():
            if path not in settings["map"]:  # no output depends on it
                variable.trainable = False
    mark_changing_buffers(model, settings["buffers"])
    return model


def _select_lacking(
    weights: Mapping[str, np.ndarray], parameters: Sequence[TransformedParameter]
) -> dict[str, np.ndarray]:
    """Return the weights of PyTorch that the variables of a model do not hold completely."""
    held: set[str] = set()
    for transformation in (parameter.transformation for parameter in parameters):
        held |= set() if transformation.selects_rows else {source.name for source in transformation.sources}
    return {name: array for name, array in weights.items() if name not in held}


def _resolve_dtype(name: str) -> str:
    return keras.config.floatx() if name.startswith("float") else name


def _build_parameters(
    model: keras.Layer, shapes: Mapping[str, Sequence[int]], parameter_map: Mapping[str, str] | None
) -> list[TransformedParameter]:
    """Pair the variables of a model with PyTorch's parameters.

    Args:
        model: The user's model.
        shapes: The shape of every parameter in the checkpoint, by name.
        parameter_map: The transformation from PyTorch's parameters to each variable, as a map file has it; None if
            the checkpoint has the names of the variables themselves.
    """
    variables = variables_by_path(model)
    if isinstance(model, KerasTwoModel) and (divided := [path for path in variables if re.search(PART, path)]):
        raise UserError(
            f"strategy.parameter_servers: Keras 2 divides variables over the servers, such as {divided[0]}, which is "
            "not supported; set it to 1"
        )
    if parameter_map is None:
        transformations = {name: ParameterTransformation((SourceParameter(name),)) for name in shapes}
    else:
        transformations = {name: parse_transformation(text) for name, text in parameter_map.items()}
    return [
        TransformedParameter(
            variables[name],
            transformation,
            {source.name: tuple(shapes[source.name]) for source in transformation.sources},
        )
        for name, transformation in transformations.items()
        if all(source.name in shapes for source in transformation.sources)  # a checkpoint has no constants
    ]
