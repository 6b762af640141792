"""A user's model in float64: what it consists of, what it computes."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from common.errors import UserError, describe_error
from common.map.description import Computed, Description, Dropout, Layer, Variable
from common.map.factory import build_with, user_files
from common.map.inputs import Input
from common.map.keras_parts import RECURRENT
from tf_impl.convolution import patch_strided_convolutions
from tf_impl.dropout import find_dropout_layers
from tf_impl.float64 import compute_in_float64
from tf_impl.forward_trace import ForwardTrace, get_layer_attributes, get_layer_kind
from tf_impl.input_adapter import build_input_adapter, get_training_argument
from tf_impl.keras_paths import variables_by_path
from tf_impl.nested_tensors import name_tensors

KEY = "model.tf"


class DescribedModel:
    """The model of a factory, with the inputs on which it is computed. inputs and arrays: by name."""

    def __init__(
        self,
        factory: str,
        arguments: Mapping[str, Any],
        inputs: Mapping[str, Input],
        arrays: Mapping[str, np.ndarray],
        seed: int,
    ) -> None:
        self.factory = factory
        compute_in_float64()
        patch_strided_convolutions()
        keras.utils.clear_session()  # names count from the start again
        keras.utils.set_random_seed(seed)
        model = build_with(KEY, factory, arguments)
        if not isinstance(model, keras.Layer):
            raise UserError(f"{KEY}={factory}: returned {type(model).__name__}, not a keras.Model or keras.Layer")
        self.model = model
        self.inputs = {name: tf.convert_to_tensor(array) for name, array in arrays.items()}
        self.arguments = build_input_adapter(KEY, model, list(inputs))
        self.outputs = self._call(training=False)  # creates what layers create at their first call
        self.dropouts, self.noise = find_dropouts(model)
        disable_dropout(model)
        self.channels = any(each.channels for each in inputs.values())

    def describe(self) -> Description:
        """The layers that a forward pass enters, and the variables."""
        tf.config.run_functions_eagerly(True)  # the layers in a tf.function are entered again
        with ForwardTrace(self.model) as trace:
            self._call(training=False)
        groups = [getattr(layer, "groups", 1) for layer in trace.entered.values()]
        if any(isinstance(each, int) and each > 1 for each in groups):
            tf.config.run_functions_eagerly(False)  # on the CPU, gradients of grouped convolutions need XLA
        functions = self._functions_that_drop()
        found = self._variables()
        names = {id(each): name for name, each in found.items()}
        layers, used, updated = [], set(), set()
        for path, layer in trace.entered.items():
            mine = {role: names[id(each)] for role, each in _own(layer).items() if id(each) in names}
            used |= set(mine.values())
            updated |= {name for role, name in mine.items() if role.startswith("moving_")}
            if mine:
                kind, attributes = get_layer_kind(layer), get_layer_attributes(layer)
                layers.append(Layer(kind, path, attributes, mine, trace.flattened.get(path)))
        variables = {
            name: Variable(
                name,
                tuple(each.shape),
                each.trainable,
                constant=not each.trainable and name not in updated,
            )
            for name, each in found.items()
        }
        return Description(
            layers,
            variables,
            [name for name in variables if name not in used],
            self.channels,
            {name: tuple(each.shape) for name, each in self.outputs.items()},
            sorted(updated),
            {
                path: replace(self.dropouts[id(each)], flattened=trace.flattened.get(path))
                for path, each in trace.entered.items()
                if id(each) in self.dropouts
            },
            [*self.noise, *functions],
            user_files(),
        )

    def weights(self) -> dict[str, np.ndarray]:
        """All variables by name."""
        return {name: each.numpy() for name, each in self._variables().items()}

    def read_checkpoint(self, path: str) -> dict[str, np.ndarray]:
        """The variables of a checkpoint of Keras. Raises UserError."""
        before = self.weights()
        try:
            self.model.load_weights(path)
        except Exception as error:
            raise UserError(f"model.checkpoint={path}: cannot be read ({describe_error(error)})") from error
        found = self.weights()
        for name, each in self._variables().items():
            each.assign(before[name])
        return found

    def compute(
        self, weights: Mapping[str, np.ndarray], training: bool, projections: Mapping[str, np.ndarray]
    ) -> Computed:
        """A forward pass with these weights; with its gradients where there are projections of the outputs."""
        variables = self._variables()
        for name, array in weights.items():
            variables[name].assign(array)
        trained = {name: each for name, each in variables.items() if each.trainable}
        with ForwardTrace(self.model) as trace, tf.GradientTape() as tape:
            outputs = self._call(training)
            terms = [tf.reduce_sum(outputs[name] * each) for name, each in projections.items()]
            loss = tf.add_n(terms) if terms else None
        gradients = {}
        if loss is not None:
            found = tape.gradient(
                loss, [each.value for each in trained.values()], unconnected_gradients=tf.UnconnectedGradients.ZERO
            )
            gradients = {name: tf.convert_to_tensor(each).numpy() for name, each in zip(trained, found, strict=True)}
        returned = {name: each.numpy() for name, each in outputs.items()}
        return Computed(returned, trace.calls, gradients, self.weights())

    def _functions_that_drop(self) -> list[str]:
        """Layers that call functions of dropout in training mode."""
        before = self.weights()
        with ForwardTrace(self.model) as trace:
            self._call(training=True)
        for name, each in self._variables().items():
            each.assign(before[name])
        return trace.noise

    def _variables(self) -> dict[str, keras.Variable]:
        """Those of floats by name."""
        return {name: each for name, each in variables_by_path(self.model).items() if "float" in each.dtype}

    def _call(self, training: bool) -> dict[str, tf.Tensor]:
        try:
            args, kwargs = self.arguments(self.inputs)
            returned = self.model(*args, **kwargs, **get_training_argument(self.model, training))
        except Exception as error:
            raise UserError(f"{KEY}={self.factory}: its forward pass raised {describe_error(error)}") from error
        found = name_tensors(returned)
        if not any(each.dtype.is_floating for each in found.values()):
            raise UserError(f"{KEY}={self.factory}: its forward pass returned no tensor of floats")
        return found


def find_dropouts(model: keras.Layer) -> tuple[dict[int, Dropout], list[str]]:
    """The layers that `align_dropout` replaces, by their id, and other layers that drop."""
    found = {
        id(layer): Dropout(layer.rate, name) for name, layer in find_dropout_layers(model).items() if layer.rate > 0
    }
    others = []
    for layer in model._flatten_layers():
        names = ("rate",) if "Dropout" in type(layer).__name__ else ("dropout", "recurrent_dropout")
        rates = [getattr(layer, name, 0.0) for name in names]
        aligned = id(layer) in found or _drops_by_layers(layer)
        if not aligned and any(isinstance(rate, float) and rate > 0 for rate in rates):
            others.append(f"{layer.path} ({type(layer).__name__})")
    return found, others


def disable_dropout(model: keras.Layer) -> None:
    """The two frameworks draw different masks. Functions are handled in the trace."""
    for layer in model._flatten_layers():
        if "Dropout" in type(layer).__name__ and hasattr(layer, "rate"):
            layer.rate = 0.0
        if _drops_by_layers(layer):
            continue  # with a rate of 0 an attention would not call its dropout layer
        for name in ("dropout", "recurrent_dropout"):
            if isinstance(vars(layer).get(name), float):
                setattr(layer, name, 0.0)


def _drops_by_layers(layer: keras.Layer) -> bool:
    """Whether it has dropout layers, as an attention has one that it passes its probabilities through."""
    return any(isinstance(each, keras.layers.Dropout) for each in layer._flatten_layers(include_self=False))


def _own(layer: keras.Layer) -> dict[str, keras.Variable]:
    """Those of a layer by role: of a recurrent layer those of its cell."""
    inner = layer.cell if get_layer_kind(layer) in RECURRENT and hasattr(layer, "cell") else layer
    return {each.name: each for each in (*inner._trainable_variables, *inner._non_trainable_variables)}
