"""Forward passes of a model that a training script calls: their inputs and outputs, and the arrays of layers."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch.nn.modules.loss import _Loss

from common.recording.record_format import ROOT, LayerFacts, name_call
from torch_impl.record.arrays import first_tensor, list_references, name_arguments, name_tensors
from torch_impl.record.copies import Copies
from torch_impl.record.direct_calls import observe_direct_calls
from torch_impl.record.draws import RandomDraws
from torch_impl.record.environment import read_layer_autocast
from torch_impl.record.flattened_inputs import find_unflattened_shape
from torch_impl.record.forward_pass import ModelCall
from torch_impl.record.graph import Mark, find_sources, list_marks, mark_nodes, mark_source, split_used
from torch_impl.record.model_facts import (
    describe_layer,
    has_variables,
    is_loss_function,
    name_layers,
    name_variables,
)
from torch_impl.record.operation_tracer import OperationMode
from torch_impl.record.patches import Patches

if TYPE_CHECKING:  # Python 3.9 cannot compute the union
    # (facts, layer, args, kwargs, returned) -> the layer's output for the recorded input of its counterpart, or None
    FollowLayer = Callable[
        [LayerFacts, torch.nn.Module, tuple[Any, ...], Mapping[str, Any], object], torch.Tensor | None
    ]
Guard = Callable[[Callable[..., object]], Callable[..., Any]]


class CallObserver:
    """Observes the forward passes of a model through hooks.

    Attributes:
        pending: The calls for which no backward pass was seen yet, as long as the script keeps their graph.
        is_paused: Whether a backward pass runs, which calls checkpointed layers again. These calls are ignored.
        records_layers: Whether the next calls record the arrays of layers.
        needs_gradients: Whether calls of the frozen model are ignored, as those without gradients are.
        copies: The copies of inputs, outputs and layers, and the limit of their bytes.
        autocast: The type to which autocast rounds within the model; None: off.
        draws: The layers of the first micro-batch that draw random numbers.
        follow_layer: Computes a layer on the recorded input of its counterpart; None if no record is followed.
        operations: Observes the operations of the first micro-batch.
    """

    def __init__(
        self, model: torch.nn.Module, on_start: Callable[[], None], copies: Copies, operations: OperationMode
    ) -> None:
        """Prepare to observe an unwrapped model. on_start: called before each forward pass."""
        self.pending: list[ModelCall] = []
        self.is_paused = False
        self.records_layers = self.needs_gradients = True
        self.copies = copies
        self.autocast: object = None
        self.draws = RandomDraws()
        self.follow_layer: FollowLayer | None = None
        self.operations = operations
        self._model, self._on_start = model, on_start
        self._has_layers = False
        self._added: dict[str, torch.Tensor] = {}  # inputs of the layer that the script called last
        self._stack: list[str] = []  # paths of the layers that the pass is in
        self._names: dict[int, str] = {}  # of variables, by identity
        self._handles: list[torch.utils.hooks.RemovableHandle] = []
        self._patches = Patches()

    def register(self, entry: torch.nn.Module, guard: Guard, with_layers: bool) -> None:
        """Register the hooks.

        Args:
            entry: The module whose hooks run before and after the model.
            guard: Returns a hook that cannot raise errors.
            with_layers: Whether the layers have hooks.
        """
        self._has_layers = with_layers
        if with_layers:
            observe_direct_calls(self._patches, entry, lambda: bool(self._stack))
        self._add(entry, guard, self._enter_model, self._leave_model)
        for path, layer in name_layers(self._model).items() if with_layers else ():
            # A loss function in an attribute of the model, as Lightning's modules have it, is none of its layers
            if layer is not entry and not isinstance(layer, _Loss):
                self._add(layer, guard, self._make_enter_layer(path), self._make_leave_layer(path))

    def remove(self) -> None:
        """Remove the hooks."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        self._patches.restore()
        self.pending.clear()
        self.operations.finish(None)

    def take(self, marks: set[Mark]) -> list[ModelCall]:
        """Return the pending calls on which a loss depends. marks: the marks on whose nodes the loss depends."""
        calls, later = split_used(self.pending, marks)
        if not calls and later and not later[-1].marks:  # outputs in a container that the recorder does not know
            calls, later = later[-1:], []
        self.pending = later
        self._stack.clear()
        return calls

    def _add(
        self, module: torch.nn.Module, guard: Guard, enter: Callable[..., object], leave: Callable[..., object]
    ) -> None:
        self._handles.append(module.register_forward_pre_hook(guard(enter), with_kwargs=True))
        self._handles.append(module.register_forward_hook(guard(leave), with_kwargs=True))

    def _enter_model(self, module: torch.nn.Module, args: tuple[object, ...], kwargs: Mapping[str, object]) -> None:
        if self.is_paused:
            return
        if not self._is_trained:
            if self._model.training:  # the pass moves the statistics of BatchNorm
                self._on_start()
            return
        self._begin(name_arguments(args, kwargs))
        self._stack = [ROOT]
        self.operations.enter_layer(ROOT, self._model, (args, dict(kwargs)))
        self._describe(ROOT, self._model, None, ())

    def _leave_model(self, module: torch.nn.Module, args: object, kwargs: object, returned: object) -> None:
        if self._stack[:1] == [ROOT]:
            self._see_draws()
            self._stack.clear()
            self.operations.leave_layer(ROOT, returned)
            self._end(returned)

    def _make_enter_layer(self, path: str) -> Callable[..., None]:
        def enter(module: torch.nn.Module, args: tuple[object, ...], kwargs: Mapping[str, object]) -> None:
            if self.is_paused or not (self._stack or self._is_trained) or self._is_after_model(module):
                return
            if not self._stack:
                self._begin_part(path, name_arguments(args, kwargs))
            self._see_draws()
            self._stack.append(path)
            self.operations.enter_layer(path, module, (args, dict(kwargs)))
            self.autocast = self.autocast or read_layer_autocast(module)
            call = self.pending[-1]
            call.states.see(path, module, args, kwargs)
            name = f"layer/{path}/input"
            if not self.records_layers or name in call.layers or any(facts["path"] == path for facts in call.facts):
                return
            received = first_tensor((args, dict(kwargs)))
            self._describe(path, module, find_unflattened_shape(received), find_sources(received))
            if received is not None:
                call.layers[name] = self.copies.copy(received)

        return enter

    def _make_leave_layer(self, path: str) -> Callable[..., None]:
        def leave(
            module: torch.nn.Module, args: tuple[object, ...], kwargs: Mapping[str, object], returned: object
        ) -> None:
            if self.is_paused or path not in self._stack:
                return
            self._see_draws()
            self.operations.leave_layer(path, returned)
            del self._stack[self._stack.index(path) :]
            call, name, tensor = self.pending[-1], f"layer/{path}/output", first_tensor(returned)
            if self._observes_layers and next(module.parameters(recurse=False), None) is not None:
                mark_source((tensor for _, tensor in name_tensors(returned)), path)
            if self.records_layers and name not in call.layers and tensor is not None:
                call.layers[name] = self.copies.copy(tensor)
                self._follow(call, path, module, args, kwargs, returned)
            if self._stack or not call.parts:
                return
            if is_loss_function(module, returned):
                self._forget_part(path)
            else:
                self._end(returned)

        return leave

    def _follow(
        self, call: ModelCall, path: str, module: torch.nn.Module, args: tuple[object, ...],
        kwargs: Mapping[str, object], returned: object,
    ) -> None:  # fmt: skip
        """Record the output of a layer for the recorded input of its counterpart, if that is known."""
        facts = next((facts for facts in call.facts if facts["path"] == path), None)
        if self.follow_layer is not None and facts is not None and path not in self.draws.layers:
            followed = self.follow_layer(facts, module, args, kwargs, returned)
            if followed is not None:
                call.layers[f"followed/{path}"] = self.copies.copy(followed)

    @property
    def may_compute_loss(self) -> bool:
        """Return whether the script may compute a loss now: after a call of the model, and not within a call."""
        return bool(self.pending) and not self._stack and not self.is_paused

    @property
    def _is_trained(self) -> bool:
        """Return whether a call now may give the model gradients: a script may freeze it for some calls, as a GAN's."""
        is_frozen = self.needs_gradients and not any(x.requires_grad for x in self._model.parameters())
        return torch.is_grad_enabled() and not is_frozen

    @property
    def _observes_layers(self) -> bool:
        """Return whether the calls of layers are observed."""
        return self.records_layers and self._has_layers

    def _see_draws(self) -> None:
        """Find out whether the code of the current layer has drawn random numbers since the last call."""
        if self._observes_layers and self._stack:
            self.draws.see(self._stack[-1])

    def _begin(self, arguments: object) -> None:
        self._on_start()
        if self._observes_layers:
            self.draws.start(self._model)
        self._names = {id(tensor): name for name, tensor in name_variables(self._model).items()}
        kept_calls = [call for call in self.pending if list_marks([call])]  # the script has dropped the others
        inputs, references = self.copies.copy_all(arguments), list_references(arguments)
        self.pending = [*kept_calls, ModelCall(inputs, is_training=self._model.training, references=references)]
        if self._observes_layers:
            if not (kept_calls and self.operations.is_observing):
                self.operations.begin(self._names)
            self.operations.name_all(f"{name_call(0, len(kept_calls))}/input", arguments)

    def _begin_part(self, path: str, arguments: object) -> None:
        """Begin or continue a pass in which the script calls layers instead of the model, or with its outputs."""
        computed = [tensor for _, tensor in name_tensors(arguments) if tensor.grad_fn is not None]
        if not (self.pending and (self.pending[-1].parts or any(map(self._is_of_pass, computed)))):
            self._begin(arguments)
            self.pending[-1].begins_with_part = True
        else:
            self._add_inputs(path, arguments)
            if self._observes_layers:  # the script may have drawn between two layers
                self.draws.start(self._model)
        self.pending[-1].parts.append(path)

    def _is_after_model(self, module: torch.nn.Module) -> bool:
        """Check whether the script calls a part without variables after the whole model, such as a loss function."""
        is_after = not self._stack and bool(self.pending) and not self.pending[-1].parts
        return is_after and not has_variables(module)

    def _is_of_pass(self, tensor: torch.Tensor) -> bool:
        return any(reference() is tensor for reference in self.pending[-1].references)

    def _add_inputs(self, path: str, arguments: object) -> None:
        """Add what a further layer receives to the inputs of the pass, unless a layer has computed or received it."""
        tensors = {
            f"{path}.{name}": tensor
            for name, tensor in name_tensors(arguments)
            if tensor.grad_fn is None and not self._is_of_pass(tensor)
        }
        self.pending[-1].inputs.update(self.copies.copy_all(tensors))
        self.pending[-1].references += list_references(arguments)
        self._added = tensors

    def _forget_part(self, path: str) -> None:
        """Forget the last call of a module that is not a layer, with its inner layers and the pass that it began."""
        call = self.pending[-1]
        call.parts.pop()
        forgotten = {facts["path"] for facts in call.facts if f"{facts['path']}.".startswith(f"{path}.")}
        call.facts = [facts for facts in call.facts if facts["path"] not in forgotten]
        call.layers = {name: x for name, x in call.layers.items() if name.split("/")[1] not in forgotten}
        call.inputs = {name: x for name, x in call.inputs.items() if not name.startswith(f"{path}.")}
        if not call.parts and call.begins_with_part:
            self.pending.pop()

    def _end(self, returned: object) -> None:
        call = self.pending[-1]
        call.outputs = self.copies.copy_all(returned)
        call.references += list_references(returned)
        self.operations.name_all(f"{name_call(0, len(self.pending) - 1)}/input", self._added)
        self._added = {}
        call.marks += mark_nodes(tensor for _, tensor in name_tensors(returned))
        self.operations.name_all(f"{name_call(0, len(self.pending) - 1)}/output", returned)

    def _describe(self, path: str, layer: torch.nn.Module, shape: list[int] | None, sources: Collection[str]) -> None:
        if self._observes_layers:
            facts = describe_layer(path, layer, self._names, shape)
            self.pending[-1].facts.append({**facts, "sources": sorted(sources)} if sources else facts)
