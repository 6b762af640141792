"""Names of operations and their arguments, and the layers that are operations."""

from __future__ import annotations

import functools
import gc
import inspect
import sys
import types
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from common.recording.index_notation import write_axis_index, write_flip, write_index, write_length

# Modules of PyTorch that call others, or functions that are seen by themselves
CONTAINERS = tuple(f"torch.nn.modules.{name}" for name in ("container", "loss", "module", "transformer"))
# Functions that select elements by numbers, with their arguments after the tensor
SELECTIONS = {"select": ("dim", "index"), "narrow": ("dim", "start", "length")}


def is_operation(module: torch.nn.Module) -> bool:
    """Check whether a module computes by itself, by code of PyTorch."""
    if isinstance(module, torch.jit.ScriptModule):
        return True
    origin = getattr(type(module).forward, "__module__", None) or ""
    return origin.startswith("torch.nn.modules.") and not origin.startswith(CONTAINERS)


def has_compiled_functions() -> bool:
    """Check whether torch.compile has wrapped a function: the compiler would compile the mode, too."""
    if "torch._dynamo" not in sys.modules or not _list_compiled():
        return False
    gc.collect()  # the script may have dropped it
    return bool(_list_compiled())


def _list_compiled() -> list[object]:
    objects = gc.get_objects()
    return [item for item in objects if type(item) is types.FunctionType and "_torchdynamo_inline" in vars(item)]


def name_function(function: Any) -> str:  # noqa: ANN401  of any class
    """Return the name of a function, or of the property that it reads."""
    name: str = getattr(function, "__name__", type(function).__name__)
    if name in ("__get__", "__set__"):  # of a property
        name = getattr(getattr(function, "__self__", None), "__name__", name)
    return name[2:-2] if name.startswith("__") and name.endswith("__") else name


def list_arguments(
    function: Callable[..., object], args: Sequence[object], kwargs: Mapping[str, object]
) -> dict[str, object]:
    """Return the arguments of a call of a function by name, or by position; an index as the argument "index"."""
    names = [*list_parameters(function), *map(str, range(len(list_parameters(function)), len(args)))]
    arguments = {**dict(zip(names, args)), **kwargs}  # noqa: B905
    name = name_function(function)
    if name in ("getitem", "setitem"):
        arguments.pop("1", None)
        return {"index": write_index(args[1]), **arguments}
    index = _write_index(name, args, kwargs)
    return {"index": index} if index else arguments


def _write_index(name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
    """Return the index that selects what a function selects, as Python writes it; empty if there is none."""
    tensor, values = args[0] if args else kwargs.get("input"), args[1:]
    if not isinstance(tensor, torch.Tensor):
        return ""
    if name == "flip":
        axes = kwargs.get("dims", values[0] if values and isinstance(values[0], (list, tuple)) else values)
        return write_flip(axes, tensor.ndim)
    named = {**dict(zip(SELECTIONS.get(name, ()), values)), **kwargs}  # noqa: B905
    numbers: list[Any] = [named.get(key) for key in SELECTIONS.get(name, ())]
    if not numbers or not all(isinstance(number, int) for number in numbers):
        return ""
    axis, start = numbers[:2]
    index = start if name == "select" else write_length(start, numbers[2], tensor.shape[axis])
    return write_axis_index(index, axis, tensor.ndim)


@functools.cache
def list_parameters(function: Callable[..., object]) -> list[str]:
    """Return the names of the positional parameters of a function; empty for a function not written in Python."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return []
    return [parameter.name for parameter in parameters if parameter.kind is parameter.POSITIONAL_OR_KEYWORD]
