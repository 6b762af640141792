"""Follow one forward pass of any model: which layers it enters, what they receive and return, what is flattened."""

from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from common.map.description import Call
from common.map.factory import plain_attributes
from common.map.keras_parts import KINDS, RECURRENT
from common.map.nested import replaced
from tf_impl import calling

RESHAPES = (tf, "reshape")
DROPOUTS = ((keras.random, "dropout"), (tf.nn, "dropout"), (tf.nn.experimental, "stateless_dropout"))
ATTRIBUTES = {
    "epsilon": "epsilon",
    "momentum": "momentum",
    "groups": "groups",
    "strides": "stride",
    "dilation_rate": "dilation",
    "padding": "padding",
    "equation": "equation",
    "reset_after": "reset_after",
}


class Trace:
    """Use it as a context around the forward pass.

    entered: the layers in the order in which they were entered, by path. flattened: of a layer, the shape of an example
    before it was flattened to what the layer receives. calls: the first of each layer; of a layer with an activation,
    what it returns is what the activation receives, as PyTorch's layers have none. noise: layers that drop by calling
    functions, which drop nothing here.

    given: of some layers, the first calls of their counterparts in another model. Such a layer computes on what its
    counterpart received, and the model goes on with what that returned; `calls` has what the layer itself received from
    the layers before it, and what it computed.
    """

    def __init__(self, model: keras.Layer, given: Mapping[str, Call] | None = None) -> None:
        self.entered: dict[str, keras.Layer] = {}
        self.flattened: dict[str, tuple[int, ...]] = {}
        self.calls: dict[str, Call] = {}
        self.noise: list[str] = []
        self._given = given or {}
        self._paths: dict[int, str] = {id(model): "model"}
        self._stack: list[keras.Layer] = []
        self._shapes: dict[int, tuple[int, ...]] = {}  # of examples before they were flattened, by their size
        self._undo: list[Callable[[], None]] = []

    def __enter__(self) -> "Trace":
        self._replace(keras.Layer, "__call__", self._call(keras.Layer.__call__))
        self._replace(calling, "apply", lambda layer, compute, x: self._call(lambda _, x: compute(x))(layer, x))
        self._replace(calling, "followed", True)
        self._replace(*RESHAPES, self._reshape(tf.reshape))
        for module, name in DROPOUTS:
            self._replace(module, name, self._drop(name))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for undo in reversed(self._undo):
            undo()

    def _replace(self, owner: Any, name: str, new: Any) -> None:
        old = getattr(owner, name)
        setattr(owner, name, new)
        self._undo.append(lambda: setattr(owner, name, old))

    def _drop(self, name: str) -> Callable[..., Any]:
        def drop(inputs: Any, rate: Any, *args: Any, **kwargs: Any) -> Any:
            found = f"{self._path(self._stack[-1]) if self._stack else 'model'} ({name})"
            if rate > 0 and found not in self.noise:
                self.noise.append(found)
            return inputs

        return drop

    def _call(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def call(layer: keras.Layer, *args: Any, **kwargs: Any) -> Any:
            if any(kind_of(each) in RECURRENT for each in self._stack):
                return original(layer, *args, **kwargs)  # a step of it
            path = self._path(layer)
            received = first_tensor((args, kwargs))
            if path not in self.entered:
                self._enter(layer, path, received)
            given = self._given.get(path) if path not in self.calls else None
            if given is not None:
                args, kwargs = replace_first((args, kwargs), given.received)
            self._stack.append(layer)
            try:
                with _BeforeActivation(layer, given.returned if given else None) as before:
                    returned = original(layer, *args, **kwargs)
            finally:
                self._stack.pop()
            if path not in self.calls:
                found = before.received if before.received is not None else first_tensor(returned)
                self.calls[path] = Call(_array(received), _array(found))
            if given is not None and before.received is None:
                return replace_first(returned, given.returned)
            return returned

        return call

    def _enter(self, layer: keras.Layer, path: str, received: Any) -> None:
        self.entered[path] = layer
        if received is not None and len(received.shape) == 2 and received.shape[1] in self._shapes:
            self.flattened[path] = self._shapes[received.shape[1]]
            if kind_of(layer) == "Dense":
                del self._shapes[received.shape[1]]

    def _reshape(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def reshape(tensor: Any, shape: Any, name: str | None = None) -> Any:
            returned = original(tensor, shape, name)
            before, after = tf.convert_to_tensor(tensor).shape, returned.shape
            inside = self._stack and kind_of(self._stack[-1]) in KINDS  # a layer shapes its own weights
            if len(before) >= 3 and len(after) == 2 and after[0] == before[0] and not inside:
                self._shapes[after[1]] = tuple(before[1:])
            return returned

        return reshape

    def _path(self, layer: keras.Layer) -> str:
        """Its own, or with a number where several layers have the same."""
        if id(layer) not in self._paths:
            path = getattr(layer, "path", None) or layer.name
            same = [each for each in self._paths.values() if each.partition("#")[0] == path]
            self._paths[id(layer)] = f"{path}#{len(same) + 1}" if same else path
        return self._paths[id(layer)]


class _BeforeActivation:
    """Notes what the activation of a layer receives, while the layer is called. given: what it gets instead."""

    def __init__(self, layer: keras.Layer, given: np.ndarray | None = None) -> None:
        self.received: Any = None
        self._given = given
        self._own = vars(layer)
        self._activation = None
        if kind_of(layer) in KINDS - RECURRENT.keys():
            self._activation = self._own.get("activation")

    def __enter__(self) -> "_BeforeActivation":
        if self._activation is not None:
            self._own["activation"] = self._note
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._activation is not None:
            self._own["activation"] = self._activation

    def _note(self, inputs: Any) -> Any:
        self.received = inputs
        assert self._activation is not None
        return self._activation(replace_first(inputs, self._given))


def kind_of(layer: keras.Layer) -> str:
    """Keras's class that it is, or derives from, where that is a known one; else its own."""
    own = [each for each in type(layer).__mro__ if each.__module__.startswith("keras.") and each.__name__ in KINDS]
    return own[0].__name__ if own else type(layer).__name__


def attributes_of(layer: keras.Layer) -> dict[str, Any]:
    """What the pairing needs to know, and what errors may name; momentum as PyTorch has it."""
    found = plain_attributes(layer, ATTRIBUTES)
    if isinstance(found.get("momentum"), int | float):
        found["momentum"] = 1 - found["momentum"]
    return found


def first_tensor(found: Any) -> Any:
    """The first tensor of floats in nested containers, or else of other numbers."""
    tensors = [each for each in tensors_of(found).values()]
    floats = [each for each in tensors if each.dtype.is_floating]
    return next(iter(floats or tensors), None)


def tensors_of(found: Any, name: str = "output") -> dict[str, tf.Tensor]:
    """The tensors in nested containers by name, such as output[0] or output.logits."""
    if isinstance(found, tf.Tensor):
        return {name: found}
    if isinstance(found, Mapping):
        pairs = [(f"{name}.{key}", value) for key, value in found.items()]
    elif isinstance(found, list | tuple):
        pairs = [(f"{name}[{index}]", value) for index, value in enumerate(found)]
    else:
        return {}
    return {key: tensor for path, value in pairs for key, tensor in tensors_of(value, path).items()}


def replace_first(found: Any, array: np.ndarray | None) -> Any:
    """Nested tuples with their `first_tensor` replaced where the array has its shape."""
    first = first_tensor(found)
    if array is None or first is None or tuple(first.shape) != array.shape:
        return found
    return replaced(found, first, tf.constant(array, first.dtype))


def widened(tensor: tf.Tensor) -> tf.Tensor:
    """Halves as float32, which NumPy has."""
    return tf.cast(tensor, tf.float32) if tensor.dtype in (tf.bfloat16, tf.float16) else tensor


def _array(tensor: Any) -> np.ndarray | None:
    return None if tensor is None or not hasattr(tensor, "numpy") else widened(tensor).numpy()
