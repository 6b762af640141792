"""Description of a Keras model: the names of its variables, and its layers with their attributes."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from types import ModuleType
from typing import Any

import tensorflow as tf

from common.recording.record_format import LayerFacts, ModelFacts
from common.recording.record_writer import list_plain_values
from tf_impl.record.tensors import is_number

Layer = Any  # of Keras 2 or Keras 3; `keras.Layer` is one of them
KERAS_LAYER = re.compile(r"(tf_)?keras\.(src\.)?layers\.(?!layer$)")  # the modules of Keras's own layers
KERAS_REGULARIZER = re.compile(r"(tf_)?keras\.(src\.)?regularizers\b")
RECURRENT_KINDS = {"LSTM", "GRU", "SimpleRNN", "RNN", "ConvLSTM1D", "ConvLSTM2D", "ConvLSTM3D"}
COMPOSITE_KINDS = {"MultiHeadAttention", "GroupedQueryAttention", "Bidirectional"}
INTERNAL_ATTRIBUTES = {"built", "name", "supports_masking", "autocast", "trainable", "supports_jit"}


def find_layer_class(layer: Layer) -> type:
    """Return the class Layer of the Keras that a layer comes from.

    Raises:
        ValueError: The object is no Keras layer.
    """
    for kind in type(layer).__mro__:
        if kind.__name__ == "Layer" and kind.__module__.partition(".")[0] in ("keras", "tf_keras", "tensorflow"):
            return kind
    raise ValueError(f"model: is a {type(layer).__name__}; pass a keras.Model or keras.Layer")


def find_keras(layer: Layer) -> ModuleType:
    """Return the module keras or tf_keras that a layer comes from."""
    return sys.modules[find_layer_class(layer).__module__.partition(".")[0]]


def make_unique(path: str, taken: Mapping[str, object]) -> str:
    """Return the path if it is not taken, else path#2, path#3 ..."""
    count = sum(name.partition("#")[0] == path for name in taken)
    return f"{path}#{count + 1}" if count else path


def name_variables(model: Layer) -> dict[str, Any]:
    """Return the weights of a model that are numbers by unique path, without the states of random generators."""
    variables: dict[str, Any] = {}
    for variable in model.weights:
        if "seed_generator_state" not in variable.name and is_number(tf.as_dtype(variable.dtype)):
            variables[make_unique(_get_path(variable), variables)] = variable
    return variables


def name_by_identity(variables: Mapping[str, Any]) -> dict[int, str]:
    """Return the names of variables by the identity of the variable, and of the tf.Variable that Keras 3 wraps."""
    names = {id(getattr(variable, "_value", variable)): name for name, variable in variables.items()}
    return {**names, **{id(variable): name for name, variable in variables.items()}}


def get_kind(layer: Layer) -> str:
    """Return the name of Keras's class that a layer is or derives from; otherwise the layer's own class.

    If Keras has a class of the same name, the name has the package of the layer's class before it.
    """
    kinds = [kind.__name__ for kind in type(layer).__mro__ if KERAS_LAYER.match(kind.__module__)]
    name = type(layer).__name__
    own_kind = f"{type(layer).__module__.partition('.')[0]}.{name}" if hasattr(tf.keras.layers, name) else name
    return kinds[0] if kinds else own_kind


def describe_layer(layer: Layer, path: str, names: Mapping[int, str]) -> LayerFacts:
    """Describe a layer that has its variables. The caller fills in what the forward pass shows.

    Args:
        layer: The layer.
        path: Its unique path.
        names: Names of the model's variables by identity.
    """
    attributes = {
        name: _simplify(name, value)
        for name, value in {**_read_regularizers(layer), **vars(_get_owner(layer)), **vars(layer)}.items()
        if not name.startswith("_") and name not in INTERNAL_ATTRIBUTES
    }
    return {
        "kind": get_kind(layer),
        "path": path,
        "attributes": list_plain_values(attributes),
        "variables": _name_roles(layer, names),
        "unflattened_shape": None,
        "composite": None,
        "training": False,
    }


def _read_regularizers(layer: Layer) -> dict[str, object]:
    """Return the regularizers of the variables of a layer, which a layer of the script passes to `add_weight`."""
    regularizers = {_get_path(x).rpartition("/")[2]: getattr(x, "regularizer", None) for x in _list_variables(layer)}
    return {f"{role}_regularizer": known for role, known in regularizers.items() if known is not None}


def _simplify(name: str, value: Any) -> object:  # noqa: ANN401  an attribute of any layer
    """Return the name of an activation, the factors of a regularizer as [l1, l2], or else the value itself.

    Another regularizer than L1 and L2, such as one of the script's own, is the name of its class.
    """
    if name.endswith("activation"):
        return getattr(value, "__name__", value)
    if name.endswith("_regularizer") and value is not None:
        factors = [getattr(value, factor, None) for factor in ("l1", "l2")]
        if factors == [None, None] or not KERAS_REGULARIZER.match(type(value).__module__):
            return type(value).__name__
        return [float(factor or 0.0) for factor in factors]
    return value


def describe_model(model: Layer, layers: list[LayerFacts]) -> ModelFacts:
    """Describe a model. layers: in the order in which the forward pass entered them."""
    return {
        "name": f"{type(model).__module__}.{type(model).__qualname__}",
        "layers": layers,
        "variables": {
            name: {
                "shape": [int(size) for size in variable.shape],
                "dtype": tf.as_dtype(variable.dtype).name,
                "trainable": bool(variable.trainable),
            }
            for name, variable in name_variables(model).items()
        },
        "tied": [],  # Keras's layers share one variable, which has one name
    }


def has_own_variables(layer: Layer) -> bool:
    """Check whether a layer has variables that belong to none of its parts."""
    return (
        bool(layer._trainable_variables or layer._non_trainable_variables)
        if is_keras_3(layer)
        else bool(layer._trainable_weights or layer._non_trainable_weights)
    )


def is_part(layer: Layer, model: Layer) -> bool:
    """Check whether a layer belongs to a model: a script may call the layers of a model one by one."""
    return any(part is layer for part in model._flatten_layers(include_self=False))


def list_parts(layer: Layer) -> list[Layer]:
    """Return the layers of which a layer consists."""
    return list(layer._flatten_layers(include_self=False))


def is_keras_3(layer: Layer) -> bool:
    """Check whether a layer comes from Keras 3."""
    return hasattr(find_layer_class(layer), "path")


def _get_path(variable: Any) -> str:  # noqa: ANN401  a tf.Variable or a keras.Variable
    return str(getattr(variable, "path", variable.name)).partition(":")[0]


def _get_owner(layer: Layer) -> Layer:
    """Return the layer that has the variables and the hyperparameters of a layer: the cell of a recurrent one."""
    return layer.cell if get_kind(layer) in RECURRENT_KINDS and hasattr(layer, "cell") else layer


def _name_roles(layer: Layer, names: Mapping[int, str]) -> dict[str, str]:
    """Return the names of the variables of a layer by role."""
    return {_get_path(x).rpartition("/")[2]: names[id(x)] for x in _list_variables(layer) if id(x) in names}


def _list_variables(layer: Layer) -> list[Any]:
    """Return the variables that a layer, or its cell, has itself."""
    owner = _get_owner(layer)
    if is_keras_3(layer):
        return [*owner._trainable_variables, *owner._non_trainable_variables]
    return [*owner._trainable_weights, *owner._non_trainable_weights]
