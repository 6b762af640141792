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
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import tensorflow as tf

from common.recording.following import MappedLoader
from common.recording.record_writer import RecordWriter
from tf_impl.record import notes
from tf_impl.record.check_arguments import check_arguments, follow_record
from tf_impl.record.environment import describe_environment, find_rank
from tf_impl.record.finished_step import FinishedStep
from tf_impl.record.gradients import get_tolerance
from tf_impl.record.layer_observer import describe_layers
from tf_impl.record.loader_batches import LoaderBatches
from tf_impl.record.model_facts import Layer, name_by_identity
from tf_impl.record.optimizer_facts import Optimizer, count_updates
from tf_impl.record.patches import Patches
from tf_impl.record.rehearsal import CompiledDraws, Rehearsal, try_rehearsal
from tf_impl.record.state_writer import StateWriter
from tf_impl.record.step_observer import StepObserver
from tf_impl.record.tensors import Copies
from tf_impl.record.tracing import FUNCTION

if TYPE_CHECKING:
    from tf_impl.record.follower import Follower


class Recorder:
    """Records the first optimizer steps of a training script. Create it after the model and the optimizer.

    What cannot be recorded is no error of the training: record.json names it in `not_recorded`.

    Attributes:
        is_recording: Whether steps are still to be recorded.
        is_compiled_by_xla: Whether the script compiles its steps with XLA.
        follower: Follows another record; None if the script follows none.
        writer: The writer of the record.
        state: Writes the state of the model and the optimizer, and tells whether the model has its variables.
    """

    _active: ClassVar[list[Recorder]] = []  # the recorders whose steps run; the first one observes functions for all

    def __init__(
        self,
        directory: str,
        model: Layer,
        optimizer: Optimizer,
        steps: int = 3,
        max_bytes: int = 2 << 30,
        follow: str | Follower | None = None,
        map: str | None = None,
    ) -> None:
        """Start to record.

        Args:
            directory: The directory of the record. An earlier record there is replaced.
            model: The Keras model or layer.
            optimizer: The Keras optimizer that updates it.
            steps: The number of optimizer steps to record.
            max_bytes: The largest number of bytes of this process's record. Samples stand for tensors that do not fit.
            follow: The directory of another record, whose initial weights the model takes. See also `batches`.
            map: The file that pairs the model's variables with the other record's, if names and layers cannot.

        Raises:
            ValueError: An argument is wrong, the directory has files that no recorder wrote, or the model cannot follow
                the other record.
        """
        check_arguments(model, optimizer, steps)
        self.follower = follow_record(follow, map, directory)
        self.writer = RecordWriter(str(directory), "tensorflow", describe_environment(model), *find_rank(), max_bytes)
        self._model, self._optimizer, self._steps = model, optimizer, steps
        self.state = StateWriter(self.writer, model, optimizer)
        self._observer = StepObserver(model, optimizer, self._before_update, self.guard, self.follow)
        if self.follower is not None:
            self.follower.strategy = getattr(model, "distribute_strategy", self.follower.strategy)
            self.writer.facts["follows"] = self.follower.identity
            self._observer.convert_input = self.follower.convert_input
        self._patches, self._copies, self._batches = Patches(), Copies(0), LoaderBatches(self.follower)
        self.is_compiled_by_xla, self._draws = False, CompiledDraws()
        self._is_in_function, self._iterations = False, 0  # whether a tf.function of the script runs, and its updates
        self.is_recording = self.writer.is_open
        atexit.register(self.close)

    def step(self) -> contextlib.AbstractContextManager[None]:
        """Return a context for one training step: `with recorder.step(): loss = train_step(x, y)`.

        A tf.function is seen if it is called here with the tensors of the batch. Several contexts without an update
        between them are the micro-batches of one optimizer step.
        """
        return self._record_step() if self.is_recording else contextlib.nullcontext()

    def batches(self, loader: Iterable[Any]) -> Iterable[Any]:
        """Return the loader. While the recorder follows a record, the batches are those of that record."""
        return MappedLoader(loader, self._batches.take)

    def omit_implied_gradients(self) -> None:
        """Let later rehearsals compute no gradients if the slots imply them."""
        self._observer.implied.is_allowed = True

    def close(self) -> None:
        """End the record before all steps are recorded. The end of the script does it too."""
        if self.is_recording:
            self.writer.warn_of_no_step(notes.NO_STEP)
            self._finish(complete=False)

    def follow(self, function: Callable[[], object], iterators: Collection[object] = ()) -> None:
        """Load the weights of the followed record before the first step, unless they are already loaded.

        Args:
            function: Computes the step, or the forward pass. It is rehearsed, to build the model and to see its layers.
            iterators: Iterators that it may use.
        """
        if self.follower is None or not self.follower.is_waiting or not self.is_recording:
            return
        results = self.rehearse(function, iterators)
        if self._observer.layers is None:
            if results is not None and len(self._list_active()) > 1:
                return  # another function of the step calls the model
            reason = notes.NO_MODEL_CALL if results is not None else self.writer.facts["not_recorded"][-1]
            raise ValueError(f"follow: {reason}")
        names = name_by_identity(self.state.name_variables())
        self.follower.load_weights(self._model, describe_layers(self._observer.layers, names))
        self._copies = Copies(self.state.limit_copied_bytes())  # also if the model was not built before
        self._observer.forget(self._copies)

    def rehearse(self, function: Callable[[], object], iterators: Collection[object] = ()) -> object:
        """Compute a step eagerly, observe it, and undo its effects.

        All recorders whose steps run observe it. Return the floating-point results of the step as a list of arrays;
        None if it cannot be rehearsed.

        Args:
            function: Computes the step.
            iterators: Iterators that it may use.
        """
        recorders = self._list_active()
        models, is_built = [x._model for x in recorders], all(x.state.is_built for x in recorders)
        rehearsal = Rehearsal(models, not is_built, self._draws if self.is_compiled_by_xla else None, iterators)
        for recorder in recorders:
            recorder._observer.is_rehearsal, recorder._observer.has_later_losses = True, len(recorders) > 1
        results, reason = try_rehearsal(rehearsal, function, self.state.number)
        for recorder in recorders:
            recorder._observer.is_rehearsal = False
            if results is None:
                recorder.writer.note(reason)
        return results

    def run_unobserved(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
        """Run the real step, which may be compiled, without the replaced functions."""
        for recorder in self._list_active():
            recorder.guard(recorder._write_start)
        with self._leave_all(self._list_active()):
            return function(*args, **kwargs)

    @contextlib.contextmanager
    def _leave_all(self, recorders: Sequence[Recorder]) -> Iterator[None]:
        for recorder in reversed(recorders):
            recorder.guard(recorder._leave)
        try:
            yield
        finally:
            for recorder in recorders:
                recorder.guard(recorder._resume)

    def add_batch(self, batch: object) -> None:
        """Record the arrays of the batch of a rehearsed step that neither the model nor the loss received."""
        for recorder in self._list_active():
            recorder.guard(recorder._observer.add_batch, batch)

    def compare_results(self, rehearsed: object, result: object) -> None:
        """Write a note if the rehearsed step returned other values than the real one."""
        self.state.compare_results(rehearsed, result, self._observer.step)

    def guard(self, function: Callable[..., Any], *args: object) -> Any:  # noqa: ANN401  what the function returns
        """Call a function while recording. If it raises, end the recording, not the training, and return None."""
        try:
            return function(*args) if self.is_recording else None
        except Exception as error:
            reason = (f"{error}".splitlines() or [""])[0]
            self.writer.note(sentence := notes.FAILED.format(self.state.number, type(error).__name__, reason))
            warnings.warn(sentence, RuntimeWarning, stacklevel=3)
            self._finish(complete=False)
            return None

    @contextlib.contextmanager
    def _record_step(self):  # type: ignore[no-untyped-def]
        Recorder._active.append(self)
        self.guard(self._enter)
        try:
            yield
        finally:
            self.guard(self._leave)
            Recorder._active.remove(self)
        self.guard(self._end_step)

    def _list_active(self) -> list[Recorder]:
        """Return the recorders whose steps run. Each model of a GAN, for example, has its own recorder."""
        return [recorder for recorder in Recorder._active if recorder.is_recording] or [self]

    def _enter(self) -> None:
        if self._observer.step is None:
            self._write_start()
            self._observer.step = self.state.begin_step(self.state.number)
            self._copies = Copies(self.state.limit_copied_bytes())
            self._iterations = count_updates(self._optimizer)
        self._resume()

    def _write_start(self) -> None:
        """Write the state before the first step, unless variables or the weights of a followed record are missing."""
        if self.state.is_built and (self.follower is None or not self.follower.is_waiting):
            self.state.write_start()

    def _leave(self) -> None:
        self._patches.restore()
        self._observer.stop()

    def _resume(self) -> None:
        self._observer.start(self._copies)
        if self._list_active()[0] is self:
            self._patches.replace(FUNCTION, "__call__", self._wrap_function(FUNCTION.__call__))

    def _wrap_function(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def call(function: object, *args: object, **kwargs: object) -> object:
            recorders = self._list_active()
            is_within_layer = any(recorder._observer.is_within_layer for recorder in recorders)
            if self._is_in_function or self._observer.is_rehearsal or is_within_layer or not self.is_recording:
                return original(function, *args, **kwargs)
            self._is_in_function = True
            try:
                self.is_compiled_by_xla = bool(getattr(function, "_jit_compile", False))
                if not (tf.config.functions_run_eagerly() or all(x.state.is_built for x in recorders)):
                    with self._leave_all(self._list_active()):  # it creates the variables as without a recorder
                        getattr(function, "get_concrete_function")(*args, **kwargs)  # noqa: B009
                self._follow_all(lambda: original(function, *args, **kwargs))
                rehearsed = self.guard(self.rehearse, lambda: original(function, *args, **kwargs))
                self.add_batch(self._batches.choose(args, kwargs))
                result = self.run_unobserved(original, function, *args, **kwargs)
                for recorder in recorders:
                    recorder.guard(recorder.compare_results, rehearsed, result)
                return result
            finally:
                self._is_in_function = False

        return call

    def _follow_all(self, function: Callable[[], object]) -> None:
        """Load the weights of the records that the recorders follow. function: computes the step."""
        waiting = [x for x in self._list_active() if x.follower is not None and x.follower.is_waiting]
        with self._leave_all([x for x in self._list_active() if waiting and x not in waiting]):
            for recorder in waiting:
                recorder.follow(function)
            for recorder in waiting:
                recorder._observer.forget(recorder._copies)

    def _before_update(self) -> None:
        """Write the state before the first update. Raise UserError if the model does not follow the record."""
        if self.follower is not None and self.is_recording:
            self.follower.check_weights()
        self.guard(self.state.write_start)

    def _end_step(self) -> None:
        """Write the step if the optimizer updated, and end the record after the last one."""
        step = self._observer.step
        assert step is not None
        finished = FinishedStep(step, self._optimizer, self._iterations, self.state.name_variables())
        if not finished.has_updated:
            if len(step.micro_batches) >= notes.MAX_MICRO_BATCHES:
                self.writer.note(notes.NO_UPDATE.format(notes.MAX_MICRO_BATCHES))
                self._finish(complete=False)
            return
        self.state.write_step(finished, self._observer, get_tolerance(self.writer.facts["environment"]))
        self._observer.end_step()
        if self.follower is not None:
            self.follower.end_step()
        if step.number == self._steps or not self.writer.is_open:
            self._finish(complete=step.number == self._steps)

    def _finish(self, complete: bool) -> None:
        """End the record, and leave nothing of it in the script."""
        self.is_recording = False
        self._draws = CompiledDraws()
        self._leave()
        self._observer.end_step()
        atexit.unregister(self.close)
        for sentence in self.follower.notes if self.follower is not None else ():
            self.writer.note(sentence)
        self.writer.close(complete)
