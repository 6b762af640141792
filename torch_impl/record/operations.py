"""The operations of a forward pass and of the loss that follows it, as a mode of PyTorch's functions sees them.

PyTorch calls the mode for each function of tensors that the script or its model calls, and not for those that such a
function calls. The mode only looks: it calls the function with the same arguments and returns what it returned.
"""

from __future__ import annotations

import functools
import inspect
import os
import threading
from collections.abc import Callable, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch.overrides import TorchFunctionMode, _get_current_function_mode_stack, _pop_mode, _push_mode

from common.recording.operation_format import OperationTrace
from common.recording.operation_observer import OperationObserver
from torch_impl.record.arrays import first_tensor, name_tensors
from torch_impl.record.model_facts import ROOT
from torch_impl.record.patches import find_observed
from torch_impl.record.tensor_statistics import measure_tensor

if TYPE_CHECKING:
    from collections.abc import Iterator

PACKAGES = ("torch", "torch_impl.record")
CONTAINERS = tuple(f"torch.nn.modules.{name}" for name in ("container", "loss", "module", "transformer"))


def _guard(method: Callable[..., Any]) -> Callable[..., Any]:
    """Return a method of the mode that looks at tensors: it cannot raise errors, and the mode does not see it."""

    @functools.wraps(method)
    def guarded(mode: OperationMode, *args: object) -> Any:  # noqa: ANN401  what the method returns
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

    def __init__(self, on_error: Callable[[Exception], None]) -> None:
        """Prepare to observe. on_error: receives an error of the observer, which does not reach the script."""
        super().__init__()
        self.is_allowed = False
        self._variables: dict[int, str] = {}
        self._path: list[str] = []
        self._observer: OperationObserver | None = None
        self._on_error = on_error
        # The paths of the layers that the pass is in, and the one that is one operation, with what it received
        self._leaf: tuple[str, list[torch.Tensor]] | None = None
        self._origin = (0, 0)  # process and thread
        self._versions: dict[int, int] = {}  # of the seen tensors, by identity

    @classmethod
    @contextmanager
    def pause(cls) -> Iterator[None]:
        """Ignore what a recorder itself computes."""
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
        if not self.is_allowed:
            return
        self._variables = variables
        self._observer = OperationObserver(measure_tensor, PACKAGES)
        self._origin, self._leaf = (os.getpid(), threading.get_ident()), None
        self._path, self._versions = [], {}
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

    def name(self, name: str, tensor: object) -> None:
        """Give a tensor its name in the record."""
        if self._observer is not None and isinstance(tensor, torch.Tensor):
            self._see(tensor)
            self._observer.name_tensor(name, tensor)

    @_guard
    def name_all(self, prefix: str, nested: object) -> None:
        """Give the tensors in nested containers their names in the record."""
        for name, tensor in name_tensors(nested):
            self.name(f"{prefix}/{name}", tensor)

    @_guard
    def enter_layer(self, path: str, module: torch.nn.Module, arguments: object) -> None:
        """Notice that the pass enters a layer. A layer of PyTorch is one operation."""
        if self._observer is None or self._leaf is not None:
            return
        self._path.append(path)
        if path != ROOT:
            self.name(f"layer/{path}/input", first_tensor(arguments))
        if is_operation(module):
            self._leaf = path, self._see_all([arguments, list(module.parameters())])

    @_guard
    def leave_layer(self, path: str, module: torch.nn.Module, returned: object) -> None:
        """Notice that the pass leaves a layer."""
        if self._observer is None or path not in self._path:
            return
        if self._leaf is not None:
            if self._leaf[0] != path:
                return
            attributes = {name: value for name, value in vars(module).items() if not name.startswith("_")}
            inputs, self._leaf = self._leaf[1], None
            self._add(type(module).__name__, attributes, inputs, returned)
        del self._path[self._path.index(path) :]
        if path != ROOT:
            self.name(f"layer/{path}/output", first_tensor(returned))

    def finish(self, loss: object) -> OperationTrace | None:
        """End the list of operations, and return it; None if none has begun."""
        self.remove()
        observer, self._observer, self._variables = self._observer, None, {}
        return observer.finish(loss) if observer is not None else None

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
        self._on_error(error)

    def _is_here(self) -> bool:
        """Check whether this is the process and the thread in which the list has begun."""
        return self._origin == (os.getpid(), threading.get_ident())

    def _see(self, tensor: torch.Tensor) -> None:
        assert self._observer is not None
        version = _read_version(tensor)
        self._observer.see(tensor, is_changed=self._versions.get(id(tensor), version) != version)
        self._versions[id(tensor)] = version

    @_guard
    def _look(self, nested: object) -> list[tuple[torch.Tensor, int]]:
        """Return the tensors that a function receives, with their versions."""
        return [(tensor, _read_version(tensor)) for tensor in self._see_all(nested)]

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
        name = _name_function(function)
        returned = args[0] if name == "setitem" else result
        outputs = [tensor for _, tensor in name_tensors(returned)]
        versions = {id(tensor): version for tensor, version in inputs}
        if all(versions.get(id(tensor)) == _read_version(tensor) for tensor in outputs):
            return  # no tensor, or those that it received, as x.contiguous() may return x
        names = [*_list_parameters(function), *map(str, range(len(_list_parameters(function)), len(args)))]
        self._add(name, {**dict(zip(names, args)), **kwargs}, [tensor for tensor, _ in inputs], returned)  # noqa: B905

    def _add(self, name: str, arguments: Mapping[str, object], inputs: list[torch.Tensor], returned: object) -> None:
        assert self._observer is not None
        outputs = [tensor for _, tensor in name_tensors(returned)]
        received = {id(tensor) for tensor in inputs}
        # A change of a view changes the tensor that it is a view of, too
        bases = [tensor._base for tensor in outputs if id(tensor) in received and tensor._base is not None]
        outputs += bases
        self._observer.add(name, arguments, inputs, outputs, self._path[-1] if self._path else "")
        self._versions.update((id(tensor), _read_version(tensor)) for tensor in outputs)


def is_operation(module: torch.nn.Module) -> bool:
    """Check whether a module computes by itself, by code of PyTorch."""
    if isinstance(module, torch.jit.ScriptModule):
        return True
    origin = getattr(type(module).forward, "__module__", None) or ""
    return origin.startswith("torch.nn.modules.") and not origin.startswith(CONTAINERS)


def _read_version(tensor: torch.Tensor) -> int:
    """Return how often a tensor was changed in place."""
    return 0 if tensor.is_inference() else tensor._version


def _name_function(function: Any) -> str:  # noqa: ANN401  of any class
    name: str = getattr(function, "__name__", type(function).__name__)
    if name in ("__get__", "__set__"):  # of a property
        name = getattr(getattr(function, "__self__", None), "__name__", name)
    return name[2:-2] if name.startswith("__") and name.endswith("__") else name


@functools.cache
def _list_parameters(function: Callable[..., object]) -> list[str]:
    """Return the names of the positional parameters of a function; none if it is not written in Python."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return []
    return [parameter.name for parameter in parameters if parameter.kind is parameter.POSITIONAL_OR_KEYWORD]
