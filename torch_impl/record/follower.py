"""Following: a script computes with the initial weights and the batches of another record.

This module may import all of Lockstep. Recording without following must not need it.
"""

from __future__ import annotations

import contextlib
import copy
import random
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from common.diagnose.recorded.followed_batches import FollowedBatches
from common.diagnose.recorded.followed_record import FollowedRecord
from common.diagnose.recorded.recorded_model import RecordedModel
from common.errors import UserError
from common.map.description import RecordedCall
from common.recording.record_format import LayerFacts
from torch_impl.record.arrays import (
    convert_array,
    first_tensor,
    name_leaves,
    name_tensors,
    replace_tensors,
    view_tensor,
)
from torch_impl.record.copies import Copies
from torch_impl.record.environment import find_rank
from torch_impl.record.model_calls import CallObserver
from torch_impl.record.model_copies import COPIES, find_copies
from torch_impl.record.model_facts import describe_all_layers, describe_model, find_entry, name_variables, unwrap_model
from torch_impl.record.module_attributes import keep_attributes
from torch_impl.record.operation_tracer import OperationMode

NOT_LOADED = (
    "{}: the model has not taken its weights, because the script called neither the model nor a layer of it; call the "
    "model that the recorder has, and not a copy of it"
)


class Follower:
    """Gives a script the initial weights and the batches of a record. Errors end the script before it trains.

    Attributes:
        identity: The description of the followed record, for the script's own record.
        is_observing: Whether the forward pass that runs now is an extra one, which only shows the order of the layers.
        is_waiting: Whether the model takes the initial weights when the script calls it, or a part of it, first.
        before_batch: Called before each batch of the script is replaced.
        after_batch: Called with what replaces it.
    """

    def __init__(self, directory: str, map_file: str | None) -> None:
        """Open the record that the script follows. Raise UserError if it is damaged.

        Args:
            directory: The directory of the record.
            map_file: The file that pairs the variables of the two models, if names and layers cannot.
        """
        self._record = FollowedRecord(str(directory), is_torch=True, map_file=map_file)
        self.identity = self._record.identity
        self._batches = FollowedBatches(self._record.side)
        self.is_observing, self.is_waiting, self._is_order_assumed = False, False, False
        self.before_batch: Callable[[], object] = lambda: None
        self.after_batch: Callable[[Any], object] = lambda _: None
        self._notes: list[str] = []
        self._handles: list[torch.utils.hooks.RemovableHandle] = []
        self._handles_of_load: list[torch.utils.hooks.RemovableHandle] = []
        self._watch_copies: Callable[[], None] = lambda: None
        self._restore_loader: Callable[[], None] = lambda: None

    @property
    def notes(self) -> list[str]:
        """Return sentences that name what the script does not take from the record."""
        waiting = [NOT_LOADED.format(self._record.side.record.directory)] if self.is_waiting else []
        return [*self._batches.notes, *self._notes, *waiting]

    def follow(self, model: torch.nn.Module) -> None:
        """Load the initial weights; again at the first call of the model, if the order of its layers is needed."""
        inner, (entry, has_layers) = unwrap_model(model), find_entry(model)
        self._watch_time_axis([x for x in inner.modules() if getattr(x, "batch_first", True) is False])
        if not (self._record.needs_layers and has_layers):
            self._load_weights(inner, describe_all_layers(inner, name_variables(inner)))
            return
        if not any(map(torch.nn.parameter.is_lazy, inner.parameters())):
            self._load_provisional_weights(inner)

        def load(module: torch.nn.Module, args: tuple[object, ...], kwargs: dict[str, object]) -> None:
            if self.is_observing or not self.is_waiting:
                return
            for handle in handles:
                handle.remove()
            is_copy = all(module is not part for part in (entry, *inner.modules()))
            self.is_observing = True
            try:
                layers = observe_layers(module if is_copy else inner, module, args, kwargs)
            finally:
                self.is_observing = False
            is_whole = module is entry or is_copy
            self._load_weights(inner, layers if is_whole else self._add_layers(inner, layers))
            torch.clear_autocast_cache()  # autocast keeps the weights that the extra pass has converted
            self.is_waiting = False

        def watch_copies() -> None:
            handles.extend(copy.register_forward_pre_hook(load, with_kwargs=True) for copy in find_copies(inner))

        self.is_waiting, self._watch_copies = True, watch_copies
        parts = [part for part in inner.modules() if part is not entry and next(part.parameters(), None) is not None]
        handles = [part.register_forward_pre_hook(load, with_kwargs=True) for part in (entry, *parts)]
        self._handles_of_load = handles

    def check_weights(self, parameters: Iterable[torch.Tensor]) -> None:
        """Raise UserError if an update would change weights that are not those of the record.

        Args:
            parameters: The parameters that the optimizer updates, if they have gradients.
        """
        if self.is_waiting and any(parameter.grad is not None for parameter in parameters):
            raise UserError(NOT_LOADED.format(self._record.side.record.directory))

    def check_order(self, model: torch.nn.Module, layers: list[LayerFacts]) -> None:
        """Raise UserError if the script has called its layers in another order than that in which they got weights.

        Args:
            model: The unwrapped model.
            layers: The layers in the order in which the first micro-batch entered them.
        """
        if self._is_order_assumed:
            self._is_order_assumed = False
            self._record.check_order(RecordedModel(True, describe_model(model, layers)))

    def _add_layers(self, model: torch.nn.Module, observed: list[LayerFacts]) -> list[LayerFacts]:
        """Return the layers of a part of a model, and after them the other layers with variables as they are defined.

        Args:
            model: The unwrapped model.
            observed: The layers that the script's call of the part enters, in their order.
        """
        known = {name for layer in observed for name in layer["variables"].values()}
        defined = describe_all_layers(model, name_variables(model))
        further = [layer for layer in defined if {*layer["variables"].values()} - known]
        if further:
            self._is_order_assumed = True
            others = f"{further[0]['path']} and {len(further) - 1} others" if further[1:] else further[0]["path"]
            self._notes.append(
                f"weights: the script calls {observed[0]['path']} first and not the model: {others} got weights in the "
                "order of definition; check that, call the model itself, or pair them by map=FILE"
            )
        return observed + further

    def _watch_time_axis(self, layers: Sequence[torch.nn.Module]) -> None:
        """Check, at the call of the first time-first layer, whether the batches are time-first."""
        self._batches.may_have_time_first = bool(layers)

        def check(layer: torch.nn.Module, args: tuple[object, ...], kwargs: dict[str, object]) -> None:
            for handle in handles:
                handle.remove()
            received = first_tensor([args, kwargs])
            if received is not None:
                self._batches.check_time_axis(received.shape)

        handles = [layer.register_forward_pre_hook(check, with_kwargs=True) for layer in layers]
        self._handles += handles

    def replace_batches(self, loader: Any) -> None:  # noqa: ANN401  of any class
        """Replace the batches of a loader that a trainer iterates over itself, until the follower is closed."""
        kind: Any = type(loader)
        is_inherited, iterate = "__iter__" not in vars(kind), kind.__iter__

        def replace(iterated: object) -> Iterator[Any]:
            for batch in iterate(iterated):
                yield self.replace_batch(batch) if iterated is loader else batch

        def restore() -> None:
            if is_inherited:
                del kind.__iter__
            else:
                kind.__iter__ = iterate

        kind.__iter__ = replace
        self._restore_loader = restore

    @torch.no_grad()
    def compute_layer(
        self,
        facts: LayerFacts,
        layer: torch.nn.Module,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        returned: object,
    ) -> torch.Tensor | None:
        """Compute a layer on the recorded input of its counterpart. Return None if that input is not known.

        Args:
            facts: The description of the layer.
            layer: The layer. Neither its state nor the random generators change.
            args: The positional arguments that the layer received from the script.
            kwargs: The keyword arguments.
            returned: The layer's output for these arguments.
        """
        named = dict(name_tensors([args, dict(kwargs)]))
        floats = {name: tensor for name, tensor in named.items() if tensor.is_floating_point()}
        output = first_tensor(returned)
        if self._record.layers is None or len(floats) != 1 or output is None or any(layer.children()):
            return None
        ((name, received),) = floats.items()
        call = RecordedCall(view_tensor(received), view_tensor(output))
        array = self._record.layers.convert_input(facts["path"], call, facts["unflattened_shape"])
        if array is None:
            return None
        array = self._batches.restore_time_axis(array, view_tensor(received))
        followed = torch.from_numpy(np.array(array)).to(received.device, received.dtype)
        args, kwargs = replace_tensors([args, dict(kwargs)], {name: followed})
        try:
            alone = copy.deepcopy(layer)  # the script's backward pass needs the buffers of the layer as they are
        except RuntimeError:  # a tensor of the graph is an attribute of the layer
            return None
        with torch.random.fork_rng():
            return first_tensor(alone.forward(*args, **kwargs))

    def end_step(self) -> None:
        """Notice an update of the script."""
        self._batches.end_step()

    def close(self) -> None:
        """Remove the hooks from the model, and let the trainer's loader return its own batches."""
        self._restore_loader()
        for handle in (*self._handles, *self._handles_of_load):
            handle.remove()
        self._handles.clear()
        self._watch_copies = self._restore_loader = lambda: None

    def replace_batch(self, batch: Any) -> Any:  # noqa: ANN401  as the script's loader returns it
        """Return the record's next micro-batch in the structure and on the device of the script's own batch.

        After the last recorded step, return the script's own batch.
        """
        self.before_batch()
        if self.is_waiting:
            self._watch_copies()  # the script may call a copy of the model before the model
            self._watch_copies = lambda: None
        tensors = name_leaves(batch)
        leaves = {name: view_tensor(tensor) for name, tensor in tensors.items()}
        arrays = self._batches.fill(leaves, *find_rank())
        if arrays is None:
            return batch
        followed = {name: convert_array(array, tensors[name]) for name, array in arrays.items()}
        replaced = replace_tensors(batch, followed)
        self.after_batch(replaced)
        return replaced

    def _load_provisional_weights(self, model: torch.nn.Module) -> None:
        """Load weights in the order of definition: the script may use some of them before it calls a layer."""
        with contextlib.suppress(UserError), warnings.catch_warnings(action="ignore"):
            self._load_weights(model, describe_all_layers(model, name_variables(model)))
        self._notes.clear()

    def _load_weights(self, model: torch.nn.Module, layers: list[LayerFacts]) -> None:
        variables = name_variables(model)
        arrays = {name: view_tensor(tensor) for name, tensor in variables.items()}
        followed = self._record.compute_weights(RecordedModel(True, describe_model(model, layers)), arrays)
        copies = find_copies(model)
        self._notes += [COPIES.format(len(copies))] if copies else []
        with torch.no_grad():
            for named in (variables, *map(name_variables, copies)):
                for name, array in followed.items():
                    weight = torch.from_numpy(np.array(array)).to(named[name])
                    if not torch.equal(weight, named[name]):  # a change would hinder the backward pass of an operation
                        named[name].copy_(weight)


def observe_layers(
    model: torch.nn.Module, called: torch.nn.Module, args: tuple[object, ...], kwargs: dict[str, object]
) -> list[LayerFacts]:
    """Return the layers in the order in which a forward pass enters them. Undo what the pass changes.

    Args:
        model: The unwrapped model.
        called: The module that the script calls: the model or a part of it.
        args: The positional arguments of the pass.
        kwargs: The keyword arguments of the pass.
    """
    observer = CallObserver(model, lambda: None, Copies(0), OperationMode(lambda _: None))
    observer.needs_gradients = False  # the script may call a frozen copy of the model first
    observer.register(model, lambda function: function, with_layers=True)
    attributes = keep_attributes(model)
    states = random.getstate(), np.random.get_state()
    try:
        with torch.random.fork_rng(), torch.enable_grad():
            called(*args, **kwargs)
        return observer.pending[-1].facts
    finally:
        observer.remove()
        random.setstate(states[0])
        np.random.set_state(states[1])
        attributes.restore()
