"""Recording of the operations of a forward pass and its loss, by a TorchFunctionMode.

PyTorch calls the mode for each function of tensors that the script or its model calls, but not for calls within such a
function. The mode only observes: it calls the function with the same arguments and returns the function's result.
"""

from __future__ import annotations

import functools
import os
import threading
from collections.abc import Callable, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.overrides import TorchFunctionMode, _get_current_function_mode_stack, _pop_mode, _push_mode

from common.recording.operation_format import OperationTrace
from common.recording.operation_observer import OperationObserver
from common.recording.record_format import ROOT
from torch_impl.record.arrays import first_tensor, name_tensors, read_version
from torch_impl.record.attention_parts import AttentionPart, add_parts, list_attention_parts
from torch_impl.record.graph import count_nodes, is_computed_since
from torch_impl.record.operation_facts import has_compiled_functions, is_operation, list_arguments, name_function
from torch_impl.record.patches import find_observed
from torch_impl.record.reductions import split_reduction
from torch_impl.record.tensor_statistics import measure_tensor

if TYPE_CHECKING:
    from collections.abc import Iterator

# Code that belongs neither to the script nor to its model
PACKAGES = ("torch", "torch_impl.record", "accelerate", "lightning", "pytorch_lightning", "transformers.trainer")
FAST_MODULES = (torch.nn.MultiheadAttention, torch.nn.TransformerEncoder, torch.nn.TransformerEncoderLayer)


def _guard(method: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a method that looks at tensors: the wrapper raises no errors, and the mode does not see its operations."""

    @functools.wraps(method)
    def guarded(mode: OperationMode, *args: object) -> Any:  # noqa: ANN401  the result of the method
        try:
            with mode.pause():
                return method(mode, *args)
        except Exception as error:
            mode.stop(error)
            return None

    return guarded


class OperationMode(TorchFunctionMode):
    """Mode of PyTorch's functions that adds operations to an observer.

    It lies below the modes of the script, so that a script that leaves a mode leaves its own one. PyTorch expects the
    mode of the default device at the bottom.

    Attributes:
        is_allowed: Whether PyTorch may call the mode.
    """

    pauses: ClassVar[int] = 0  # number of functions of recorders that compute now

    def __init__(self, note: Callable[[str], None]) -> None:
        """Prepare to observe. note: receives why operations are not recorded."""
        super().__init__()
        self.is_allowed, self._is_checked = False, False
        self._variables: dict[int, str] = {}
        self._path: list[str] = []
        self._observer: OperationObserver | None = None
        self._note = note
        # The layer that counts as one operation, its inputs and its arguments, during its call
        self._leaf: tuple[torch.nn.Module, list[torch.Tensor], tuple[Any, dict[str, Any]]] | None = None
        self._origin = (0, 0)  # process and thread
        self._loss_calls, self._node_count = 0, 0  # node_count: nodes of autograd when the list begins
        self._handles: list[torch.utils.hooks.RemovableHandle] = []  # of the hooks of all modules
        self._hidden: torch.nn.Module | None = None  # a module that must not see the mode
        self._versions: dict[int, int] = {}  # of the seen tensors, by identity

    @classmethod
    @contextmanager
    def pause(cls) -> Iterator[None]:
        """Ignore the operations of a recorder itself."""
        OperationMode.pauses += 1
        try:
            yield
        finally:
            OperationMode.pauses -= 1

    @property
    def is_observing(self) -> bool:
        """Return whether a list of operations has begun and has not ended."""
        return self._observer is not None

    def begin(self, variables: dict[int, str]) -> None:
        """Begin a list of operations. An earlier one is dropped. variables: names of the model's, by identity."""
        if self.is_allowed and not self._is_checked and has_compiled_functions():
            self.is_allowed = False
            self._note("they are not recorded, because torch.compile compiles a function; record a run without it")
        self._is_checked = True
        if not self.is_allowed:
            return
        self._variables = variables
        self._observer = OperationObserver(measure_tensor, PACKAGES)
        self._origin, self._leaf = (os.getpid(), threading.get_ident()), None
        self._path, self._versions, self._loss_calls, self._node_count = [], {}, 0, count_nodes()
        if not self._handles:
            self._handles = [
                register_module_forward_pre_hook(self._before_module),
                register_module_forward_hook(self._after_module),
            ]
        self.install()

    def install(self) -> None:
        """Let PyTorch call the mode, if a list of operations has begun."""
        if self._observer is None or not self._is_here() or self in _get_current_function_mode_stack():
            return
        others = [_pop_mode() for _ in _get_current_function_mode_stack()]
        default_device = getattr(getattr(torch, "_GLOBAL_DEVICE_CONTEXT", None), "device_context", None)
        if others and others[-1] is default_device:
            _push_mode(others.pop())
        _push_mode(self)
        for mode in reversed(others):
            _push_mode(mode)

    def remove(self) -> None:
        """Let PyTorch call the mode no more."""
        if not self._is_here() or self not in _get_current_function_mode_stack():
            return
        above = []
        while (mode := _pop_mode()) is not self:
            above.append(mode)
        for mode in reversed(above):
            _push_mode(mode)

    def name(self, name: str, tensor: object, is_given: bool = False) -> None:
        """Give a tensor its name in the record. is_given: whether no operation may have returned it."""
        if self._observer is not None and isinstance(tensor, torch.Tensor):
            self._see(tensor, is_given)
            self._observer.name_tensor(name, tensor)

    @_guard
    def name_all(self, prefix: str, nested: object) -> None:
        """Give the tensors in nested containers their names in the record."""
        for name, tensor in name_tensors(nested):
            self.name(f"{prefix}/{name}", tensor, is_given=True)

    @_guard
    def name_labels(self, labels: Mapping[str, torch.Tensor]) -> None:
        """Give the arguments of a loss function their names in the record."""
        suffix = f".{self._loss_calls}" if self._loss_calls else ""
        for name, tensor in labels.items():
            self.name(f"batch/0/label/{name}{suffix}", tensor)
        self._loss_calls += 1

    @_guard
    def find_number(self, tensor: torch.Tensor) -> int | None:
        """Return the number of a tensor in the list of operations; None if none has begun."""
        if self._observer is None:
            return None
        self._see(tensor)
        return self._observer.find_number(tensor)

    @_guard
    def enter_layer(self, path: str, module: torch.nn.Module, arguments: tuple[Any, dict[str, Any]]) -> None:
        """Notice that the pass enters a layer. A layer of PyTorch is one operation."""
        if self._observer is None or self._leaf is not None:
            return
        self._path.append(path)
        if path != ROOT:
            self.name(f"layer/{path}/input", first_tensor(arguments))
        if is_operation(module):
            self._leaf = module, self._see_all([arguments, list(module.parameters())]), arguments

    @_guard
    def leave_layer(self, path: str, returned: object) -> None:
        """Notice that the pass leaves a layer."""
        if self._observer is None or self._leaf is not None or path not in self._path:
            return
        del self._path[self._path.index(path) :]
        if path != ROOT:
            self.name(f"layer/{path}/output", first_tensor(returned))

    def finish(self, loss: object) -> OperationTrace | None:
        """End the list of operations, and return it; None if none has begun."""
        self.remove()
        for handle in self._handles:
            handle.remove()
        self._handles, self._hidden = [], None
        observer, self._observer, self._variables = self._observer, None, {}
        trace = observer.finish(loss) if observer is not None else None
        if trace is not None and loss is not None and not trace["complete"]:
            self._note("some are not listed, such as those within torch.func, torch.jit or a library in C++")
        return trace

    def __torch_function__(
        self, func: Callable[..., Any], types: object, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:  # noqa: ANN401  of any function
        """Call a function, and add it as an operation."""
        # PyTorch finds the replacement, which has called the function already
        func, kwargs = find_observed(func), kwargs or {}
        if self._observer is None or OperationMode.pauses or self._leaf is not None or not self._is_here():
            return func(*args, **kwargs)
        inputs = self._look([args, kwargs])
        result = func(*args, **kwargs)
        if inputs is not None:
            self._add_function(func, args, kwargs, result, inputs)
        return result

    def stop(self, error: Exception) -> None:
        """Drop the list of operations because of an error, which does not reach the script."""
        self._observer, self.is_allowed = None, False
        self._note(f"they are not recorded, because of an error of the recorder: {error}")

    def _before_module(self, module: torch.nn.Module, _: object) -> None:
        """Remove the mode before a frozen attention, for example of a teacher, which is faster without a mode."""
        if self._hidden is not None or not isinstance(module, FAST_MODULES) or module.training:
            return
        needs_gradients = torch.is_grad_enabled() and any(weight.requires_grad for weight in module.parameters())
        if not needs_gradients and self._is_here():
            self._hidden = module
            self.remove()

    def _after_module(self, module: torch.nn.Module, _: object, returned: object) -> None:
        """Install the mode again, or add a layer as an operation, before the hooks of the script are called."""
        if self._hidden is module and self._is_here():
            self._hidden = None
            self.install()
        if self._leaf is not None and self._leaf[0] is module and self._is_here():
            self._add_leaf(module, returned)

    @_guard
    def _add_leaf(self, module: torch.nn.Module, returned: object) -> None:
        assert self._leaf is not None
        attributes = {name: value for name, value in vars(module).items() if not name.startswith("_")}
        (_, inputs, (args, kwargs)), self._leaf = self._leaf, None
        parts = list_attention_parts(module, args, kwargs, returned)
        self._add(type(module).__name__, attributes, inputs, returned, parts)

    def _is_here(self) -> bool:
        """Check whether this is the process and the thread in which the list has begun."""
        return self._origin == (os.getpid(), threading.get_ident())

    def _see(self, tensor: torch.Tensor, is_given: bool = False) -> None:
        assert self._observer is not None
        version = read_version(tensor)
        is_changed = self._versions.get(id(tensor), version) != version
        self._observer.see(tensor, is_changed, is_result=not is_given and is_computed_since(tensor, self._node_count))
        self._versions[id(tensor)] = version

    @_guard
    def _look(self, nested: object) -> list[tuple[torch.Tensor, int]]:
        """Return the tensors that a function receives, with their versions."""
        return [(tensor, read_version(tensor)) for tensor in self._see_all(nested)]

    def _see_all(self, nested: object) -> list[torch.Tensor]:
        """Return the tensors in nested containers, which have numbers and, if they are variables, names from now on."""
        tensors = [tensor for _, tensor in name_tensors(nested)]
        for tensor in tensors:
            self._see(tensor)
            if id(tensor) in self._variables:
                self.name(f"weight/{self._variables[id(tensor)]}", tensor)
        return tensors

    @_guard
    def _add_function(
        self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any], result: object,
        inputs: list[tuple[torch.Tensor, int]],
    ) -> None:  # fmt: skip
        name = name_function(function)
        returned = args[0] if name == "setitem" else result
        outputs = [tensor for _, tensor in name_tensors(returned)]
        versions = {id(tensor): version for tensor, version in inputs}
        if all(versions.get(id(tensor)) == read_version(tensor) for tensor in outputs):
            return  # no tensor, or those that it received, as x.contiguous() may return x
        arguments, received = list_arguments(function, args, kwargs), [tensor for tensor, _ in inputs]
        reduction = split_reduction(function, args, kwargs)
        if reduction is not None:
            self._add(name, {**arguments, "reduction": "none"}, received, reduction.losses, [])
            name, arguments, received = reduction.name, {**reduction.arguments}, [reduction.losses]
        self._add(name, arguments, received, returned, list_attention_parts(function, args, kwargs, result))

    def _add(
        self, name: str, arguments: Mapping[str, object], inputs: list[torch.Tensor], returned: object,
        parts: list[AttentionPart],
    ) -> None:  # fmt: skip
        assert self._observer is not None
        outputs = [tensor for _, tensor in name_tensors(returned)]
        received = {id(tensor) for tensor in inputs}
        # A change of a view changes the tensor that it is a view of, too
        bases = [tensor._base for tensor in outputs if id(tensor) in received and tensor._base is not None]
        for base in bases:
            self._observer.see(base, is_changed=True)
        outputs = list({id(tensor): tensor for tensor in [*outputs, *bases]}.values())
        path = self._path[-1] if self._path else ""
        self._observer.add(name, arguments, inputs, outputs, path, add_parts(self._observer, parts, path))
        self._versions.update((id(tensor), read_version(tensor)) for tensor in outputs)
