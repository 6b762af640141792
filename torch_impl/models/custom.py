"""A user's own module, as its factory returns it: see docs/custom_models.md."""

from functools import partial
from typing import Any

import torch
from torch.nn import Module

from common.map.factory import build_with
from common.models.initial_weights import InitialCheckpoint
from torch_impl.batch_norm import use_real_rows
from torch_impl.dropout import use_dropout_keys
from torch_impl.input_adapter import InputAdapter, build_input_adapter
from torch_impl.models.weights import load_weights
from torch_impl.nested_tensors import name_tensors


def build(initial: InitialCheckpoint) -> Module:
    """The model with the initial weights. It takes the arrays of a batch by name and returns the task's output."""
    settings = initial.hf_config
    key, names = "model.torch", list(settings["inputs"])
    model: Module = build_with(key, settings["factories"]["torch"], settings["arguments"])
    arguments = build_input_adapter(key, model, names, settings["channels"])
    model.register_forward_pre_hook(partial(_take, arguments), with_kwargs=True)
    model.register_forward_hook(partial(_give, settings["outputs"]["torch"]))
    with torch.no_grad():
        model.eval()(**_ones(settings["inputs"]))  # creates what lazy layers create at their first call
    load_weights(model, initial.weights())
    frozen = set(settings["frozen"])
    for name, parameter in model.named_parameters():
        if name in frozen:
            parameter.requires_grad = False
    return model


def _take(arguments: InputAdapter, model: Module, args: tuple[Any, ...], inputs: dict[str, Any]) -> Any:
    """Before the model's forward pass: from the arrays of a batch to its own arguments."""
    use_dropout_keys(model, inputs.get("dropout_keys"))
    use_real_rows(model, inputs.get("real_rows"))
    dtype = next((each.dtype for each in model.parameters() if each.is_floating_point()), torch.float32)
    return arguments({name: each.to(dtype) if each.is_floating_point() else each for name, each in inputs.items()})


def _give(name: str, model: Module, args: tuple[Any, ...], returned: Any) -> torch.Tensor:
    """After it: from what it returned to the task's output."""
    return name_tensors(returned)[name]


def _ones(inputs: dict[str, tuple[str, list[int]]]) -> dict[str, torch.Tensor]:
    """Two examples of ones: no index is negative, and no mask leaves everything out."""
    return {name: torch.ones(2, *shape, dtype=getattr(torch, dtype)) for name, (dtype, shape) in inputs.items()}
