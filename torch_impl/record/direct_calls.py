"""Calls of a model's method `forward` by a script. They skip the hooks by which a recorder sees the model."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

import torch

from torch_impl.record.patches import Patches, is_compiling

CALLERS = (torch.nn.Module._call_impl.__module__, "torch_impl.record.")  # modules whose calls are no script's


def observe_direct_calls(patches: Patches, model: torch.nn.Module, is_within_call: Callable[[], bool]) -> None:
    """Let direct calls of `forward` call the model. A model with hooks of the script's own is left as it is.

    Args:
        patches: Restores the method.
        model: The unwrapped model.
        is_within_call: Returns whether the model computes now.
    """
    kind, hooks = type(model), (*model._forward_hooks.values(), *model._forward_pre_hooks.values())
    has_hooks = not all(str(getattr(hook, "__module__", "")).startswith(CALLERS) for hook in hooks)
    if has_hooks or isinstance(model, torch.jit.ScriptModule) or "forward" in vars(model):
        return
    original = kind.forward

    @functools.wraps(original)
    def forward(module: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401  of any model
        if is_compiling() or module is not model or is_within_call():
            return original(module, *args, **kwargs)
        is_direct = not str(sys._getframe(1).f_globals.get("__name__")).startswith(CALLERS)
        return model(*args, **kwargs) if is_direct else original(module, *args, **kwargs)

    patches.replace(kind, "forward", forward)
