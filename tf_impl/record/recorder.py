"""A recorder of the first optimizer steps of a training script, in the process of the script.

A compiled step cannot be observed, and an observed step would be compiled to other roundings. So the recorder first
rehearses each step: it computes it eagerly with the same weights, batch and random states, observes it, and undoes all
of its effects. Then the step runs as it always does, and the recorder reads the weights and slots around it. A step
that runs eagerly is observed itself.
"""

from __future__ import annotations

import atexit
import contextlib
import warnings
from collections.abc import Callable, Collection
from typing import Any

import tensorflow as tf

from common.recording.record_writer import MIN_COPIED_BYTES, RecordWriter, limit_copied_bytes
from tf_impl.record import notes
from tf_impl.record.environment import describe_environment, find_rank
from tf_impl.record.finished_step import FinishedStep
from tf_impl.record.gradients import relative_difference
from tf_impl.record.layer_observer import describe_layers
from tf_impl.record.model_facts import Layer, describe_model, find_layer_class, name_by_identity, name_variables
from tf_impl.record.optimizer_facts import (
    Optimizer,
    check_optimizer,
    count_updates,
    describe_optimizer,
    describe_schedule,
    name_slot_arrays,
    read_loss_scale,
    read_rate,
    read_slots,
)
from tf_impl.record.patches import Patches
from tf_impl.record.rehearsal import NotVisibleError, Rehearsal
from tf_impl.record.step import Step
from tf_impl.record.step_observer import StepObserver
from tf_impl.record.tensors import Arrays, Copies, count_bytes, list_results, name_tensors, to_array

MAX_MICRO_BATCHES = 64
FUNCTION = type(tf.function(lambda: None))


class Recorder:
    """Records the first optimizer steps of a training script. Create it after the model and the optimizer.

    What cannot be recorded is no error of the training: record.json names it in `not_recorded`.

    Attributes:
        is_recording: Whether steps are still to be recorded.
        is_compiled_by_xla: Whether the script compiles its steps with XLA.
        writer: The writer of the record.
    """

    def __init__(
        self, directory: str, model: Layer, optimizer: Optimizer, steps: int = 3, max_bytes: int = 2 << 30
    ) -> None:
        """Start to record.

        Args:
            directory: The directory of the record. An earlier record there is replaced.
            model: The Keras model or layer.
            optimizer: The Keras optimizer that updates it.
            steps: The number of optimizer steps to record.
            max_bytes: The largest number of bytes of this process's record. Samples stand for tensors that do not fit.

        Raises:
            ValueError: An argument is wrong, or the directory has files that no recorder wrote.
        """
        find_layer_class(model)
        check_optimizer(optimizer)
        check_steps(steps)
        rank, world_size = find_rank()
        self.writer = RecordWriter(
            str(directory), "tensorflow", describe_environment(model), rank, world_size, max_bytes
        )
        self._model, self._optimizer, self._steps = model, optimizer, steps
        self._observer = StepObserver(model, optimizer, self._before_update, self.guard)
        self._patches = Patches()
        self.is_compiled_by_xla = False
        self._has_started = False
        self._is_in_function = False  # whether a tf.function of the script runs
        self._iterations = 0
        self.is_recording = self.writer.is_open
        if self.is_recording:
            atexit.register(self.close)

    def step(self) -> contextlib.AbstractContextManager[None]:
        """Return a context for one training step: `with recorder.step(): loss = train_step(x, y)`.

        A tf.function is seen if the context calls it with the tensors of the batch. Several contexts without an update
        between them are the micro-batches of one optimizer step.
        """
        return self._record_step() if self.is_recording else contextlib.nullcontext()

    def close(self) -> None:
        """End the record before all steps are recorded. The end of the script does it too."""
        if self.is_recording:
            if not self.writer.facts["steps"]:
                self.writer.note(notes.NO_STEP)
            self._finish(complete=False)

    def rehearse(self, function: Callable[[], object], iterators: Collection[object] = ()) -> object:
        """Compute a step eagerly, observe it, and undo its effects. Return what it returned.

        Args:
            function: Computes the step.
            iterators: Iterators that it may use.
        """
        self._observer.is_rehearsal = True
        try:
            with Rehearsal(not self._is_built(), self.is_compiled_by_xla, iterators):
                result = function()
                return [to_array(tensor) for tensor in list_results(result)]
        except NotVisibleError as error:
            self.writer.note(str(error))
        except Exception as error:
            reason = f"{type(error).__name__}: {error}".splitlines()[0]
            self.writer.note(notes.NO_REHEARSAL.format(self._get_number(), reason))
        finally:
            self._observer.is_rehearsal = False
        return None

    def run_unobserved(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
        """Run the real step, which may be compiled, without the replaced functions."""
        self.guard(self._start)
        self.guard(self._leave)
        try:
            return function(*args, **kwargs)
        finally:
            self.guard(self._resume)

    def compare_results(self, rehearsed: object, result: object) -> None:
        """Note it if the rehearsed step returned other values than the real one."""
        if not isinstance(rehearsed, list):
            return
        expected = {str(index): to_array(tensor) for index, tensor in enumerate(list_results(result))}
        computed = {str(index): array for index, array in enumerate(rehearsed)}
        if expected.keys() == computed.keys() and all(expected[key].shape == computed[key].shape for key in expected):
            difference = relative_difference(computed, expected)
            if difference > self._get_tolerance():
                self.writer.note(notes.DIFFERENT_RESULTS.format(self._get_number(), difference))

    def guard(self, function: Callable[..., Any], *args: object) -> Any:  # noqa: ANN401  what the function returns
        """Call a function of the recorder. An error ends the recording, not the training; None is returned then."""
        try:
            return function(*args) if self.is_recording else None
        except Exception as error:
            reason = f"{error}".splitlines()[0] if f"{error}" else ""
            sentence = notes.FAILED.format(self._get_number(), type(error).__name__, reason)
            self.writer.note(sentence)
            warnings.warn(sentence, RuntimeWarning, stacklevel=3)
            self._finish(complete=False)
            return None

    @contextlib.contextmanager
    def _record_step(self):  # type: ignore[no-untyped-def]
        self.guard(self._enter)
        try:
            yield
        except BaseException:
            self.guard(self._leave)
            raise
        self.guard(self._leave)
        self.guard(self._end_step)

    def _enter(self) -> None:
        if self._observer.step is None:
            if self._is_built():
                self._start()
            slots = read_slots(self._optimizer, self._name_variables()).get("momentums", {})
            scale = read_loss_scale(self._optimizer)
            number = len(self.writer.facts["steps"]) + 1
            self._observer.step = Step(number, read_rate(self._optimizer), scale, slots)
            self._iterations = count_updates(self._optimizer)
        self._resume()

    def _leave(self) -> None:
        self._patches.restore()
        self._observer.stop()

    def _resume(self) -> None:
        variables = self._name_variables().values()
        size = sum(count_bytes(variable) for variable in variables)
        self._observer.start(Copies(limit_copied_bytes(size)))
        self._patches.replace(FUNCTION, "__call__", self._wrap_function(FUNCTION.__call__))

    def _wrap_function(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def call(function: object, *args: object, **kwargs: object) -> object:
            is_outermost = not (self._is_in_function or self._observer.is_rehearsal or self._observer.is_within_layer)
            if not (is_outermost and self.is_recording):
                return original(function, *args, **kwargs)
            self._is_in_function = True
            try:
                self.is_compiled_by_xla = bool(getattr(function, "_jit_compile", False))
                rehearsed = self.guard(self.rehearse, lambda: original(function, *args, **kwargs))
                self.guard(self._add_labels, [args, kwargs])
                result = self.run_unobserved(original, function, *args, **kwargs)
                self.guard(self.compare_results, rehearsed, result)
                return result
            finally:
                self._is_in_function = False

        return call

    def _add_labels(self, arguments: list[Any]) -> None:
        """Take the arguments of a tf.function that the model did not receive as labels, if no loss showed them."""
        assert self._observer.step is not None
        batches = self._observer.step.micro_batches
        if len(batches) == 1 and not batches[0].labels:
            named = {f"{key}": value for key, value in [*enumerate(arguments[0]), *arguments[1].items()]}
            tensors = {name: x for name, x in name_tensors(named).items() if not self._observer.is_known(x)}
            batches[0].labels = Copies(MIN_COPIED_BYTES).copy(tensors)

    def _before_update(self) -> None:
        self.guard(self._start)

    def _start(self) -> None:
        """Write the state before the first step."""
        if not self._has_started:
            self._has_started = True
            variables = self._name_variables()
            slots = name_slot_arrays(read_slots(self._optimizer, variables))
            changed = {name: array for name, array in slots.items() if array.any()}  # all slots begin with zeros
            self.writer.write_start({**self._read_weights(), **changed})

    def _end_step(self) -> None:
        """Write the step if the optimizer updated, and end the record after the last one."""
        step = self._observer.step
        assert step is not None
        finished = FinishedStep(step, self._optimizer, self._iterations, self._name_variables())
        if not finished.has_updated:
            if len(step.micro_batches) >= MAX_MICRO_BATCHES:
                self.writer.note(notes.NO_UPDATE.format(MAX_MICRO_BATCHES))
                self._finish(complete=False)
            return
        self._describe(step)
        arrays: Arrays = {**finished.read_gradients(self._get_tolerance(), self.writer.note), **self._read_weights()}
        if step.number in (1, self._steps):
            arrays.update(name_slot_arrays(finished.slots))
        self.writer.write_step(step.describe(finished.is_skipped), {**arrays, **step.name_batch_arrays()})
        self._observer.step = None
        if step.number == self._steps or not self.writer.is_open:
            self._finish(complete=step.number == self._steps)

    def _describe(self, step: Step) -> None:
        """Complete the facts of the record, and the sentences about what was not seen."""
        facts, variables = self.writer.facts, self._name_variables()
        if facts["model"] is None:
            facts["model"] = describe_model(
                self._model, describe_layers(self._observer.layers, name_by_identity(variables))
            )
            updated = dict.fromkeys([*step.received, *step.sum_tape_gradients()])
            facts["optimizer"] = describe_optimizer(
                self._optimizer, variables, updated, {"learning_rate": step.rate, "iterations": self._iterations}
            )
            facts["scheduler"] = describe_schedule(self._optimizer)
        facts["loss"] = self._observer.loss
        for sentence in notes.list_step_notes(step, facts["loss"] is not None):
            self.writer.note(sentence)

    def _read_weights(self) -> Arrays:
        return {f"weight/{name}": to_array(variable) for name, variable in self._name_variables().items()}

    def _name_variables(self) -> dict[str, Any]:
        return name_variables(self._model) if self._is_built() else {}

    def _is_built(self) -> bool:
        return bool(self._model.built) and bool(self._model.weights)

    def _get_number(self) -> int:
        return len(self.writer.facts["steps"]) + 1

    def _get_tolerance(self) -> float:
        """Return the relative difference up to which values count as equal: they come from other kernels."""
        is_half = self.writer.facts["environment"]["flags"].get("autocast") is not None
        return 0.1 if is_half else 1e-3

    def _finish(self, complete: bool) -> None:
        """End the record, and leave nothing of it in the script."""
        self.is_recording = False
        self._patches.restore()
        self._observer.stop()
        atexit.unregister(self.close)
        self.writer.close(complete)


def check_steps(steps: int) -> None:
    """Raise ValueError if the number of steps is wrong."""
    if not isinstance(steps, int) or isinstance(steps, bool) or steps < 1:
        raise ValueError(f"steps={steps}: pass the number of optimizer steps to record, at least 1")
