"""The names of operations and of their arguments, and the layers that are operations."""

from __future__ import annotations

import functools
import gc
import inspect
import sys
import types
from collections.abc import Callable
from typing import Any

import torch

# Modules of PyTorch that call others, or functions that are seen by themselves
CONTAINERS = tuple(f"torch.nn.modules.{name}" for name in ("container", "loss", "module", "transformer"))


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


@functools.cache
def list_parameters(function: Callable[..., object]) -> list[str]:
    """Return the names of the positional parameters of a function; none if it is not written in Python."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return []
    return [parameter.name for parameter in parameters if parameter.kind is parameter.POSITIONAL_OR_KEYWORD]
