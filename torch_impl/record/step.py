"""Observations of the optimizer step that the script computes now."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Union

import numpy as np
import torch

from common.recording.operation_format import OperationTrace
from common.recording.record_format import OPERAND, StepEvents, StepFacts, name_call
from common.recording.record_writer import Sample
from torch_impl.record.forward_pass import ModelCall
from torch_impl.record.gradients import RecordedGradients
from torch_impl.record.graph import Mark, list_marks
from torch_impl.record.loss_calls import LossCall, Operand

Arrays = dict[str, Union[np.ndarray, Sample]]  # noqa: UP007  Python 3.9 evaluates it


@dataclass
class MicroBatch:
    """The forward passes and the loss of a backward pass.

    Attributes:
        calls: The forward passes.
        loss_calls: The calls of loss functions.
        loss: The loss.
        operands: What a script combines with the outputs if it computes the loss without a loss function.
        operations: The operations from the inputs of the model to the loss; None if they were not observed.
        others: The arrays of the script's batch that neither the model nor the loss received.
        keys: The names in the script's batch of those that they received, by their names in a record.
        pass_losses: The losses of several backward passes through the same forward passes, whose sum is the loss.
    """

    calls: list[ModelCall]
    loss_calls: list[LossCall]
    loss: float | None
    operands: list[Operand]
    operations: OperationTrace | None
    others: Arrays = field(default_factory=dict)
    keys: dict[str, str] = field(default_factory=dict)
    pass_losses: list[float] = field(default_factory=list)

    def add_pass(self, later: MicroBatch, is_first: bool) -> None:
        """Add another backward pass through the same forward passes.

        Args:
            later: The loss of the pass, its calls of loss functions, and its operands.
            is_first: Whether the script has set the gradients of the earlier passes to zero.
        """
        if is_first:
            self.loss, self.loss_calls, self.operands, self.pass_losses = later.loss, [], [], []
        elif self.loss is None or later.loss is None:
            self.loss, self.pass_losses = None, []
        else:
            self.pass_losses = [*(self.pass_losses or [self.loss]), later.loss]
            self.loss += later.loss
        self.loss_calls, self.operands = [*self.loss_calls, *later.loss_calls], [*self.operands, *later.operands]
        self.operations = None  # the list has ended before this loss

    def name_received(self) -> Arrays:
        """Return the arrays that the model and the loss received, by their names within a micro-batch."""
        arrays = {f"input/{name}": array for call in self.calls[:1] for name, array in call.inputs.items()}
        arrays |= {f"label/{name}": array for name, array in self._name_labels().items()}
        later = enumerate(self.calls[1:], start=1)
        return arrays | {f"call/{index}/{name}": x for index, call in later for name, x in call.inputs.items()}

    @property
    def received_states(self) -> dict[str, bool]:
        """Return whether recurrent layers received a state that is not zero in the first forward pass, by path."""
        return self.calls[0].states.received if self.calls else {}

    def name_arrays(self, number: int) -> Arrays:
        """Return the batch and the outputs by their names in a record. number: index of the micro-batch."""
        kinds = {f"batch/{number}/label": self._name_labels(), f"batch/{number}/other": self.others}
        for index, call in enumerate(self.calls):
            prefix = name_call(number, index)
            kinds |= {f"{prefix}/input": call.inputs, f"{prefix}/output": call.outputs}
        return {f"{kind}/{name}": array for kind, arrays in kinds.items() for name, array in arrays.items()}

    def name_operands(self) -> None:
        """Name the operands that are labels in the list of operations."""
        numbers = {id(operand.array): operand.number for operand in self.operands}
        for name, array in self._name_labels().items():
            number = numbers.get(id(array))
            if self.operations is not None and number is not None:
                self.operations["names"].setdefault(f"batch/0/label/{name}", number)

    def _name_labels(self) -> Arrays:
        labels = {
            f"{name}.{index}" if index else name: label
            for index, call in enumerate(self.loss_calls)
            for name, label in call.labels.items()
        }
        operands = {id(operand.array): operand.array for operand in self.operands}  # a script may use one several times
        return labels or {f"{OPERAND}{index}": array for index, array in enumerate(operands.values())}


@dataclass
class Step:
    """An optimizer step.

    Attributes:
        number: The number of the step, from 1.
        micro_batches: The micro-batches so far.
        loss_calls: The calls of loss functions for which no backward pass was seen yet.
        operands: What the script combined with outputs of the model since then.
        scaled_loss: The last loss that a gradient scaler received.
        loss_scale: The factor by which the scaler multiplied the loss.
        max_norm: The norm to which the script clipped the gradients.
        clips: How often it clipped them.
        single_clips: How often it clipped a single one.
        rates: The learning rates that the update uses.
        gradients: The gradients that the optimizer received.
        closure_calls: How often the optimizer called its closure.
        is_skipped: Whether a gradient scaler left the update out.
        dropped_micro_batches: The number of micro-batches whose gradients the script set to zero.
        passes_of_others: The number of micro-batches for the update of another optimizer whose gradients remain.
        changed_weights: The parameters before this update that the script changed since the previous one, by name.
    """

    number: int
    micro_batches: list[MicroBatch] = field(default_factory=list)
    loss_calls: list[LossCall] = field(default_factory=list)
    operands: list[Operand] = field(default_factory=list)
    scaled_loss: torch.Tensor | None = None
    loss_scale: float | None = None
    max_norm: float | None = None
    clips: int = 0
    single_clips: int = 0
    rates: list[float] = field(default_factory=list)
    gradients: RecordedGradients | None = None
    closure_calls: int = 0
    is_skipped: bool = False
    dropped_micro_batches: int = 0
    passes_of_others: int = 0
    changed_weights: dict[str, np.ndarray] = field(default_factory=dict)

    def find_micro_batch(self, marks: Collection[Mark]) -> MicroBatch | None:
        """Return the last micro-batch on whose forward passes a loss depends. marks: what the loss depends on."""
        return next((x for x in reversed(self.micro_batches) if not list_marks(x.calls).isdisjoint(marks)), None)

    def describe(self) -> StepFacts:
        """Return the numbers of the step."""
        facts: StepFacts = {
            "step": self.number,
            "micro_batches": len(self.micro_batches),
            "losses": [batch.loss for batch in self.micro_batches],
            "rates": self.rates,
            "loss_scale": self.loss_scale,
            "skipped": self.is_skipped,
            "max_norm": self.max_norm,
            "calls": [len(batch.calls) for batch in self.micro_batches],
            "terms": [[call.describe(self.loss_scale) for call in batch.loss_calls] for batch in self.micro_batches],
            **self._describe_passes(),
        }
        if self.gradients is not None and self.gradients.clip_factors:
            facts["clip_factors"] = self.gradients.clip_factors
        if self.gradients is not None and self.gradients.decays:
            facts["decays"] = self.gradients.decays
        if len(self.micro_batches) < self.clips == self.single_clips:
            facts["clipped_apart"] = True
        if self.max_norm is not None and 1 < len(self.micro_batches) == self.clips:
            facts["clipped_parts"] = self.max_norm
        # An optimizer that calls its closure again clears the gradients on purpose
        if self.dropped_micro_batches and self.closure_calls < 2:
            facts["dropped_micro_batches"] = self.dropped_micro_batches
        if self.passes_of_others:
            facts["passes_of_others"] = self.passes_of_others
        if self.changed_weights:
            facts["changed_weights"] = [*self.changed_weights]
        return facts

    def _describe_passes(self) -> StepEvents:
        """Return what some forward and backward passes have."""
        events: StepEvents = {}
        if not all(call.is_training for batch in self.micro_batches for call in batch.calls):
            events["evaluation_mode"] = True
        if self.micro_batches and self.micro_batches[0].received_states:
            events["received_states"] = self.micro_batches[0].received_states
        if self.micro_batches and self.micro_batches[0].keys:
            events["keys"] = self.micro_batches[0].keys
        if any(batch.pass_losses for batch in self.micro_batches):
            events["pass_losses"] = [batch.pass_losses for batch in self.micro_batches]
        return events

    def name_batch_arrays(self) -> Arrays:
        """Return the arrays of the micro-batches, the layers and changed weights, as they are named in a record."""
        arrays: Arrays = {}
        for number, batch in enumerate(self.micro_batches):
            arrays.update(batch.name_arrays(number))
        arrays.update({f"changed_weight/{name}": array for name, array in self.changed_weights.items()})
        calls = self.micro_batches[0].calls if self.micro_batches else []
        return {**arrays, **(calls[0].layers if calls else {})}

    def take_loss(self, losses: object) -> torch.Tensor | None:
        """Return the loss of a backward pass, as the script computed it: without the factor of a gradient scaler."""
        loss = losses if self.scaled_loss is None else self.scaled_loss
        if isinstance(loss, (list, tuple)) and len(loss) == 1:
            loss = loss[0]
        self.scaled_loss = None
        return loss if isinstance(loss, torch.Tensor) and loss.numel() == 1 else None
