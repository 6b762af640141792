"""Sentences about what a recorder cannot see, with what to change in the script."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from torch_impl.record.forward_pass import ModelCall
from torch_impl.record.hand_updates import HandUpdates
from torch_impl.record.loss_calls import LossCall, Operand
from torch_impl.record.step import Step

NO_STEP = (
    "steps: the script ended, and the recorder saw no step of the optimizer; pass the optimizer that the loop steps, "
    "and create the recorder before the loop"
)
NO_SCHEDULER = (
    "scheduler: the optimizer has one, which did not step while the recorder recorded; pass scheduler= to record it"
)
FAILED = "the record ends in step {}, and the training goes on: {}: {}"
CLOSURE = (
    "gradients: the optimizer calls its closure several times in a step; those of the last call are recorded; "
    "compare with an optimizer that calls it once"
)
CLEARED = (
    "gradients: the script sets them to zero directly after its update; those after the backward pass are recorded, "
    "before any clipping"
)
UNKNOWN_OPTIMIZER = "optimizer: the recorder got none, and the script steps {}; pass this optimizer to the recorder"
NO_OPERATIONS = "operations: {}"
OTHER_BACKWARD = (
    "losses: a backward pass does not depend on the last forward pass of the model; it is not recorded; "
    "add the losses, and call backward once"
)


def list_notes(is_sharded: bool, has_layers: bool, entry: torch.nn.Module) -> list[str]:
    """Return the sentences about a model that is not recorded in full.

    Args:
        is_sharded: Whether each rank holds a part of the parameters only.
        has_layers: Whether the recorder sees the layers.
        entry: The module whose hooks run before and after the model.
    """
    sentences = []
    if is_sharded:
        sentences.append(
            "weights, gradients and slots: the parameters are sharded over the ranks; record a run with "
            "DistributedDataParallel or one process"
        )
    if getattr(entry, "_compiled_call_impl", None) is not None:
        sentences.append(
            "inputs and outputs: model.compile() hides them; call torch.compile(model), or record without compilation"
        )
    if type(entry).__name__ == "DataParallel":
        sentences.append("layers: DataParallel copies the model in each step; record a run on one device")
    elif not has_layers:
        sentences.append("layers: torch.compile computes them as one function; record a run without compilation")
    if is_sharded or not has_layers:
        sentences.append("operations: they are not recorded, as the layers; record a run on one device, not compiled")
    return sentences


def list_batch_notes(
    calls: Sequence[ModelCall], loss_calls: Sequence[LossCall], operands: Sequence[Operand]
) -> list[str]:
    """Return the sentences about a micro-batch: its forward passes, its loss functions, and what replaces them."""
    sentences = []
    if not calls:
        sentences.append(
            "inputs and outputs: the recorder saw no forward pass of the model; pass the model that the loop calls"
        )
    elif len(calls) > 1:
        sentences.append(
            f"layers: the script calls the model {len(calls)} times before a backward pass; the layers of the first "
            "call are recorded, and the inputs and outputs of all calls"
        )
    if calls and calls[0].begins_with_part:
        paths = ", ".join(dict.fromkeys(calls[0].parts))
        sentences.append(
            f"inputs and outputs: the script calls layers of the model ({paths}) instead of the model; what these "
            "receive and what the last one returns are recorded; call the model itself to record its inputs and outputs"
        )
    if loss_calls and any(operand.is_selection for operand in operands):
        sentences.append(
            "labels: the script selects from what depends on the outputs by indices or a mask of its own, such as the "
            "actions that an agent chose; the arguments of the loss function are recorded, and not this selection"
        )
    if not loss_calls and operands:
        sentences.append(
            "loss function: the script computes the loss without one of torch.nn.functional; what it combines with the "
            "outputs of the model by -, *, /, indexing, gather or where is recorded as the labels"
        )
    elif not loss_calls:
        sentences.append(
            "labels and loss function: the recorder saw no call of a loss function of torch.nn.functional; compute the "
            "loss with one of them to record its labels"
        )
    return sentences


def list_step_notes(step: Step, optimizer: torch.optim.Optimizer) -> list[str]:
    """Return the sentences about an optimizer step."""
    sentences = []
    if not step.micro_batches:
        sentences.append(
            f"step {step.number}: the optimizer stepped without a backward pass of the model; its inputs, labels and "
            "loss are not recorded; call loss.backward() in each step"
        )
    elif step.gradients is None or not step.gradients.arrays:
        sentences.append(f"step {step.number}: the optimizer stepped without gradients that the recorder saw")
    if isinstance(optimizer, HandUpdates):
        sentences.append(
            "optimizer: the script updates the parameters by hand"
            + (", as SGD does" if optimizer.is_descent else "; the update is not one of SGD without momentum")
        )
    if type(optimizer).__name__ == "ZeroRedundancyOptimizer":
        sentences.append("slots: ZeroRedundancyOptimizer keeps them on several ranks; record a run without it")
    return sentences
