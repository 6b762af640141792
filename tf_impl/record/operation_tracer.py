"""Tracer of the operations of the first micro-batch, from the first call of the model to the loss.

TensorFlow reports each operation that runs eagerly to a callback. This changes no number: the same kernels compute.
"""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import tensorflow as tf

from common.recording.operation_format import OperationTrace, Part
from common.recording.operation_observer import OperationObserver
from common.recording.record_format import LossFacts
from tf_impl.record.layer_observer import LayerObserver
from tf_impl.record.model_facts import Layer
from tf_impl.record.operation_facts import (
    IDENTITIES,
    KERAS_PACKAGES,
    describe_operation,
    has_parts,
    is_of_keras,
    is_whole,
    list_settings,
    measure,
    op_callbacks,
    select_names,
)
from tf_impl.record.patches import Patches
from tf_impl.record.tape_gradients import SourcesAndResults
from tf_impl.record.tensors import first_tensor, is_eager, name_tensors
from tf_impl.record.traced_layer import TracedLayer
from tf_impl.record.weight_numbers import WeightNumbers

PACKAGES = ("tensorflow", *KERAS_PACKAGES, "tf_impl.record", "numpy")
LOSSES_WITH_LOOPS = {"keras.losses.CTC", "keras.losses.ctc", "ctc"}
Call = Callable[..., Any]


class OperationTracer:
    """Lists operations between `start_call` and `finish`. A layer of Keras without parts is one operation.

    Attributes:
        trace: The operations; None until the loss is differentiated.
        failure: Why there are none; empty if nothing failed.
    """

    def __init__(self, name_variables: Callable[[], Mapping[str, Any]]) -> None:
        """Prepare to trace. name_variables: returns the variables of the model by name."""
        self.trace: OperationTrace | None = None
        self.failure = ""
        self._name_variables = name_variables
        self._thread: int | None = None  # the identity of the thread that is traced; None before the trace begins
        self._is_busy = False  # whether the tracer itself computes
        self._hidden = 0  # number of running calls whose operations are not listed
        self._caller = ""  # the path of the layer that called the layer whose operations are not listed
        self._forget()

    def _forget(self) -> None:
        self._observer = OperationObserver(measure, PACKAGES)
        self._weights = WeightNumbers(self._observer, self._name_variables)
        self._layers: list[LayerObserver] = []
        self._outputs: dict[int, Mapping[str, object]] = {}  # what the calls of the model returned
        self._assigned: list[object] = []  # handles of the variables that operations have assigned
        self._losses: tuple[object, object] = None, None  # a loss multiplied by a loss scale, and before that

    def replace_functions(self, patches: Patches, optimizer: object) -> None:
        """Replace the functions whose operations are not listed one by one, and those that scale a loss."""
        patches.wrap(tf.GradientTape, "gradient", self._differentiate)
        patches.wrap_methods(optimizer, ("scale_loss", "get_scaled_loss"), self._scale_loss)

    def start_call(self, layers: LayerObserver, number: int) -> None:
        """Begin to trace in this thread, unless the tracer has begun, and name what layers receive and return.

        Args:
            layers: The observer of the layers of a call of the model that begins.
            number: The number of the call.
        """
        if op_callbacks is None:
            self.failure = "this version of TensorFlow does not report them"
        if self._thread is None and self.trace is None and not self.failure:
            self._thread = threading.get_ident()
            op_callbacks.add_op_callback(self._take)
        if self._is_running:
            self._layers.append(layers)
            layers.name_tensor = lambda name, tensor: self._name_layer(f"{number}", name, tensor)

    def stop(self) -> None:
        """Stop tracing, and forget all tensors. Operations whose loss was not differentiated are lost."""
        self._remove_callback()
        self._thread, self._hidden = None, 0
        self._forget()

    def reset(self) -> None:
        """Forget what was traced."""
        self.stop()
        self.trace = None

    def name_call(self, number: int, inputs: Mapping[str, object], outputs: Mapping[str, object]) -> None:
        """Name what a call of the model received and returned. The last outputs of a call are those of the model."""
        self.name(f"{number}/input", inputs)
        self._outputs[number] = outputs

    def name(self, prefix: str, tensors: Mapping[str, object]) -> None:
        """Name tensors. prefix: begins with the number of the call of the model, or of a loss for labels."""
        if self._is_running:
            self._name(prefix, tensors)

    def name_other_labels(self, tensors: Mapping[str, object]) -> None:
        """Name labels that no loss received, after `finish` and before `stop`."""
        if self._thread is not None and self.trace is not None:
            self._name("batch/0/label", tensors)

    def call_layer(self, original: Call, layer: Layer, args: Sequence[object], kwargs: dict) -> object:
        """Call a layer, and list it as one operation if it is one of Keras that contains no others."""
        if not self._is_listing or not is_whole(layer) or not is_eager(first_tensor([args, kwargs])):
            return original(layer, *args, **kwargs)
        inputs, path = [*name_tensors([args, kwargs]).values()], self._find_path()
        self._caller = path
        self._number_weights(layer)  # before the layer assigns them

        def end(returned: object, has_activation: bool) -> None:
            weights = self._number_weights(layer)
            settings = list_settings(layer, has_activation)
            self._add(type(layer).__name__, settings, [*inputs, *weights], returned, path, parts)

        collect = self._observer.collect_parts() if has_parts(layer) else self._hide()
        with collect as parts, TracedLayer(layer, end, self._activate) as traced:
            returned = original(layer, *args, **kwargs)
        traced.end(returned)
        self._forget_assigned()
        return returned

    def call_loss(self, compute: Call, loss: object, facts: LossFacts, arguments: dict[str, object]) -> object:
        """Compute a loss. List it as one operation if it computes thousands of them in a loop over time.

        Args:
            compute: Computes the loss.
            loss: An object or a function of keras.losses.
            facts: Its description.
            arguments: All of its arguments by name.
        """
        if facts["name"] not in LOSSES_WITH_LOOPS or not is_of_keras(getattr(loss, "fn", loss)):
            return compute()
        return self._call(compute, facts["name"].rpartition(".")[2], facts["arguments"], arguments)

    def finish(self, target: object, calls: Sequence[int], losses: Sequence[int]) -> None:
        """End the trace: the tape has computed the gradients.

        Args:
            target: What the tape differentiated.
            calls: The numbers of the calls of the model on which the loss depends.
            losses: The numbers of the calls of losses on which it depends.
        """
        targets = tf.nest.flatten(target)
        scaled, loss = self._losses
        loss = loss if targets[0] is scaled else targets[0] if len(targets) == 1 else None

        def finish() -> None:
            trace = self._observer.finish(loss)
            trace["names"] = select_names(trace["names"], calls, losses)
            self.trace = trace

        if self._is_running:
            for call in calls:
                self._name(f"{call}/output", self._outputs.get(call, {}))
            self._guard(finish)
            self._remove_callback()

    def _activate(self, activation: Call, inputs: object) -> object:
        hidden, self._hidden = self._hidden, 0
        try:
            if not is_of_keras(activation):
                return activation(inputs)
            name = getattr(activation, "__name__", type(activation).__name__)
            return self._call(lambda: activation(inputs), name, {}, inputs)
        finally:
            self._hidden = hidden

    def _call(self, compute: Call, name: str, arguments: Mapping[str, object], inputs: object) -> object:
        """Call a function, and list it as one operation. inputs: the tensors that it receives, in nested containers."""
        if not self._is_listing:
            return compute()
        with self._hide():
            returned = compute()
        self._add(name, arguments, [*name_tensors(inputs).values()], returned, self._find_path())
        return returned

    def _differentiate(self, original: Call, tape: object, target: object, sources: object, **kwargs: object) -> object:
        """Compute gradients. Record an operation if a loss may use them, such as gradients by interpolated images."""
        with self._hide():
            returned: Any = original(tape, target, sources, **kwargs)
        if self._is_listing and all(isinstance(source, tf.Tensor) for source in tf.nest.flatten(sources)):
            received, gradients = sources, returned
            if isinstance(sources, SourcesAndResults):
                received, gradients = sources.sources, returned.sources
            self._add("gradient", {}, [*name_tensors([target, received]).values()], gradients, self._find_path())
        return returned

    def _scale_loss(self, original: Call, loss: object, *args: object, **kwargs: object) -> object:
        scaled = original(loss, *args, **kwargs)
        if self._is_running:
            self._losses = scaled, loss
        return scaled

    @property
    def _is_listing(self) -> bool:
        return self._is_running and not self._hidden

    @property
    def _is_running(self) -> bool:
        has_ended = self.trace is not None or bool(self.failure)
        return not (has_ended or self._is_busy) and threading.get_ident() == self._thread

    @contextlib.contextmanager
    def _hide(self) -> Iterator[tuple[()]]:
        """Do not list operations within this context. It has no parts."""
        is_running = self._is_running
        self._hidden += is_running
        try:
            yield ()
        finally:
            self._hidden -= is_running and self._hidden > 0

    def _name(self, prefix: str, tensors: Mapping[str, object]) -> None:
        for name, tensor in tensors.items():
            if is_eager(tensor):
                self._guard(functools.partial(self._observer.name_tensor, f"{prefix}/{name}", tensor))

    def _name_layer(self, prefix: str, name: str, tensor: object) -> None:
        """Name a tensor of a layer, unless the layer belongs to one that is a single operation."""
        if not self._hidden or self._find_path() == self._caller:
            self.name(prefix, {name: tensor})

    def _number_weights(self, layer: Layer) -> list[object]:
        handles: list[object] = []
        self._guard(lambda: handles.extend(self._weights.add_layer(layer)))
        return handles

    def _add(
        self, name: str, arguments: Mapping[str, object], inputs: Sequence[object], returned: object, path: str,
        parts: Sequence[Part] = (),
    ) -> None:  # fmt: skip
        """Add an operation, unless it built a layer or returned what it received, such as a dropout that is off."""
        outputs, known = [*name_tensors(returned).values()], {id(tensor) for tensor in inputs}
        if all(map(is_eager, [*inputs, *outputs])) and any(id(tensor) not in known for tensor in outputs):
            self._guard(lambda: self._observer.add(name, arguments, inputs, outputs, path, parts))

    def _guard(self, function: Callable[[], object]) -> None:
        """Call a function of the tracer, whose own operations are not listed. Its errors end the trace."""
        if self._is_busy or self.failure:
            return
        self._is_busy = True
        try:
            function()
        except Exception as error:
            self.failure = f"{type(error).__name__}: {error}".splitlines()[0]
        finally:
            self._is_busy = False

    def _remove_callback(self) -> None:
        if self._thread is not None:
            with contextlib.suppress(KeyError):  # it is removed already
                op_callbacks.remove_op_callback(self._take)

    def _take(self, op_type: Any, inputs: Any, attrs: Any, outputs: Any, *_: object, **kwargs: Any) -> None:  # noqa: ANN401
        """Receive an operation that has ended from TensorFlow. One of a function that is traced has a graph."""
        if self._is_running and kwargs.get("graph") is None:
            name = op_type.decode() if isinstance(op_type, bytes) else str(op_type)
            values = dict(zip(attrs[::2], attrs[1::2])) if attrs else {}  # noqa: B905
            self._guard(lambda: self._take_operation(name, inputs, values, outputs))

    def _take_operation(
        self, name: str, inputs: Sequence[Any], attributes: Mapping[str, Any], outputs: Sequence[Any]
    ) -> None:
        handles = [tensor for tensor in inputs if tensor.dtype == tf.resource]
        self._assigned += [] if outputs else handles  # such as an assignment
        for handle in handles if outputs and "dtype" in attributes else ():
            self._weights.add(handle, attributes["dtype"], outputs[0] if name == "ReadVariableOp" else None)
        if self._layers:
            self._layers[-1].add_operation(name, inputs, outputs)
        if name in IDENTITIES or (name == "Cast" and inputs[0].dtype == outputs[0].dtype):
            for output, received in zip(outputs, inputs):  # noqa: B905
                self._observer.share_number(output, received)
        elif outputs and not self._hidden and (described := describe_operation(name, inputs, attributes)) is not None:
            self._observer.add(name, *described, outputs, self._find_path())
        if not self._hidden:
            self._forget_assigned()

    def _forget_assigned(self) -> None:
        """Forget the numbers of assigned variables. A layer that assigns its own has received the earlier values."""
        self._weights.forget(self._assigned)
        self._assigned = []

    def _find_path(self) -> str:
        return next((layers.path for layers in self._layers if layers.is_within_layer), "")
