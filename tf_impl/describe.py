"""A user's model in float64: what it consists of, what it computes."""

from collections.abc import Mapping
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from common.errors import UserError
from common.mapping.description import Computed, Description, Layer, Variable
from common.mapping.factory import build_with, first_line, takes_by_name
from common.mapping.inputs import Input
from common.mapping.keras_parts import RECURRENT
from tf_impl.float64 import compute_in_float64
from tf_impl.trace import Trace, attributes_of, kind_of, tensors_of

KEY = "model.tf"


class Subject:
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
        keras.utils.clear_session()  # names count from the start again
        keras.utils.set_random_seed(seed)
        model = build_with(KEY, factory, arguments)
        if not isinstance(model, keras.Layer):
            raise UserError(f"{KEY}={factory}: returned {type(model).__name__}, not a keras.Model or keras.Layer")
        self.model = model
        self.inputs = {name: tf.convert_to_tensor(array) for name, array in arrays.items()}
        self.by_name = _takes_by_name(model, list(inputs))
        self._call(training=False)  # creates what layers create at their first call
        disable_dropout(model)
        self.channels = any(each.channels for each in inputs.values())

    def describe(self) -> Description:
        """The layers that a forward pass enters, and the variables."""
        tf.config.run_functions_eagerly(True)  # the layers in a tf.function are entered again
        with Trace(self.model) as trace:
            self._call(training=False)
        groups = [getattr(layer, "groups", 1) for layer in trace.entered.values()]
        if any(isinstance(each, int) and each > 1 for each in groups):
            tf.config.run_functions_eagerly(False)  # on the CPU, gradients of grouped convolutions need XLA
        found = self._variables()
        names = {id(each): name for name, each in found.items()}
        layers, used, updated = [], set(), set()
        for path, layer in trace.entered.items():
            mine = {role: names[id(each)] for role, each in _own(layer).items() if id(each) in names}
            used |= set(mine.values())
            updated |= {name for role, name in mine.items() if role.startswith("moving_")}
            if mine:
                kind, attributes = kind_of(layer), attributes_of(layer)
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
        return Description(layers, variables, [name for name in variables if name not in used], self.channels)

    def weights(self) -> dict[str, np.ndarray]:
        """All variables by name."""
        return {name: each.numpy() for name, each in self._variables().items()}

    def compute(
        self, weights: Mapping[str, np.ndarray], training: bool, projections: Mapping[str, np.ndarray]
    ) -> Computed:
        """A forward pass with these weights; with its gradients where there are projections of the outputs."""
        variables = self._variables()
        for name, array in weights.items():
            variables[name].assign(array)
        trained = {name: each for name, each in variables.items() if each.trainable}
        with Trace(self.model) as trace, tf.GradientTape() as tape:
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

    def _variables(self) -> dict[str, keras.Variable]:
        """Those of floats by name."""
        return {name: each for name, each in _named(self.model).items() if "float" in each.dtype}

    def _call(self, training: bool) -> dict[str, tf.Tensor]:
        how: Any = {} if not self.model._call_has_training_arg else {"training": training}
        try:
            if self.by_name is None:
                returned = self.model(dict(self.inputs), **how)
            elif self.by_name:
                returned = self.model(**self.inputs, **how)
            else:
                returned = self.model(*self.inputs.values(), **how)
        except Exception as error:
            raise UserError(f"{KEY}={self.factory}: its forward pass raised {first_line(error)}") from error
        found = tensors_of(returned)
        if not any(each.dtype.is_floating for each in found.values()):
            raise UserError(f"{KEY}={self.factory}: its forward pass returned no tensor of floats")
        return found


def disable_dropout(model: keras.Layer) -> None:
    """The two frameworks draw different masks. Functions are handled in the trace."""
    for layer in model._flatten_layers():
        if "Dropout" in type(layer).__name__ and hasattr(layer, "rate"):
            layer.rate = 0.0
        for name in ("dropout", "recurrent_dropout"):
            if isinstance(vars(layer).get(name), float):
                setattr(layer, name, 0.0)


def _takes_by_name(model: keras.Layer, names: list[str]) -> bool | None:
    """As `takes_by_name`; None of a model that takes several inputs as a dict."""
    if isinstance(model, keras.Sequential):
        return False
    if isinstance(model, keras.Model) and not _is_subclassed(model):
        taken = [each.name for each in model.inputs]
        for name in names if len(names) > 1 or len(taken) > 1 else []:
            if name not in taken:
                raise UserError(f"inputs.{name}: {KEY} takes no such input; it takes {', '.join(taken)}")
        return None if len(taken) > 1 else False
    parameters = [name for name in model._call_signature.parameters if name not in ("training", "mask")]
    if len(names) > 1 and len(parameters) == 1:
        return None
    return takes_by_name(KEY, model.call, names)


def _is_subclassed(model: keras.Model) -> bool:
    """Whether its call is its own, not that of a graph of layers."""
    return not type(model).call.__module__.startswith("keras.")


def _named(model: keras.Layer) -> dict[str, keras.Variable]:
    """Variables by path; with a number where several have the same."""
    found: dict[str, keras.Variable] = {}
    for each in model.variables:
        same = [name for name in found if name.partition("#")[0] == each.path]
        found[f"{each.path}#{len(same) + 1}" if same else each.path] = each
    return found


def _own(layer: keras.Layer) -> dict[str, keras.Variable]:
    """Those of a layer by role: of a recurrent layer those of its cell."""
    inner = layer.cell if kind_of(layer) in RECURRENT and hasattr(layer, "cell") else layer
    return {each.name: each for each in (*inner._trainable_variables, *inner._non_trainable_variables)}
