"""Observer of a step that is computed eagerly: functions of Keras and TensorFlow report what the script computes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from common.recording.record_format import LossFacts
from tf_impl.record.environment import find_replica
from tf_impl.record.implied_gradients import ImpliedGradients
from tf_impl.record.layer_observer import LayerObserver
from tf_impl.record.loss_facts import join_losses
from tf_impl.record.loss_observer import LossObserver
from tf_impl.record.model_facts import Layer, find_keras, find_layer_class, is_part, name_variables
from tf_impl.record.operation_tracer import OperationTracer
from tf_impl.record.optimizer_facts import Optimizer, unwrap_optimizer
from tf_impl.record.patches import Patches
from tf_impl.record.rehearsal import refuse_parts
from tf_impl.record.step import LossCall, MicroBatch, ModelCall, Step, take_shares
from tf_impl.record.tape_gradients import TapeGradients, differentiate_results
from tf_impl.record.tensors import Copies, list_results, name_tensors, to_array

Call = Callable[..., Any]


class StepObserver:
    """Observes the model, the tape, the loss and the optimizer between `start` and `stop`.

    Attributes:
        step: The step that receives what is observed.
        convert_input: Returns the recorded input of a layer's counterpart; None if no record is followed.
        is_rehearsal: Whether the step is rehearsed, in which the optimizer does not update.
        has_later_losses: Whether the optimizer updates even then, because other models are recorded, whose losses may
            depend on the updated weights. The rehearsal undoes the update.
        omitted: The types of the tensors that a record cannot hold, by name.
        implied: The gradients that a rehearsal does not compute.
        operations: Lists the operations of the first micro-batch.
    """

    def __init__(
        self,
        model: Layer,
        optimizer: Optimizer,
        before_update: Callable[[], None],
        guard: Callable[..., Any],
        before_call: Callable[[Callable[[], object]], None],
    ) -> None:
        """Prepare to observe.

        Args:
            model: The model.
            optimizer: The optimizer.
            before_update: Called without arguments before the optimizer receives gradients.
            guard: Calls a function with the given arguments. Its errors do not reach the training.
            before_call: Called before an eager step computes a forward pass, with a function that computes this pass.
        """
        self.step: Step | None = None
        self.convert_input: Callable[..., np.ndarray | None] | None = None
        self._before_update, self._guard, self._before_call = before_update, guard, before_call
        self.is_rehearsal = self.has_later_losses = False
        self.omitted: dict[str, str] = {}
        self.implied = ImpliedGradients()
        self.operations = OperationTracer(lambda: name_variables(model))
        self._model, self._optimizer = model, optimizer
        self._patches = Patches()
        self._tensors: list[tf.Tensor] = []  # the tensors that the model received or returned
        self._copies = Copies(0)
        self._first_layers: LayerObserver | None = None  # of the first forward pass
        self._used_layers: LayerObserver | None = None  # of the first one on which the loss depends
        self._observed_call: ModelCall | None = None  # the forward pass that runs, if its layers are observed
        self._depths: dict[int, int] = {}  # number of calls of the model that each replica is in
        self._updating: set[int] = set()  # replicas in which the optimizer updates
        self._losses: dict[int, LossFacts] = {}  # by the identity of the loss object
        self.gradients = TapeGradients(model, optimizer)

    def start(self, copies: Copies) -> None:
        """Begin to observe. copies: keeps the copies of the tensors of this step."""
        self._copies = copies
        layer_class, losses = find_layer_class(self._model), find_keras(self._model).losses
        self._patches.wrap(layer_class, "__call__", self._call_layer)
        self._patches.wrap(tf, "reshape", self._reshape)
        self._patches.wrap(tf, "clip_by_global_norm", self._clip)
        self._patches.wrap(tf.GradientTape, "__enter__", self.implied.enter_tape)
        self._patches.wrap(tf.GradientTape, "__exit__", self.implied.leave_tape)
        self.operations.replace_functions(self._patches, self._optimizer)
        self._patches.wrap(tf.GradientTape, "gradient", self._differentiate)
        LossObserver(self._see, self._take_loss, self.operations.call_loss).replace_functions(self._patches, losses)
        self._patches.wrap_methods(self._optimizer, ("apply", "apply_gradients"), self._apply)

    def stop(self) -> None:
        """Stop observing."""
        self._patches.restore()
        self.operations.stop()
        self._tensors.clear()
        self.implied.forget()
        self.gradients.clear()
        self._copies.forget()
        self.omitted.update({name: x for name, x in self._copies.omitted.items() if not name.startswith("layer/")})

    def add_batch(self, batch: object) -> None:
        """Record the arrays of the script's batch that neither its model nor its losses received."""
        assert self.step is not None
        tensors = name_tensors(batch)
        self.operations.name_other_labels({name: tensors[name] for name in self.step.add_others(tensors)})

    def end_step(self) -> None:
        """Forget the arrays of a step that is written, or that the end of the record leaves out."""
        self.step = None
        if self.layers is not None:
            self.layers.arrays = {}

    def forget(self, copies: Copies) -> None:
        """Forget what was observed in this step. copies: keeps the copies of the tensors from now on."""
        self._first_layers = self._used_layers = None
        self._copies = copies
        self._tensors.clear()
        self.gradients.clear()
        self._losses.clear()
        self.operations.reset()
        if self.step is not None:
            self.step = Step(self.step.number, self.step.rate, self.step.loss_scale, self.step.momentums)

    @property
    def layers(self) -> LayerObserver | None:
        """The layers of the first forward pass on which the loss depends, as far as that is known; None before it."""
        return self._used_layers or self._first_layers

    @property
    def _omits_gradients(self) -> bool:
        return self.is_rehearsal and self.implied.is_allowed and not self.has_later_losses and bool(self.implied.names)

    @property
    def is_within_layer(self) -> bool:
        """Return whether the model computes now."""
        return any(self._depths.values())

    @property
    def loss(self) -> LossFacts | None:
        """The loss function, or all of them; None if none was seen."""
        return join_losses(list(self._losses.values()))

    def _see(self, function: Callable[[], None]) -> None:
        """Call a function of the observer. Its errors end a rehearsal, but must not reach a real step."""
        if self.is_rehearsal:
            function()
        else:
            self._guard(function)

    def _find_open_batch(self) -> MicroBatch | None:
        return None if self.step is None else self.step.find_open_batch(find_replica())

    def _call_layer(self, original: Call, layer: Layer, *args: object, **kwargs: object) -> object:
        replica = find_replica()
        if not self._depths.get(replica) and (layer is self._model or is_part(layer, self._model)):
            if not self.is_rehearsal:
                self._before_call(refuse_parts if layer is not self._model else lambda: layer(*args, **kwargs))
            self._depths[replica] = 1
            try:
                return self._call_model(original, layer, args, kwargs)
            finally:
                self._depths[replica] = 0
        if replica == 0 and (observer := self._running_layers) is not None:
            original = observer.wrap(original)
        return self.operations.call_layer(original, layer, args, kwargs)

    @property
    def _running_layers(self) -> LayerObserver | None:
        """Return the observer of the layers of the forward pass that runs; None if none runs or is observed."""
        observer = self._observed_call.layers if self._observed_call is not None else None
        return observer if observer is not None and observer.is_within_layer else None

    def _call_model(self, original: Call, layer: Layer, args: tuple, kwargs: dict) -> object:
        """Call the model, or a layer that the script calls instead of the model."""
        batch = MicroBatch() if self.step is None else self.step.open_batch(find_replica())  # None: the record ended
        is_model = layer is self._model
        if is_model or not batch.calls or not batch.calls[-1].parts:
            batch.calls.append(ModelCall({}))
            if find_replica() == 0 and self._used_layers is None:
                self._observe_layers(batch)
        call = batch.calls[-1]
        is_first_layer = not call.results
        call.parts += [] if is_model else [layer.name]
        call.is_trained |= is_model or bool(layer.trainable_variables)
        if call.layers is not None and find_replica() == 0:
            self._observed_call = call
            returned = self.operations.call_layer(call.layers.wrap(original), layer, args, kwargs)
        else:
            returned = self.implied.call(lambda: original(layer, *args, **kwargs), self._omits_gradients)
        number = batch.calls.index(call)
        self._see(lambda: self._take_call(call, number, {**dict(enumerate(args)), **kwargs}, returned, is_first_layer))
        return returned

    def _observe_layers(self, batch: MicroBatch) -> None:
        """Observe the layers of the last call of a micro-batch: it may be the first one on which the loss depends."""
        observer = batch.calls[-1].layers = LayerObserver(self._model, self._copies, self._see)
        observer.convert_input = self.convert_input if self.is_rehearsal else None
        if self.step is not None and self.step.number == 1:
            self.operations.start_call(observer, len(batch.calls) - 1)
        if self._first_layers is None:
            self._first_layers, batch.layers = observer, observer.arrays

    def _take_call(self, call: ModelCall, number: int, arguments: dict, returned: object, is_first_layer: bool) -> None:
        received, outputs = name_tensors(arguments), name_tensors(returned)
        self._tensors += [*received.values(), *outputs.values()]
        if is_first_layer:
            call.inputs = self._copies.copy(received)
        self.operations.name_call(number, received if is_first_layer else {}, outputs)
        call.outputs = self._copies.copy(outputs)  # the last layer that the script calls returns the outputs
        call.results += list_results(returned)

    def _reshape(self, original: Call, *args: object, **kwargs: object) -> object:
        if find_replica() == 0 and (observer := self._running_layers) is not None:
            return observer.reshape(original, args, kwargs)
        return original(*args, **kwargs)

    def _clip(self, original: Call, t_list: list[object], clip_norm: object, *args: object, **kwargs: object) -> object:
        returned = original(t_list, clip_norm, *args, **kwargs)
        self._see(lambda: self.gradients.take_clipped(self.step, returned[0], t_list, clip_norm))
        return returned

    def _take_loss(self, loss: object, facts: LossFacts, arguments: dict[str, object], result: object) -> None:
        tensors = name_tensors(arguments)
        if (batch := self._find_open_batch()) is not None:  # a script may call a loss afterwards to log its value
            self.operations.name(f"{len(batch.loss_calls)}/label", tensors)
            batch.loss_calls.append(LossCall(loss, facts, self._copies.copy(tensors), list_results(result)))

    def _differentiate(self, original: Call, tape: object, *args: object, **kwargs: Any) -> object:  # noqa: ANN401
        arguments = {**dict(zip(("target", "sources", "output_gradients", "unconnected_gradients"), args)), **kwargs}  # noqa: B905
        calls: list[ModelCall | LossCall] = []
        self._see(lambda: calls.extend(self._list_calls(arguments["sources"])))
        if not calls:
            batch = self._find_open_batch()
            gradients = differentiate_results(original, tape, arguments, [] if batch is None else batch.calls)
            self._see(lambda: self._take_gradients(arguments["target"], arguments["sources"], gradients, []))
            return gradients
        # The loss has no gradient by the results of calls on which it does not depend
        sources = [arguments["sources"], [call.results for call in calls]]
        gradients, of_results = original(tape, **{**arguments, "sources": sources})
        if self._omits_gradients and self.step is not None:
            self.step.implied = self.implied.names
            gradients = self.gradients.replace(gradients, arguments["sources"], self.implied.names)
        unused = [call for call, of_call in zip(calls, of_results) if all(x is None for x in of_call)]  # noqa: B905
        self._see(lambda: take_shares(calls, of_results, self.step))
        self._see(lambda: self._take_gradients(arguments["target"], arguments["sources"], gradients, unused))
        return gradients

    def _list_calls(self, sources: object) -> list[ModelCall | LossCall]:
        """Return the calls of this micro-batch if the tape differentiates by variables of the model."""
        batch = self._find_open_batch()
        is_used = batch is not None and self.gradients.has_variables(sources)
        return [*batch.calls, *batch.loss_calls] if batch is not None and is_used else []

    def _take_gradients(
        self, target: object, sources: object, gradients: object, unused: list[ModelCall | LossCall]
    ) -> None:
        if self.step is None:
            return
        pairs = zip(tf.nest.flatten(gradients), tf.nest.flatten(sources))  # noqa: B905
        if named := self.gradients.name(pairs, self.step.loss_scale):
            loss = float(sum(to_array(x).sum() for x in tf.nest.flatten(target))) / (self.step.loss_scale or 1.0)
            self._select_calls(self.step.take_gradients(find_replica(), loss, named), target, unused)
        elif not self.gradients.has_variables(sources):
            self.gradients.take_foreign(tf.nest.flatten(gradients))

    def _select_calls(self, batch: MicroBatch, target: object, unused: list[ModelCall | LossCall]) -> None:
        """Keep the calls of the model and of losses on which the loss of a micro-batch depends, if any are known."""
        calls, loss_calls = [*batch.calls], [*batch.loss_calls]
        batch.select_calls(unused)
        self.operations.finish(target, [*map(calls.index, batch.calls)], [*map(loss_calls.index, batch.loss_calls)])
        for loss_call in batch.loss_calls:
            # A script may create loss objects in each step: the objects of the first micro-batch describe the loss
            if not self._losses or (self.step.number == 1 and batch is self.step.micro_batches[0]):  # type: ignore[union-attr]
                self._losses.setdefault(id(loss_call.function), loss_call.facts)
        if batch.calls and batch.calls[0].layers is not None and self._used_layers is None:
            self._first_layers = self._used_layers = batch.calls[0].layers
            batch.layers = self._used_layers.arrays
        batch.forget_tensors()

    def _apply(self, original: Call, *args: Any, **kwargs: Any) -> object:  # noqa: ANN401  arguments of Keras
        if find_replica() in self._updating:
            return original(*args, **kwargs)
        args = tuple(list(value) if hasattr(value, "__next__") else value for value in args)  # scripts pass a zip
        kwargs = {name: list(value) if hasattr(value, "__next__") else value for name, value in kwargs.items()}
        self._see(lambda: self._take_update(self.gradients.pair(original.__name__, args, kwargs)))
        if self.is_rehearsal and not self.has_later_losses:
            return unwrap_optimizer(self._optimizer).iterations
        if not self.is_rehearsal:
            self._before_update()
        self._updating.add(find_replica())  # Keras's apply_gradients calls apply
        try:
            return original(*args, **kwargs)
        finally:
            self._updating.discard(find_replica())

    def _take_update(self, pairs: list[tuple[object, object]]) -> None:
        assert self.step is not None
        self.gradients.take_update(self.step, find_replica(), pairs)
