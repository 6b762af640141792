"""Parts of a user's model that a training run would lose or compute differently on several replicas."""

import inspect
from collections.abc import Collection

import torch

from common.map.keras_unsupported import find_lost_parts
from torch_impl.keras_module import KerasModule


def find_unsupported(
    model: torch.nn.Module,
    buffers: Collection[str],
    changed_in_evaluation: Collection[str],
    created: Collection[str],
) -> list[str]:
    """Return a sentence for each part of the model that cannot be trained, with what to do about it.

    Args:
        model: The model.
        buffers: The names of the buffers and parameters that forward passes in training mode change, except the
            buffers of BatchNorm.
        changed_in_evaluation: The names of the buffers and parameters that forward passes in evaluation mode change.
        created: The names of the buffers and parameters that the first forward pass in training mode creates.
    """
    sentences = [
        f"buffer {name} changes in forward passes in evaluation mode, so that evaluations would change the training "
        "run; change it only in training mode"
        for name in changed_in_evaluation
    ]
    sentences += [
        f"buffer {name} is created by the first forward pass in training mode; create it with the model"
        for name in created
    ]
    sentences += [
        f"parameter {name} changes in forward passes, which would change copies of it in some strategies; make it a "
        "buffer, or change it in the optimizer's step"
        for name, _ in model.named_parameters()
        if name in buffers
    ]
    sentences += [
        f"buffer {name} is complex and changes in forward passes, but checkpoints do not support it; make it two real "
        "buffers"
        for name, buffer in model.named_buffers()
        if name in buffers and buffer.is_complex()
    ]
    sentences += [
        f"parameter {name} is {'complex' if parameter.is_complex() else 'of integers'}, which checkpoints and "
        f"optimizers do not support; make it {'two real parameters' if parameter.is_complex() else 'a buffer'}"
        for name, parameter in model.named_parameters()
        if not parameter.is_floating_point()
    ]
    sentences += [
        f"parameter {name} has a gradient hook, which would see the gradients of one replica; remove it"
        for name, parameter in model.named_parameters()
        if parameter._backward_hooks or parameter._post_accumulate_grad_hooks
    ]
    sentences += [
        f"layer {name or 'model'} has a backward hook, which would see the gradients of one replica; remove it"
        for name, module in model.named_modules()
        if module._backward_hooks or module._backward_pre_hooks
    ]
    if inspect.isroutine(getattr(model, "training_step", None)):  # every LightningModule has one
        sentences.append(
            "the model has a training_step, which training does not call; return the network in it, or a plain "
            "torch.nn.Module that calls it, and compute its loss with task=custom"
        )
    embeddings = {
        name or "model": module
        for name, module in model.named_modules()
        if isinstance(module, torch.nn.Embedding | torch.nn.EmbeddingBag)
    }
    sentences += [
        f"layer {name} has max_norm, which changes the weights of one replica in forward passes; remove it"
        for name, module in embeddings.items()
        if module.max_norm is not None
    ]
    sentences += [
        f"layer {name} has scale_grad_by_freq, which counts the tokens of one replica; remove it"
        for name, module in embeddings.items()
        if module.scale_grad_by_freq
    ]
    if isinstance(model, KerasModule):
        sentences += [*find_lost_parts(model.keras), *_find_wrapped_modules(model)]
    return sentences


def _find_wrapped_modules(model: KerasModule) -> list[str]:
    """Return a sentence for each module of PyTorch in a Keras model, which strategies would not copy."""
    return [
        f"layer {path} is a TorchModuleWrapper, whose variables are PyTorch's own; return a torch.nn.Module instead of "
        "a Keras model, or write it with Keras's layers"
        for path, layer in model.layers().items()
        if type(layer).__name__ == "TorchModuleWrapper"
    ]
