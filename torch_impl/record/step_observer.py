"""Observer of the steps of a training script, from the forward pass to the gradients that the optimizer receives."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Sequence
from typing import Any

import torch

from common.recording.record_format import LayerFacts, LossFacts
from torch_impl.record import notes
from torch_impl.record.gradients import GradientObserver
from torch_impl.record.graph import HasMarks, Mark, find_functions, find_marks, list_marks, share_marks, split_used
from torch_impl.record.hand_updates import HandUpdates
from torch_impl.record.loader_batches import LoaderBatches
from torch_impl.record.loss_calls import LossCall, describe_loss_call, describe_operands, find_labels
from torch_impl.record.model_calls import CallObserver
from torch_impl.record.optimizer_facts import read_rates, unwrap_optimizer
from torch_impl.record.selections import describe_selections
from torch_impl.record.step import MicroBatch, Step
from torch_impl.record.update_hooks import Arguments

MAX_OPERANDS = 64  # a loss that combines the outputs with more tensors does not show which of them are labels


class StepObserver:
    """Collects what the hooks and the replaced functions report.

    Attributes:
        step: The step that the script computes now.
        loss: The first loss function that the script called.
        layers: The layers of the first micro-batch; None until its backward pass.
        scheduler: The scheduler of the optimizer, once it was seen.
        operations: The mode that observes the operations of the first micro-batch.
        loaders: Keeps the batches of the script's loaders.
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        calls: CallObserver,
        gradients: GradientObserver,
        note: Callable[[str], None],
    ) -> None:
        """Prepare to observe.

        Args:
            optimizer: The optimizer.
            calls: Observes the forward passes.
            gradients: Copies the gradients.
            note: Receives sentences about what cannot be recorded.
        """
        self.step = Step(1)
        self.loss: LossFacts | None = None
        self.layers: list[LayerFacts] | None = None
        self.scheduler: object = None
        self.operations, self.loaders = calls.operations, LoaderBatches()
        self._optimizer, self._note = optimizer, note
        self._calls, self._gradients = calls, gradients
        self._clips_own = True  # whether the script clips gradients of the model now
        self._notes_of_pass: list[str] = []
        self._add_pass: Callable[[], None] | None = None  # adds the current backward pass to an earlier micro-batch
        self._loss_calls_of_pass: list[LossCall] = []
        self._most_loss_calls = MAX_OPERANDS  # number of loss calls after which calls of dropped graphs are forgotten
        self._used_elsewhere = 0  # micro-batches of this step after which another optimizer updated

    def on_loss(self, function: object, result: object, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Notice a call of a loss function."""
        if torch.is_grad_enabled():
            call = None
            with contextlib.suppress(RuntimeError):  # a tensor of torch.func has no values to copy
                call = describe_loss_call(function, result, args, kwargs, self._calls.copies)
                if call is not None:
                    self.operations.name_labels(find_labels(function, args, kwargs))
            self.step.loss_calls += [call] if call is not None else []
            if len(self.step.loss_calls) > self._most_loss_calls:
                # The script has dropped the graphs of other calls, such as calls in evaluations
                self.step.loss_calls = [known for known in self.step.loss_calls if list_marks([known])]
                self._most_loss_calls = max(MAX_OPERANDS, 2 * len(self.step.loss_calls))

    def on_operation(self, _: object, result: object, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Notice an operation: a script may compute its loss without a loss function."""
        if not (self._calls.may_compute_loss and torch.is_grad_enabled()):
            return
        if len(self.step.operands) >= MAX_OPERANDS:
            self.step.operands = [known for known in self.step.operands if list_marks([known])]
        if len(self.step.operands) < MAX_OPERANDS:
            with contextlib.suppress(RuntimeError):  # a tensor of torch.func has no values to copy
                self.step.operands += describe_operands(
                    result, (args, kwargs), self._calls.copies, self.operations.find_number
                )

    def on_scaled_loss(self, scaler: Any, loss: Any) -> None:  # noqa: ANN401  its class depends on the version
        """Notice that a gradient scaler multiplied a loss."""
        if scaler.is_enabled():
            self.step.scaled_loss, self.step.loss_scale = loss, float(scaler.get_scale())

    def before_backward(self, tensors: Any) -> None:  # noqa: ANN401  a tensor or several
        """Notice the begin of a backward pass: the end of a micro-batch."""
        losses = [tensors] if isinstance(tensors, torch.Tensor) else list(tensors)
        earlier = [call for batch in self.step.micro_batches for call in batch.calls]
        marked: list[HasMarks] = [*self._calls.pending, *earlier, *self.step.loss_calls, *self.step.operands]
        marks = find_marks(losses, list_marks(marked))
        has_pending_calls = bool(self._calls.pending)
        calls = self._calls.take(marks)
        loss_calls = self._take_loss_calls(losses, marks)
        has_many_operands = len(self.step.operands) >= MAX_OPERANDS
        operands, self.step.operands = split_used(self.step.operands, marks)
        loss = self.step.take_loss(losses)
        self._calls.is_paused = True
        shared = None if calls else self.step.find_micro_batch(marks)
        if has_pending_calls and not calls and shared is None:
            self._notes_of_pass = [notes.OTHER_BACKWARD]
            return
        operands = [] if has_many_operands else operands
        selections = losses, list_marks(calls), self._calls.copies, self.operations.find_number
        operands = [*operands, *describe_selections(*selections)]
        value = float(loss.detach()) if loss is not None else None
        if shared is not None:
            is_first = self._gradients.are_cleared()
            self._add_pass = lambda: self._add_to(shared, MicroBatch([], loss_calls, value, operands, None), is_first)
            return
        self._notes_of_pass = notes.list_batch_notes(calls, loss_calls, operands)
        self._see_earlier_passes()
        operations = self.operations.finish(loss) if self.operations.is_observing else None
        batch = MicroBatch(calls, loss_calls, value, operands, operations)
        batch.name_operands()
        batch.others, batch.keys = self.loaders.describe(batch.name_received(), self._calls.copies)
        for operand in self.step.operands:
            operand.number = None  # the list of operations has ended
        self.step.micro_batches.append(batch)
        if loss_calls and self.loss is None:
            self.loss = loss_calls[0].facts
        if calls and self.layers is None:
            self.layers = calls[0].facts
        self._calls.records_layers = self.layers is None

    def _take_loss_calls(self, losses: Sequence[torch.Tensor], marks: set[Mark]) -> list[LossCall]:
        """Return the calls of loss functions on which losses depend. marks: the marks on whose nodes they depend."""
        known_calls = self.step.loss_calls
        loss_calls, self.step.loss_calls = split_used(known_calls, marks)
        self._loss_calls_of_pass = loss_calls
        kept = {id(call) for call in [*loss_calls, *self.step.loss_calls]}
        for call in known_calls:
            if id(call) not in kept:
                call.forget_hook()
        for mark, functions in find_functions(losses, list_marks(loss_calls)).items():
            for call in loss_calls:
                call.functions |= functions if mark in list_marks([call]) else set()
        return loss_calls

    def _add_to(self, shared: MicroBatch, later: MicroBatch, is_first: bool) -> None:
        """Add a backward pass to the micro-batch with the same forward passes.

        Args:
            shared: The micro-batch.
            later: The loss, its loss functions and operands.
            is_first: Whether the script has set the gradients of the earlier passes to zero.
        """
        self._used_elsewhere = 0 if is_first else self._used_elsewhere
        shared.add_pass(later, is_first)
        shared.others, shared.keys = self.loaders.describe(shared.name_received(), self._calls.copies)

    def begin_step(self, number: int) -> None:
        """Begin a step. A backward pass of this step may need losses that the script has computed before."""
        loss_calls = [call for call in self.step.loss_calls if list_marks([call])]
        operands = [operand for operand in self.step.operands if list_marks([operand])]
        self.step = Step(number, loss_calls=loss_calls, operands=operands)

    def on_other_update(self, optimizer: torch.optim.Optimizer) -> None:
        """Notice that an optimizer updated. It may train another model, whose loss depends on this model."""
        if isinstance(self._optimizer, HandUpdates) and self._optimizer.shares_parameters(optimizer):
            self._note(notes.UNKNOWN_OPTIMIZER.format(type(optimizer).__name__))
        elif optimizer is not self._optimizer and self.step.micro_batches:
            self._used_elsewhere = len(self.step.micro_batches)
            self._calls.records_layers = self.step.number == 1

    def _see_earlier_passes(self) -> None:
        """Notice whether the script has set the gradients of the step's earlier passes to zero.

        An optimizer may use them before, to change the weights for the next pass, as sharpness-aware minimization does.
        """
        if not self.step.micro_batches:
            self._gradients.keep_weights()
        elif self._gradients.are_cleared():
            self._forget_passes_of_others()
            if not self._gradients.have_weights_changed():
                self.step.dropped_micro_batches = len(self.step.micro_batches)

    def _forget_passes_of_others(self) -> None:
        """Forget the micro-batches for the update of another optimizer, such as the generator's of a GAN."""
        if self._used_elsewhere:
            del self.step.micro_batches[: self._used_elsewhere]
            self.loss, self.layers = (None, None) if self.step.number == 1 else (self.loss, self.layers)
        self._used_elsewhere = 0

    def after_backward(self) -> None:
        """Notice the end of a backward pass."""
        self._calls.is_paused = False
        for call in self._loss_calls_of_pass:
            call.forget_hook()
        has_changed = self._gradients.copy_after_backward()
        batches = self.step.micro_batches
        if has_changed and self._add_pass is not None:  # else it computes gradients of another model only
            self._add_pass()
        self._add_pass = None
        if not has_changed and batches and not batches[-1].calls:
            batches.pop()  # the pass of another model, such as the discriminator of this generator
        for sentence in self._notes_of_pass if has_changed else []:
            self._note(sentence)
        self._notes_of_pass = []

    def forget_hooks(self) -> None:
        """Remove the hooks of the results of loss functions."""
        for call in [*self.step.loss_calls, *self._loss_calls_of_pass]:
            call.forget_hook()

    def after_grad(self, outputs: Any, gradients: object) -> None:  # noqa: ANN401  a tensor or several
        """Notice gradients by the inputs of the model: a loss that they enter depends on the call, too."""
        tensors = [outputs] if isinstance(outputs, torch.Tensor) else list(outputs)
        share_marks(find_marks(tensors, list_marks(self._calls.pending)), gradients)

    def before_clip(self, parameters: Collection[torch.Tensor] | None) -> None:
        """Copy the gradients that are clipped, if the script has changed them after the backward pass.

        Args:
            parameters: The parameters whose gradients are clipped, if they are known.
        """
        self._clips_own = parameters is None or self._gradients.may_have(parameters)
        self.step.single_clips += self._clips_own and parameters is not None and len(parameters) == 1
        if self._clips_own and self.step.max_norm is None and self.step.loss_scale is None:
            self._gradients.copy_before_clip()

    def on_clip(self, max_norm: float) -> None:
        """Notice that the script clips the norm of gradients, unless they are those of another model."""
        if self._clips_own:
            self.step.max_norm = max_norm
            self.step.clips += 1

    def on_scheduler_step(self, scheduler: object) -> None:
        """Notice that a scheduler steps."""
        if unwrap_optimizer(getattr(scheduler, "optimizer", None)) is self._optimizer:
            self.scheduler = self.scheduler or scheduler

    def before_update(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], on_closure: Callable[[], object]
    ) -> Arguments | None:
        """Notice the begin of an update: copy the gradients that the optimizer receives.

        An optimizer that has a closure receives them when the closure ends.

        Args:
            args: The positional arguments of the step. The first one is the optimizer.
            kwargs: The keyword arguments of the step.
            on_closure: Called without arguments after each call of the closure.

        Returns:
            The arguments for the step, with an observed closure; None if the step has no closure.
        """
        closure = args[1] if len(args) > 1 else kwargs.get("closure")
        if not callable(closure):
            self.take_gradients()
            return None

        def observed_closure() -> object:
            result = closure()
            on_closure()
            return result

        return (args[0], observed_closure), {}

    def after_closure(self) -> None:
        """Notice that the optimizer called its closure."""
        self.step.closure_calls += 1
        if self.step.closure_calls > 1:
            self._note(notes.CLOSURE)
        self.take_gradients()

    def take_gradients(self) -> None:
        """Copy the gradients that the optimizer receives."""
        step, optimizer = self.step, self._optimizer
        step.passes_of_others = self._used_elsewhere
        self._used_elsewhere, self._calls.records_layers = 0, self.layers is None
        remaining_scale = getattr(optimizer, "grad_scale", None)  # a fused optimizer divides the gradients by it
        has_infinity = getattr(optimizer, "found_inf", None)
        if isinstance(optimizer, HandUpdates) and self._gradients.are_cleared():
            step.gradients = self._gradients.take_cleared()
            self._note(notes.CLEARED)
        else:
            if self._gradients.are_cleared():
                step.dropped_micro_batches = len(step.micro_batches)
            step.gradients = self._gradients.take(
                1 if step.loss_scale is None else step.loss_scale,
                1 if remaining_scale is None else float(remaining_scale),
            )
        if isinstance(optimizer, HandUpdates):
            optimizer.explain(step.gradients.arrays)
        step.rates = read_rates(optimizer)
        step.is_skipped = has_infinity is not None and bool(has_infinity)
