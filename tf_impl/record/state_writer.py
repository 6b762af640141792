"""Writer of the weights, the slots and the finished steps of a training script."""

from __future__ import annotations

from typing import Any

from common.recording.record_writer import RecordWriter, limit_copied_bytes
from tf_impl.record import notes
from tf_impl.record.finished_step import FinishedStep
from tf_impl.record.gradients import compare_results, get_tolerance
from tf_impl.record.model_facts import Layer, name_variables
from tf_impl.record.operation_tracer import OperationTracer
from tf_impl.record.optimizer_facts import Optimizer, read_loss_scale, read_rate, view_momentums, view_slots
from tf_impl.record.step import Step
from tf_impl.record.step_observer import StepObserver
from tf_impl.record.tensors import Arrays, count_bytes, view_array
from tf_impl.record.weight_samples import WeightSamples


class StateWriter:
    """Writes the state of a model and its optimizer into a record."""

    def __init__(self, writer: RecordWriter, model: Layer, optimizer: Optimizer) -> None:
        """Prepare to write.

        Args:
            writer: The writer of the record.
            model: The model.
            optimizer: The optimizer.
        """
        self._writer, self._model, self._optimizer = writer, model, optimizer
        self._has_started, self._has_updated, self._has_changes = False, False, False
        self._samples = WeightSamples()

    @property
    def is_built(self) -> bool:
        """Return whether the model has its variables. If the script calls only its layers, `built` stays False."""
        parts = self._model._flatten_layers(include_self=False)
        return bool(self._model.weights) and (self._model.built or all(part.built for part in parts))

    @property
    def number(self) -> int:
        """Return the number of the step that is recorded next, from 1."""
        return len(self._writer.facts["steps"]) + 1

    def limit_copied_bytes(self) -> int:
        """Return the number of bytes of this step's tensors that are copied at most."""
        return limit_copied_bytes(sum(map(count_bytes, self.name_variables().values())), self.number)

    def name_variables(self) -> dict[str, Any]:
        """Return the variables of the model by name; none before it is built."""
        return name_variables(self._model) if self.is_built else {}

    def write_start(self) -> None:
        """Write the state before the first step, unless it is written."""
        if not self._has_started:
            self._has_started = True
            slots = view_slots(self._optimizer, self.name_variables())
            changed = {name: array for name, array in slots.items() if array.any()}  # all slots begin with zeros
            self._writer.write_start({**self._view_weights(), **changed})

    def compare_results(self, rehearsed: object, result: object, step: Step | None) -> None:
        """Write a note if the rehearsed step returned other values than the real one. step: what was observed."""
        if (difference := compare_results(rehearsed, result)) > get_tolerance(self._writer.facts["environment"]):
            if step is not None:
                step.is_exact = False
            self._writer.note(notes.DIFFERENT_RESULTS.format(self.number, difference))

    def begin_step(self, number: int) -> Step:
        """Return a step that has just begun. number: of the step, from 1."""
        variables = self.name_variables()
        momentums = view_momentums(self._optimizer, variables)
        copies = {name: array.copy() for name, array in momentums.items()}
        changed = {name: view_array(variables[name]).copy() for name in self._samples.list_changed(variables)}
        rate, loss_scale = read_rate(self._optimizer), read_loss_scale(self._optimizer)
        return Step(number, rate, loss_scale, copies, changed_weights=changed)

    def write_step(self, finished: FinishedStep, observer: StepObserver, tolerance: float) -> None:
        """Write a step in which the optimizer updated.

        Args:
            finished: The step.
            observer: What was observed in it.
            tolerance: Relative difference up to which the rehearsed gradients explain the update.
        """
        step, facts = observer.step, self._writer.facts
        assert step is not None
        finished.complete_facts(facts, self._model, observer.layers)
        facts["loss"] = observer.loss
        for sentence in notes.list_step_notes(step, facts["loss"] is not None, observer.omitted):
            self._writer.note(sentence)
        if finished.of_others:
            self._writer.note(notes.OTHER_OPTIMIZERS.format(finished.of_others[0], len(finished.of_others)))
        if step.number == 1:
            self._write_operations(observer.operations)
        rows = {} if getattr(self._optimizer, "gradient_accumulation_steps", None) else observer.gradients.clipped_rows
        if self._has_changes and step.changes is not None:
            step.changes.others.clear()  # one step shows how the script changes the gradients
        gradients = finished.read_gradients(tolerance, self._writer.note, rows)
        arrays: Arrays = {**gradients, **self._view_weights()}
        if not (finished.is_skipped or self._has_updated):
            self._has_updated = True
            arrays.update(view_slots(self._optimizer, self.name_variables()))
        self._has_changes = self._has_changes or finished.has_stored_changes
        observer.implied.names = finished.implied
        step_facts = step.describe(finished.is_skipped)
        if rows:
            step_facts["clipped_rows"] = [*rows]
        self._writer.write_step(step_facts, {**arrays, **step.name_batch_arrays()})
        self._samples.take(self.name_variables())

    def _write_operations(self, operations: OperationTracer) -> None:
        if operations.trace is not None:
            self._writer.write_operations(operations.trace)
            operations.trace = None
        elif operations.failure:
            self._writer.note(notes.NO_OPERATIONS.format(operations.failure))

    def _view_weights(self) -> Arrays:
        return {f"weight/{name}": view_array(variable) for name, variable in self.name_variables().items()}
