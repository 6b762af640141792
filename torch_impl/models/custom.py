"""A user's own module (`model=custom`), as its factory returns it. docs/custom_models.md describes the contract.

Before this, common/models/custom.py examines the user's models. The config.json of the initial checkpoint, `hf_config`,
holds the results: the factories, the inputs, the output that the task uses, the pairs of dropout layers, and the
parameters that are not trained.
"""

from contextlib import AbstractContextManager, nullcontext
from functools import partial

import torch
from torch.nn import Module

from common.map.factory import call_factory
from common.map.noise import Noise
from common.models.initial_weights import InitialCheckpoint
from torch_impl.aligned_layers import align_dropout, use_dropout_keys
from torch_impl.batch_norm import use_real_rows
from torch_impl.changing_buffers import mark_changing_buffers
from torch_impl.float64 import keep_float64
from torch_impl.input_adapter import Arguments, InputAdapter, build_input_adapter
from torch_impl.keras_backend import reset_layer_names, select_keras_backend
from torch_impl.keras_module import KerasModule
from torch_impl.models.weights import load_weights
from torch_impl.nested_tensors import name_tensors


def build(initial: InitialCheckpoint) -> Module:
    """Build the model with the initial weights.

    Hooks make the model take the arrays of a batch by name, and return the output that the task uses.
    """
    settings = initial.hf_config
    key, names = "model.torch", list(settings["inputs"])
    is_keras, is_float64 = settings.get("keras_on_torch", False), torch.get_default_dtype() == torch.float64
    select_keras_backend()
    if is_keras:
        reset_layer_names()  # layers get the same names as when the parameter map was proven
    with keep_float64() if is_float64 else nullcontext():
        model: Module = call_factory(key, settings["factories"]["torch"], settings["arguments"])
    if is_keras:
        model = KerasModule(model)
        model.rebuild = partial(build, initial)
    if is_float64:
        _keep_float64_in_passes(model)
    adapter = build_input_adapter(key, model, names, settings["channels"])
    model.register_forward_pre_hook(partial(_adapt_inputs, adapter), with_kwargs=True)
    output, move = settings["outputs"]["torch"], settings.get("moved_axes", {}).get("torch")
    select = _select_outputs if isinstance(output, list) else _select_output
    model.register_forward_hook(partial(select, output, move))
    with torch.no_grad():
        model.eval()(**_make_ones(settings["inputs"]))  # lazy layers create their parameters at the first call
    mark_changing_buffers(model, settings["buffers"])
    load_weights(model, initial.weights())
    frozen = set(settings["frozen"])
    for name, parameter in model.named_parameters():
        if name in frozen:
            parameter.requires_grad = False
    noises = {pair["torch"]: Noise(**pair["noise"]) for pair in settings["dropouts"] or ()}
    if isinstance(model, KerasModule):
        # Keras is imported only if the model needs it.
        from torch_impl.keras_batch_norm import align_keras_batch_norm
        from torch_impl.keras_dropout import align_keras_dropout

        align_keras_dropout(model, noises)
        align_keras_batch_norm(model, settings["sync_batch_norm"])
    elif settings["dropouts"] is not None:
        align_dropout(model, noises)
    return model


def _keep_float64_in_passes(model: Module) -> None:
    """Make the model call its forward pass within `keep_float64`, in any thread."""
    # Threads can share this list: the contexts are all equal, and PyTorch keeps its stack of modes for each thread.
    contexts: list[AbstractContextManager[object]] = []

    def enter(module: Module, args: object) -> None:
        contexts.append(keep_float64())
        contexts[-1].__enter__()

    def leave(module: Module, args: object, returned: object) -> None:
        contexts.pop().__exit__(None, None, None)

    model.register_forward_pre_hook(enter, prepend=True)
    model.register_forward_hook(leave, always_call=True)


def _adapt_inputs(
    adapter: InputAdapter, model: Module, args: tuple[object, ...], inputs: dict[str, torch.Tensor]
) -> Arguments:
    """Convert the arrays of a batch to the arguments of the model, before its forward pass."""
    use_dropout_keys(model, inputs.get("dropout_keys"))
    use_real_rows(model, inputs.get("real_rows"))
    floating = (parameter.dtype for parameter in model.parameters() if parameter.is_floating_point())
    dtype = next(floating, torch.float32)
    return adapter({name: x.to(dtype) if x.is_floating_point() else x for name, x in inputs.items()})


def _select_output(
    name: str, move: tuple[int, int] | None, model: Module, args: tuple[object, ...], returned: object
) -> torch.Tensor:
    """Select the output that the task uses, after the model's forward pass, and move its axis to the labels' order."""
    output = name_tensors(returned)[name]
    return output if move is None else output.movedim(*move)


def _select_outputs(
    names: list[str], moves: list[tuple[int, int] | None], model: Module, args: tuple[object, ...], returned: object
) -> torch.Tensor:
    """Select several outputs, in the order of their labels, and return them one after the other, flat [n, values]."""
    outputs = [_select_output(name, move, model, args, returned) for name, move in zip(names, moves, strict=True)]
    return torch.cat([output.reshape(len(output), -1) for output in outputs], 1)  # some may be [n]


def _make_ones(inputs: dict[str, tuple[str, list[int]]]) -> dict[str, torch.Tensor]:
    """Return a batch of two examples of ones: 1 is valid as an index of an embedding and in a mask.

    inputs: the data type and the shape of one example of each input.
    """
    return {name: torch.ones(2, *shape, dtype=getattr(torch, dtype)) for name, (dtype, shape) in inputs.items()}
