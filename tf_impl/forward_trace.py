"""A trace of one forward pass of any model: its layers, what they receive and return, and which inputs are flattened.

The two frameworks flatten images in different orders, so common.map must know the shapes before flattening. The path of
a layer is its name in the model.
"""

import sys
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from types import TracebackType

import keras
import numpy as np
import tensorflow as tf
from tensorflow.python.ops.resource_variable_ops import BaseResourceVariable

from common.map.containers import order_arguments
from common.map.description import MOST_CALLS, RecordedCall, name_call
from common.map.keras_attributes import is_composite, list_own_variables
from common.map.keras_classes import find_keras_class
from common.map.keras_layers import KNOWN_KINDS, RECURRENT_KINDS
from common.map.keras_paths import make_unique
from common.map.reshaped_features import find_reshaped_layers
from common.recording.flattened_axes import find_flattened
from tf_impl.keras_two import TENSORFLOW_MODULES
from tf_impl.layer_attributes import get_layer_kind
from tf_impl.nested_tensors import first_tensor, replace_first_tensor, to_array

LayerCall = Callable[..., object]  # keras.Layer.__call__, or a function that computes the same
VARIABLE_CLASS = next(kind for kind in keras.Variable.__mro__ if "value" in vars(kind))
DROPOUT_FUNCTIONS = (
    (keras.random, "dropout"),
    *((module.nn, "dropout") for module in TENSORFLOW_MODULES),
    (tf.nn.experimental, "stateless_dropout"),
)

# True within a ForwardTrace. A model must then call `apply_layer` outside of every tf.function: a tf.function that was
# traced before would not call it again.
is_tracing = False


class ForwardTrace:
    """A context manager around one forward pass of a model that records what the pass does.

    `replacements` can hold, for a layer, the calls of its counterpart in another model. The layer then computes on the
    counterpart's input, and the layers after it receive the counterpart's output. `calls` still records the layer's own
    input, from the layers before it, and its own output.

    Dropout functions drop nothing within the context.

    Attributes:
        entered: The layers by path, in the order in which the pass entered them. They include layers that the pass did
            not enter, but whose variables it read, such as the layer in a TimeDistributed.
        composites: The path of the attention or Bidirectional around a layer, by the path of the layer.
        unflattened_shapes: The shape of one example before it was flattened, by the path of the layer that receives it.
        reshaped_shapes: The shape of one example after the model divided the features that a linear layer returned into
            several axes, by the path of the linear layer. Layers in between have it in `unflattened_shapes`.
        calls: The first call of each layer, by path; for requested `paths` also the next calls, by the path with the
            number of the call. The recorded output of a layer with an activation is the input of the activation,
            because PyTorch's layers have no activation.
        counts: The number of calls of each layer, by path.
        noise: Layers that drop by calling functions instead of dropout layers, as "path (function)".
    """

    def __init__(
        self,
        model: keras.Layer,
        replacements: Mapping[str, RecordedCall] | None = None,
        paths: Collection[str] | None = None,
    ) -> None:
        """Prepare to trace a model.

        Args:
            model: The model.
            replacements: The calls of counterparts, by the path of the layer in this model, with the call's number.
            paths: The paths of the layers whose calls are recorded; None records all.
        """
        self.entered: dict[str, keras.Layer] = {}
        self.composites: dict[str, str] = {}
        self.unflattened_shapes: dict[str, tuple[int, ...]] = {}
        self.reshaped_shapes: dict[str, tuple[int, ...]] = {}
        self.calls: dict[str, RecordedCall] = {}
        self.counts: Counter[str] = Counter()
        self.noise: list[str] = []
        self._replacements, self._recorded = replacements or {}, paths
        self._paths: dict[int, str] = {id(model): "model"}
        self._stack: list[keras.Layer] = []  # the layers that the pass is in
        # The layers whose variables the pass read, and the number of layers entered before, by the layer's path.
        self._read: dict[str, tuple[keras.Layer, int]] = {}
        layers = _list_owners(model)
        # The class whose `__call__` all layers of a Keras share.
        self._layer_classes = {find_keras_class(layer, "Layer") for layer in layers}
        self._owners = {
            id(variable): layer
            for layer in layers
            for wrapper in list_own_variables(layer)
            for variable in (wrapper, wrapper.value)  # Keras 2's layers read the variable within
        }
        self._shapes: dict[tuple[int, ...], tuple[int, ...]] = {}  # merged axes by the shape [n, ...] with one for them
        self._undo: list[Callable[[], None]] = []  # functions that remove the hooks and patches of this trace

    def __enter__(self) -> "ForwardTrace":
        this_module = sys.modules[__name__]
        for kind in self._layer_classes:
            self._patch(kind, "__call__", self._wrap_call(kind.__call__))
        self._patch(VARIABLE_CLASS, "value", self._wrap_value(VARIABLE_CLASS.value))
        self._patch(BaseResourceVariable, "_read_variable_op", self._wrap_read(BaseResourceVariable._read_variable_op))
        self._patch(this_module, "apply_layer", self._apply_layer)
        self._patch(this_module, "is_tracing", True)
        reshape = self._wrap_reshape(tf.reshape)
        for module in TENSORFLOW_MODULES:
            self._patch(module, "reshape", reshape)
        for module, name in DROPOUT_FUNCTIONS:
            self._patch(module, name, self._make_dropout(name))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for undo in reversed(self._undo):
            undo()
        entered = list(self.entered.items())
        for path, (layer, position) in reversed(self._read.items()):
            if path not in self.entered:
                entered.insert(position, (path, layer))
        self.entered = dict(entered)

    def _patch(self, owner: object, name: str, replacement: object) -> None:
        """Replace an attribute until the context ends."""
        original = getattr(owner, name)
        setattr(owner, name, replacement)
        self._undo.append(lambda: setattr(owner, name, original))

    def _make_dropout(self, name: str) -> Callable[..., object]:
        """Return a dropout function that drops nothing and records which layer called it."""

        def drop(inputs: object, rate: float, *args: object, **kwargs: object) -> object:
            source = f"{self._find_path(self._stack[-1]) if self._stack else 'model'} ({name})"
            if rate > 0 and source not in self.noise:
                self.noise.append(source)
            return inputs

        return drop

    def _apply_layer(self, layer: keras.Layer, compute: Callable[[tf.Tensor], tf.Tensor], x: tf.Tensor) -> tf.Tensor:
        """Record `compute(x)` as a call of the layer."""
        return self._wrap_call(lambda _, x: compute(x))(layer, x)

    def _wrap_call(self, original: LayerCall) -> LayerCall:
        def call(layer: keras.Layer, *args: object, **kwargs: object) -> object:
            if any(get_layer_kind(outer) in RECURRENT_KINDS for outer in self._stack):
                return original(layer, *args, **kwargs)  # one time step of the recurrent layer
            path = self._find_path(layer)
            kwargs = order_arguments(layer.call, kwargs)
            received = first_tensor((args, kwargs))
            if path not in self.entered:
                self._record_entry(layer, path, received)
            call_path = name_call(path, self.counts[path])
            replacement = self._replacements.get(call_path)
            if replacement is not None:
                args, kwargs = replace_first_tensor((args, kwargs), _swap_order(layer, replacement.received))
            self._stack.append(layer)
            try:
                with _ActivationRecorder(layer, replacement.returned if replacement else None) as activation:
                    returned = original(layer, *args, **kwargs)
            finally:
                self._stack.pop()
            reshaped = first_tensor(returned) if getattr(layer, "symbol", None) == "reshape" else None
            if received is not None and reshaped is not None:  # Keras 2 makes a layer of tf.reshape
                self._record_reshape(received.shape, reshaped.shape)
            self.counts[path] += 1
            if self._is_recorded(path, call_path):
                computed = first_tensor(returned) if activation.received is None else activation.received
                self.calls[call_path] = RecordedCall(_swap_order(layer, to_array(received)), to_array(computed))
            if replacement is not None and activation.received is None:
                return replace_first_tensor(returned, replacement.returned)
            return returned

        return call

    def _is_recorded(self, path: str, call_path: str) -> bool:
        """Check whether a call is recorded: the first one if all layers are recorded, or else the first few."""
        if self._recorded is None:
            return call_path not in self.calls and call_path == path
        return path in self._recorded and self.counts[path] <= MOST_CALLS

    def _wrap_value(self, original: property) -> property:
        def read(variable: keras.Variable) -> object:
            self._record_read(self._owners.get(id(variable)))
            assert original.fget is not None
            return original.fget(variable)

        return property(read)

    def _wrap_read(self, original: Callable[..., tf.Tensor]) -> Callable[..., tf.Tensor]:
        def read(variable: tf.Variable, *args: object, **kwargs: object) -> tf.Tensor:
            self._record_read(self._owners.get(id(variable)))
            return original(variable, *args, **kwargs)

        return read

    def _record_read(self, layer: keras.Layer | None) -> None:
        """Record that the pass read a variable of a layer."""
        if layer is not None:
            self._read.setdefault(self._find_path(layer), (layer, len(self.entered)))

    def _record_entry(self, layer: keras.Layer, path: str, received: tf.Tensor | None) -> None:
        self.entered[path] = layer
        if self._stack and is_composite(self._stack[-1]):
            self.composites[path] = self._find_path(self._stack[-1])
        if received is not None and (shape := tuple(received.shape)) in self._shapes:
            self.unflattened_shapes[path] = self._shapes[shape]
            if get_layer_kind(layer) == "Dense":  # later inputs of this shape come from a Dense layer
                del self._shapes[shape]

    def _wrap_reshape(self, original: Callable[..., tf.Tensor]) -> Callable[..., tf.Tensor]:
        def reshape(tensor: tf.Tensor, shape: tf.Tensor | Sequence[int], name: str | None = None) -> tf.Tensor:
            returned = original(tensor, shape, name)
            before, after = tf.convert_to_tensor(tensor).shape, returned.shape
            # Such a layer reshapes its weights, not what another layer receives.
            in_known_layer = self._stack and get_layer_kind(self._stack[-1]) in KNOWN_KINDS
            if not in_known_layer:
                self._record_reshape(before, after)
            return returned

        return reshape

    def _record_reshape(self, before: tf.TensorShape, after: tf.TensorShape) -> None:
        """Record that the model flattened examples, or divided their features into several axes."""
        if not (before.is_fully_defined() and after.is_fully_defined()):
            return
        if len(before) > len(after) > 1 and (sizes := find_flattened(before, after)) is not None:
            self._shapes[tuple(after)] = sizes
        if len(after) >= 3 and len(before) == 2 and after[0] == before[0]:
            linear_paths = [path for path, layer in self.entered.items() if get_layer_kind(layer) == "Dense"]
            linear_path, later_paths = find_reshaped_layers(self.calls, linear_paths, tuple(before))
            if linear_path is not None:
                self.reshaped_shapes.setdefault(linear_path, tuple(after[1:]))
                self.unflattened_shapes |= dict.fromkeys(later_paths, tuple(after[1:]))

    def _find_path(self, layer: keras.Layer) -> str:
        """Return the unique path of a layer."""
        if id(layer) not in self._paths:
            path = getattr(layer, "path", None) or layer.name
            self._paths[id(layer)] = make_unique(path, self._paths.values())
        return self._paths[id(layer)]


def _list_owners(model: keras.Layer) -> list[keras.Layer]:
    """Return all layers of a model. Recurrent layers come last, so that they own the variables of their cells."""
    return sorted(model._flatten_layers(), key=lambda layer: hasattr(layer, "cell"))


def _swap_order(layer: keras.Layer, array: np.ndarray | None) -> np.ndarray | None:
    """Return an input of a layer in the order in which the layer reads it, as in PyTorch, or back in the given order.

    A recurrent layer with `go_backwards` reads from the last time step to the first.
    """
    is_reversed = get_layer_kind(layer) in RECURRENT_KINDS and getattr(layer, "go_backwards", False)
    return array[:, ::-1] if array is not None and is_reversed else array


class _ActivationRecorder:
    """A context manager around the call of a layer that records the input of the layer's activation."""

    def __init__(self, layer: keras.Layer, replacement: np.ndarray | None = None) -> None:
        """Prepare for a layer. replacement: the input of the activation, instead of the layer's own result."""
        self.received: tf.Tensor | None = None
        self._replacement = replacement
        self._attributes = vars(layer)
        self._activation: Callable[[tf.Tensor], tf.Tensor] | None = None
        if get_layer_kind(layer) in KNOWN_KINDS - RECURRENT_KINDS.keys():
            self._activation = self._attributes.get("activation")

    def __enter__(self) -> "_ActivationRecorder":
        if self._activation is not None:
            self._attributes["activation"] = self._record
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._activation is not None:
            self._attributes["activation"] = self._activation

    def _record(self, inputs: tf.Tensor) -> tf.Tensor:
        self.received = inputs
        assert self._activation is not None
        return self._activation(replace_first_tensor(inputs, self._replacement))


def apply_layer(layer: keras.Layer, compute: Callable[[tf.Tensor], tf.Tensor], x: tf.Tensor) -> tf.Tensor:
    """Apply a model's own function in place of a layer's call. A ForwardTrace patches this to record the layer."""
    return compute(x)
