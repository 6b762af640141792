"""A recorder of the first optimizer steps of a training script, in the process of the script.

Hooks of the model and the optimizer, and functions of PyTorch that are replaced for the time of the recording, report
what the script computes. The recorder copies tensors and changes nothing: no values, no graph, no random numbers.
After the last recorded step it removes itself.
"""

from __future__ import annotations

import atexit
import functools
import warnings
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import torch

from common.recording.following import MappedLoader
from common.recording.record_format import ModelFacts
from common.recording.record_writer import RecordWriter, limit_copied_bytes
from torch_impl.record import notes
from torch_impl.record.arrays import copy_tensor, view_tensor
from torch_impl.record.check_arguments import check_arguments, follow_record
from torch_impl.record.copies import Copies
from torch_impl.record.environment import describe_environment, find_rank
from torch_impl.record.gradients import GradientObserver
from torch_impl.record.hand_updates import HandUpdates
from torch_impl.record.model_calls import CallObserver
from torch_impl.record.model_facts import (
    describe_all_layers,
    describe_model,
    find_entry,
    has_compiled_layers,
    is_sharded,
    name_variables,
    unwrap_model,
)
from torch_impl.record.operation_tracer import OperationMode
from torch_impl.record.optimizer_facts import (
    describe_optimizer,
    describe_scheduler,
    is_scheduled,
    unwrap_optimizer,
    view_slots,
)
from torch_impl.record.patches import is_compiling
from torch_impl.record.script_patches import ScriptPatches
from torch_impl.record.step import Arrays
from torch_impl.record.step_observer import StepObserver
from torch_impl.record.update_hooks import Arguments, UpdateHooks
from torch_impl.record.weight_samples import WeightSamples

if TYPE_CHECKING:
    from torch_impl.record.follower import Follower


class Recorder:
    """Records the first optimizer steps of a training script. Create it after the model and the optimizer.

    Failures to record do not stop the training: record.json names the missing parts in `not_recorded`.
    """

    def __init__(  # noqa: PLR0913  scripts pass them by name
        self,
        directory: str,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer | None,
        steps: int = 3,
        scheduler: object = None,
        max_bytes: int = 2 << 30,
        follow: str | Follower | None = None,
        map: str | None = None,
    ) -> None:
        """Start to record.

        Args:
            directory: The directory of the record. An earlier record there is replaced.
            model: The model as the script calls it, also if DistributedDataParallel, Accelerate or torch.compile
                wrapped it.
            optimizer: The optimizer that updates it; None if the script updates the parameters by hand.
            steps: The number of optimizer steps to record.
            scheduler: The scheduler of the learning rate. Without it, the recorder sees the scheduler when it steps.
            max_bytes: The largest number of bytes of this process's record. Samples stand for tensors that do not fit.
            follow: The directory of another record, whose initial weights the model takes. See also `batches`.
            map: The file that pairs the model's variables with the other record's, if names and layers cannot.

        Raises:
            ValueError: An argument is wrong, the directory has files that no recorder wrote, or the model cannot follow
                the other record.
        """
        self._optimizer = check_arguments(model, optimizer, steps)
        self._model, self._steps = unwrap_model(model), steps
        self._is_sharded = is_sharded(model)
        self._follower = follow_record(follow, map, directory)
        if self._follower is not None:
            self._follower.follow(model)
        rank, world_size = find_rank()
        environment = describe_environment(self._model)
        environment["flags"]["compiled"] = has_compiled_layers(model)
        self._writer = RecordWriter(str(directory), "torch", environment, rank, world_size, max_bytes)
        self._has_started, self._has_updated = False, False
        self._is_recording = self._writer.is_open
        operations = OperationMode(lambda reason: self._writer.note(notes.NO_OPERATIONS.format(reason)))
        self._calls = CallObserver(self._model, self._before_pass, Copies(self._get_copied_bytes(step=1)), operations)
        if self._follower is not None:
            self._writer.facts["follows"] = self._follower.identity
            self._calls.follow_layer = self._follower.compute_layer
        self._gradients = GradientObserver(self._name_parameters)
        self._observer = StepObserver(self._optimizer, self._calls, self._gradients, self._writer.note)
        self._observer.scheduler, self._samples = scheduler, WeightSamples()
        if self._is_recording:
            self._install(model, world_size)

    def batches(self, loader: Iterable[Any]) -> Iterable[Any]:
        """Return an iterable over the batches. While the recorder follows a record, they are those of that record."""
        if self._follower is not None:
            return MappedLoader(loader, self._follower.replace_batch)
        is_observed = isinstance(loader, torch.utils.data.DataLoader) or not self._is_recording
        return loader if is_observed else MappedLoader(loader, self._see_batch)

    def _see_batch(self, batch: Any) -> Any:  # noqa: ANN401  as the script's loader returns it
        if self._is_recording:
            self._guard(self._observer.loaders.take)(batch)
        return batch

    def close(self) -> None:
        """End the record before all steps are recorded. The end of the script does it too."""
        if self._is_recording:
            self._guard(self._see_hand_update)()
        if self._is_recording:
            self._writer.warn_of_no_step(notes.NO_STEP)
            self._finish(complete=False)

    def _install(self, model: torch.nn.Module, world_size: int) -> None:
        atexit.register(self.close)
        entry, has_layers = find_entry(model)
        for sentence in notes.list_notes(self._is_sharded, has_layers, entry):
            self._writer.note(sentence)
        self._calls.register(entry, self._guard, has_layers)
        self._calls.operations.is_allowed = has_layers and not self._is_sharded
        if world_size > 1:
            self._gradients.register_local(self._guard)
        self._hooks = UpdateHooks(
            self._optimizer,
            self._check_before(self._before_update),
            self._guard(self._write_step),
            self._observer.on_other_update,
        )
        self._patches = ScriptPatches(self._observer, self._after_scaler_step, self._see_hand_update, self._guard)
        if self._follower is not None:
            self._follower.before_batch = self._guard(self._see_hand_update)
            self._follower.after_batch = self._guard(self._observer.loaders.take)

    def _guard(self, function: Callable[..., object]) -> Callable[..., Any]:
        """Return a function that ends the recording if `function` raises, and does nothing while PyTorch compiles."""

        @functools.wraps(function)
        def guarded(*args: object, **kwargs: object) -> object:
            is_observing = self._follower is not None and self._follower.is_observing
            if is_compiling() or is_observing or not self._is_recording:
                return None
            try:
                with OperationMode.pause():
                    return function(*args, **kwargs)
            except Exception as error:
                sentence = notes.FAILED.format(self._observer.step.number, type(error).__name__, error)
                self._writer.note(sentence)
                warnings.warn(sentence, RuntimeWarning, stacklevel=2)
                self._finish(complete=False)
                return None

        return guarded

    def _check_before(self, function: Callable[..., object]) -> Callable[..., Any]:
        """Return a guarded function that first raises UserError if the model lacks the followed record's weights."""

        def checked(*args: object, **kwargs: object) -> object:
            if self._follower is not None and self._is_recording:
                self._follower.check_weights(x for group in self._optimizer.param_groups for x in group["params"])
                if self._observer.layers is not None:
                    self._follower.check_order(self._model, self._observer.layers)
            return self._guard(function)(*args, **kwargs)

        return checked

    def _name_variables(self) -> dict[str, torch.Tensor]:
        return {} if self._is_sharded else name_variables(self._model)

    def _name_parameters(self) -> dict[str, torch.Tensor]:
        variables = self._name_variables().items()
        return {name: tensor for name, tensor in variables if isinstance(tensor, torch.nn.Parameter)}

    def _get_copied_bytes(self, step: int) -> int:
        size = sum(tensor.numel() * tensor.element_size() for tensor in self._name_variables().values())
        return limit_copied_bytes(size, step)

    def _view_weights(self) -> Arrays:
        return {f"weight/{name}": view_tensor(tensor) for name, tensor in self._name_variables().items()}

    def _before_pass(self) -> None:
        """Notice the begin of a forward pass."""
        self._see_hand_update()
        if self._is_recording:
            self._start()

    def _see_hand_update(self) -> None:
        """Record the update that a script without an optimizer has computed since its last backward pass."""
        optimizer = self._optimizer
        if not (isinstance(optimizer, HandUpdates) and self._observer.step.micro_batches):
            return
        if optimizer.have_weights_changed():
            optimizer.step()

    def _start(self) -> None:
        """Write the state before the first step."""
        if not self._has_started:
            self._has_started = True
            if isinstance(self._optimizer, HandUpdates):
                self._optimizer.keep_weights()
            self._writer.write_start({**self._view_weights(), **view_slots(self._optimizer, self._name_variables())})

    def _before_update(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Arguments | None:
        if self._follower is None or not self._follower.is_waiting:  # else the closure of the step calls the model
            self._start()
        parameters = self._name_parameters()
        changed = {name: copy_tensor(parameters[name]) for name in self._samples.list_changed(parameters)}
        self._observer.step.changed_weights = changed
        return self._observer.before_update(args, kwargs, self._check_before(self._observer.after_closure))

    def _after_scaler_step(self, optimizer: object) -> None:
        """Record a step that a gradient scaler skipped: the optimizer did not step."""
        step = self._observer.step
        if unwrap_optimizer(optimizer) is self._optimizer and step.micro_batches and step.gradients is None:
            self._observer.take_gradients()
            step.is_skipped = True
            self._write_step()

    def _write_step(self) -> None:
        """Write the step that has just ended, and end the record after the last one."""
        step, facts, variables = self._observer.step, self._writer.facts, self._name_variables()
        facts["model"] = facts["model"] or self._describe_model(variables)
        if isinstance(self._optimizer, HandUpdates) or not facts["optimizer"]:
            facts["optimizer"] = describe_optimizer(self._optimizer, variables)
        facts["loss"] = self._observer.loss
        if self._observer.scheduler is not None:
            facts["scheduler"] = describe_scheduler(self._observer.scheduler)
        elif step.number == self._steps and is_scheduled(self._optimizer):
            self._writer.note(notes.NO_SCHEDULER)
        facts["environment"]["flags"]["autocast"] = self._calls.autocast
        for sentence in notes.list_step_notes(step, self._optimizer):
            self._writer.note(sentence)
        gradients = step.gradients.arrays if step.gradients is not None else {}
        arrays: Arrays = {**self._view_weights(), **gradients}
        if gradients and not (step.is_skipped or self._has_updated):  # without gradients, nothing is updated
            self._has_updated = True
            arrays.update(view_slots(self._optimizer, variables))
            self._gradients.remove_local()
        operations = step.micro_batches[0].operations if step.micro_batches else None
        if step.number == 1 and operations is not None:
            self._writer.write_operations(operations)
        self._writer.write_step(step.describe(), {**arrays, **step.name_batch_arrays()})
        if self._follower is not None:
            self._follower.end_step()
        if isinstance(self._optimizer, HandUpdates):
            self._optimizer.keep_weights()
        else:
            self._samples.take(self._name_parameters())
        self._observer.begin_step(step.number + 1)
        self._calls.copies = Copies(self._get_copied_bytes(step.number + 1))
        if step.number == self._steps or not self._writer.is_open:
            self._finish(complete=step.number == self._steps)

    def _describe_model(self, variables: dict[str, torch.Tensor]) -> ModelFacts:
        layers, draws = self._observer.layers or describe_all_layers(self._model, variables), self._calls.draws
        facts = describe_model(self._model, layers)
        return {**facts, "random_layers": draws.layers, "random_state": draws.first_state} if draws.layers else facts

    def _finish(self, complete: bool) -> None:
        """End the record, and leave nothing of it in the script."""
        self._is_recording = False
        if self._follower is not None:
            self._follower.close()
            for sentence in self._follower.notes:
                self._writer.note(sentence)
        self._calls.remove()
        self._gradients.remove()
        self._hooks.remove()
        self._patches.restore()
        self._observer.forget_hooks()
        atexit.unregister(self.close)
        self._writer.close(complete)
        del self._model, self._optimizer, self._observer, self._calls, self._gradients, self._hooks, self._patches
        del self._samples
