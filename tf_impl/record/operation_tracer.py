"""Tracer of the operations of the first micro-batch, from the first call of the model to the loss.

TensorFlow reports each operation that runs eagerly to a callback. This changes no number: the same kernels compute.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import FunctionType
from typing import Any

import tensorflow as tf

from common.recording.operation_format import OperationTrace
from common.recording.operation_observer import OperationObserver
from common.recording.record_format import LossFacts, name_call
from tf_impl.record.layer_observer import ACTIVATED_KINDS, LayerObserver
from tf_impl.record.model_facts import Layer, get_kind
from tf_impl.record.operation_facts import (
    IDENTITIES,
    KERAS_PACKAGES,
    describe_operation,
    is_of_keras,
    is_whole,
    list_settings,
    measure,
)
from tf_impl.record.tensors import first_tensor, name_tensors

try:
    from tensorflow.python.framework import op_callbacks
    from tensorflow.python.ops import gen_resource_variable_ops
except ImportError:  # a later version of TensorFlow
    op_callbacks = None

PACKAGES = ("tensorflow", *KERAS_PACKAGES, "tf_impl.record", "numpy")
NO_CALLBACKS = "this version of TensorFlow does not report them"
Call = Callable[..., Any]


class OperationTracer:
    """Lists operations between `start` and `finish`. A layer of Keras that contains no others is one operation.

    Attributes:
        trace: The operations; None until the loss is differentiated.
        failure: Why there are none; empty if nothing failed.
    """

    def __init__(self, name_weights: Callable[[], Mapping[str, Any]]) -> None:
        """Prepare to trace. name_weights: returns the variables of the model by name."""
        self.trace: OperationTrace | None = None
        self.failure = ""
        self._name_weights = name_weights
        self._observer: OperationObserver | None = None
        self._thread = 0
        self._is_busy = False  # whether the tracer itself computes
        self._hidden = 0  # number of running calls whose operations are not listed
        self._layers: list[LayerObserver] = []
        self._variables: dict[int, object] = {}  # handles of the variables whose values have numbers, by identity
        self._changed: list[object] = []  # handles of the variables that the running layer has assigned
        self._names: dict[int, str | None] = {}  # names of variables by the identity of their handles
        self._losses: tuple[object, object] = None, None  # a loss multiplied by a loss scale, and before that

    def start(self) -> None:
        """Begin to trace in this thread, unless the tracer runs or has finished."""
        if self._observer is not None or self.trace is not None or self.failure:
            return
        if op_callbacks is None:
            self.failure = NO_CALLBACKS
            return
        self._observer, self._thread = OperationObserver(measure, PACKAGES), threading.get_ident()
        op_callbacks.add_op_callback(self._take)

    def stop(self) -> None:
        """Stop tracing, and forget all tensors. Operations whose loss was not differentiated are lost."""
        self._remove_callback()
        self._observer, self._losses, self._hidden = None, (None, None), 0
        self._layers.clear()
        self._names.clear()

    def reset(self) -> None:
        """Forget what was traced."""
        self.stop()
        self.trace = None

    @property
    def is_tracing(self) -> bool:
        """Return whether the operations of this thread are listed now."""
        return self._is_running and not self._hidden

    @property
    def _is_running(self) -> bool:
        is_waiting = self._observer is None or self.trace is not None or self._is_busy or bool(self.failure)
        return not is_waiting and threading.get_ident() == self._thread

    @contextlib.contextmanager
    def hide(self) -> Iterator[None]:
        """Return a context whose operations are not listed."""
        is_here = self._is_running
        self._hidden += is_here
        try:
            yield
        finally:
            self._hidden -= is_here and self._hidden > 0

    def observe_layers(self, layers: LayerObserver, call: int) -> None:
        """Name what the layers of a call of the model receive and return. call: its number."""
        if self._is_running:
            self._layers.append(layers)
            layers.name_tensor = lambda name, tensor: self.name({f"{call}/{name}": tensor})

    def name(self, tensors: Mapping[str, object]) -> None:
        """Give tensors their names, which begin with the number of the call of the model or of the loss."""
        if self._is_running:
            self._name(tensors)

    def name_labels(self, tensors: Mapping[str, object]) -> None:
        """Name labels that no loss received, after the trace has finished."""
        if self.trace is not None:
            self._name({f"batch/0/label/{name}": tensor for name, tensor in tensors.items()})

    def _name(self, tensors: Mapping[str, object]) -> None:
        def name_all(observer: OperationObserver) -> None:
            for name, tensor in tensors.items():
                observer.name_tensor(name, tensor)

        self._guard(name_all)

    def call_layer(self, original: Call, layer: Layer, args: Sequence[object], kwargs: dict) -> object:
        """Call a layer, and list it as one operation if it is one of Keras that contains no others."""
        received = first_tensor([args, kwargs]) if self.is_tracing and is_whole(layer) else None
        if not hasattr(received, "numpy"):
            return original(layer, *args, **kwargs)
        self._guard(lambda _: self._number_weights(layer))
        call = _LayerCall(self, layer, [*name_tensors([args, kwargs]).values()], self._find_path())
        try:
            with self.hide():
                returned = original(layer, *args, **kwargs)
        finally:
            call.restore()
        if not call.has_ended:
            call.end(returned, has_activation=True)
        self._forget(self._changed)
        self._changed.clear()
        return returned

    def call_function(
        self, compute: Callable[[], object], name: str, arguments: Mapping[str, object], inputs: object
    ) -> object:
        """Call a function, and list it as one operation.

        Args:
            compute: Calls it.
            name: Its name.
            arguments: Its plain arguments by name.
            inputs: The tensors that it receives, in nested containers.
        """
        if not self.is_tracing:
            return compute()
        with self.hide():
            returned = compute()
        self.add(name, arguments, [*name_tensors(inputs).values()], returned, self._find_path())
        return returned

    def call_loss(self, compute: Call, loss: object, facts: LossFacts, arguments: dict[str, object]) -> object:
        """Compute a loss, and list it as one operation if it is one of Keras.

        Args:
            compute: Computes the loss.
            loss: An object or a function of keras.losses, or an object that calls a function of the script.
            facts: Its description.
            arguments: All of its arguments by name.
        """
        owners = (loss if isinstance(loss, FunctionType) else type(loss), getattr(loss, "fn", None))
        if not all(owner is None or is_of_keras(owner) for owner in owners):
            return compute()
        return self.call_function(compute, facts["name"].rpartition(".")[2], facts["arguments"], arguments)

    def scale_loss(self, original: Call, loss: object, *args: object, **kwargs: object) -> object:
        """Multiply a loss by the factor of a loss scale, and remember the loss."""
        scaled = original(loss, *args, **kwargs)
        if self._is_running:
            self._losses = scaled, loss
        return scaled

    def add_gradient(self, arguments: Mapping[str, object], gradients: object) -> None:
        """Add gradients that the loss may use, such as those of a penalty. arguments: those of `tape.gradient`."""
        if self.is_tracing:
            inputs = [*name_tensors([arguments["target"], arguments["sources"]]).values()]
            self.add("gradient", {}, inputs, gradients, self._find_path())

    def finish(self, target: object, calls: Sequence[int], losses: Sequence[int]) -> None:
        """End the trace: the tape has computed the gradients.

        Args:
            target: What the tape differentiated.
            calls: The numbers of the calls of the model on which the loss depends.
            losses: The numbers of the calls of losses on which it depends.
        """
        targets = tf.nest.flatten(target)
        if self._is_running:
            scaled, loss = self._losses
            loss = loss if targets[0] is scaled else targets[0] if len(targets) == 1 else None
            self._guard(lambda observer: self._finish(observer.finish(loss), calls, losses))
        self._remove_callback()

    def _finish(self, trace: OperationTrace, calls: Sequence[int], losses: Sequence[int]) -> None:
        names: dict[str, int] = {}
        for name, number in trace["names"].items():
            first, _, rest = name.partition("/")
            kind, _, leaf = rest.partition("/")
            if first == "weight":
                names[name] = number
            elif kind == "layer" and calls[:1] == [int(first)]:
                names[rest] = number
            elif kind == "label" and int(first) in losses:
                position = [*losses].index(int(first))
                names[f"batch/0/label/{leaf}{f'.{position}' if position else ''}"] = number
            elif kind in ("input", "output") and int(first) in calls:
                leaf = leaf.partition("/")[2]  # without the number of the part: the last one returns the outputs
                names[f"{name_call(0, [*calls].index(int(first)))}/{kind}/{leaf}"] = number
        trace["names"] = names
        self.trace = trace

    def add(
        self, name: str, arguments: Mapping[str, object], inputs: Sequence[object], returned: object, path: str
    ) -> None:
        """Add an operation, unless it returned what it received, such as a dropout that is off.

        Args:
            name: The name of the function or the kind of the layer.
            arguments: Its plain arguments.
            inputs: The tensors that it received.
            returned: The tensors that it returned, in nested containers.
            path: The path of the layer whose code called it.
        """
        outputs, known = [*name_tensors(returned).values()], {id(tensor) for tensor in inputs}
        if any(id(tensor) not in known for tensor in outputs):
            self._guard(lambda observer: observer.add(name, arguments, inputs, outputs, path))

    def list_weights(self, layer: Layer) -> list[object]:
        """Return the handles of the variables of a layer, whose values have numbers then."""
        handles: list[object] = []
        self._guard(lambda _: handles.extend(self._number_weights(layer)))
        return handles

    @contextlib.contextmanager
    def show(self) -> Iterator[None]:
        """Return a context whose operations are listed, within `hide`."""
        hidden, self._hidden = self._hidden, 0
        try:
            yield
        finally:
            self._hidden = hidden

    def _guard(self, function: Callable[[OperationObserver], object]) -> None:
        """Call a function of the tracer, whose own operations are not listed. Its errors end the trace."""
        if self._observer is None or self._is_busy or self.failure:
            return
        self._is_busy = True
        try:
            function(self._observer)
        except Exception as error:
            self.failure = f"{type(error).__name__}: {error}".splitlines()[0]
        finally:
            self._is_busy = False

    def _remove_callback(self) -> None:
        if op_callbacks is not None and self._observer is not None:
            with contextlib.suppress(KeyError):  # it is removed already
                op_callbacks.remove_op_callback(self._take)
        self._variables.clear()
        self._changed.clear()

    def _take(self, op_type: Any, inputs: Any, attrs: Any, outputs: Any, *_: object, **kwargs: Any) -> None:  # noqa: ANN401
        """Receive an operation that has ended from TensorFlow. One of a function that is traced has a graph."""
        if self._is_running and kwargs.get("graph") is None:
            name = op_type.decode() if isinstance(op_type, bytes) else str(op_type)
            self._guard(lambda _: self._take_operation(name, inputs, attrs or (), outputs))

    def _take_operation(self, name: str, inputs: Sequence[Any], attrs: Sequence[Any], outputs: Sequence[Any]) -> None:
        assert self._observer is not None
        values = dict(zip(attrs[::2], attrs[1::2]))  # noqa: B905
        handles = [x for x in inputs if x.dtype == tf.resource]
        if name == "ReadVariableOp":
            self._number_weight(inputs[0], values["dtype"], outputs[0])
            self._observer.share_number(outputs[0], inputs[0])
        elif not outputs:  # such as an assignment
            if self._hidden:
                self._changed += handles
            else:
                self._forget(handles)
        elif name in IDENTITIES or (name == "Cast" and inputs[0].dtype == outputs[0].dtype):
            for output, received in zip(outputs, inputs):  # noqa: B905
                self._observer.share_number(output, received)
        elif not self._hidden and (described := describe_operation(name, inputs, values)) is not None:
            for handle in handles if "dtype" in values else ():
                self._number_weight(handle, values["dtype"])
            self._observer.add(name, described[0], described[1], outputs, self._find_path())

    def _find_path(self) -> str:
        return next((layers.path for layers in self._layers if layers.is_within_layer), "")

    def _forget(self, handles: Sequence[object]) -> None:
        """Forget the numbers of variables that have changed."""
        for handle in handles:
            self._variables.pop(id(handle), None)

    def _number_weights(self, layer: Layer) -> list[object]:
        handles = []
        for variable in layer.weights:
            if "seed_generator_state" not in variable.name:
                handle = _get_handle(variable)
                self._number_weight(handle, variable.dtype)
                handles.append(handle)
        return handles

    def _number_weight(self, handle: Any, dtype: Any, value: object = None) -> None:  # noqa: ANN401
        """Give a variable the number of its value, unless it has one.

        Args:
            handle: The handle of the variable.
            dtype: Its type.
            value: The value; None if it is still to be read.
        """
        assert self._observer is not None
        if id(handle) in self._variables:
            return
        if value is None:
            value = gen_resource_variable_ops.read_variable_op(handle, tf.as_dtype(dtype))
        self._observer.share_number(handle, value)
        self._variables[id(handle)] = handle
        if id(handle) not in self._names:
            self._names[id(handle)] = None
            self._names.update({id(_get_handle(x)): name for name, x in self._name_weights().items()})
        name = self._names[id(handle)]
        if name is not None:
            self._observer.name_tensor(f"weight/{name}", handle)


def _get_handle(variable: Any) -> Any:  # noqa: ANN401  a tf.Variable or a keras.Variable
    return getattr(variable, "_value", variable).handle


class _LayerCall:
    """A call of a layer of Keras. It ends where the activation begins, if the layer has one."""

    def __init__(self, tracer: OperationTracer, layer: Layer, inputs: Sequence[object], path: str) -> None:
        self.has_ended = False
        self._tracer, self._layer, self._inputs, self._path = tracer, layer, inputs, path
        self._attributes: dict[str, Any] = layer.__dict__
        self._activation: Any = self._attributes.get("activation") if get_kind(layer) in ACTIVATED_KINDS else None
        if self._activation is not None:
            self._attributes["activation"] = self

    def restore(self) -> None:
        """Give the layer its activation back."""
        if self._activation is not None:
            self._attributes["activation"] = self._activation

    def end(self, returned: object, has_activation: bool) -> None:
        """Add the layer. has_activation: whether it includes its activation."""
        self.has_ended = True
        inputs = [*self._inputs, *self._tracer.list_weights(self._layer)]
        settings = list_settings(self._layer, has_activation)
        self._tracer.add(type(self._layer).__name__, settings, inputs, returned, self._path)

    def __call__(self, inputs: tf.Tensor) -> tf.Tensor:
        """Call the activation, another operation."""
        assert self._activation is not None
        if self.has_ended or not hasattr(inputs, "numpy"):
            return self._activation(inputs)
        self.end(inputs, has_activation=False)
        with self._tracer.show():
            if not is_of_keras(self._activation):
                return self._activation(inputs)
            name = getattr(self._activation, "__name__", type(self._activation).__name__)
            return self._tracer.call_function(lambda: self._activation(inputs), name, {}, inputs)

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401
        """Return an attribute of the activation, such as its name."""
        return getattr(self.__dict__["_activation"], name)
