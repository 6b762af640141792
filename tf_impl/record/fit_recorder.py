"""A Keras callback that records the first optimizer steps of `model.fit`."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import tensorflow as tf

from common.recording.record_format import Environment
from common.recording.record_writer import RecordWriter
from tf_impl.record import notes
from tf_impl.record.check_arguments import check_steps, follow_record
from tf_impl.record.environment import describe_environment, find_rank
from tf_impl.record.implied_gradients import has_keras_step
from tf_impl.record.iterators import OneBatch
from tf_impl.record.optimizer_facts import Optimizer, check_optimizer
from tf_impl.record.recorder import Recorder
from tf_impl.record.tracing import trace_train_function

UNKNOWN: Environment = {"versions": {}, "device": "unknown", "flags": {}}
TrainFunction = Callable[[Any], Any]


class FitRecorder(tf.keras.callbacks.Callback):
    """Records the first optimizer steps of `model.fit(..., callbacks=[FitRecorder("records/old")])`.

    It takes each batch from the iterator of `fit`, and passes it on to the compiled train function in an iterator over
    this batch, so that the function computes the same. After the last recorded step, `fit` has its own train function
    again.
    """

    def __init__(
        self,
        directory: str,
        steps: int = 3,
        max_bytes: int = 2 << 30,
        follow: str | None = None,
        map: str | None = None,
        optimizer: Optimizer | None = None,
    ) -> None:
        """Prepare to record.

        Args:
            directory: The directory of the record. An earlier record there is replaced.
            steps: The number of optimizer steps to record.
            max_bytes: The largest number of bytes of this process's record. Samples stand for tensors that do not fit.
            follow: The directory of another record, whose initial weights and batches the model takes.
            map: The file that pairs the model's variables with the other record's, if names and layers cannot.
            optimizer: The optimizer whose steps to record, if a `train_step` uses another one than that of `compile`.

        Raises:
            ValueError: An argument is wrong, or the directory has files that no recorder wrote.
        """
        super().__init__()
        check_steps(steps)
        if optimizer is not None:
            check_optimizer(optimizer)
        self._optimizer = optimizer
        self._follower = follow_record(follow, map, directory)
        # The model is not known yet. A mistake in the directory is reported now.
        self._writer = RecordWriter(str(directory), "tensorflow", UNKNOWN, *find_rank(), max_bytes)
        self._arguments: dict[str, Any] = {"directory": str(directory), "steps": steps, "max_bytes": max_bytes}
        self._recorder: Recorder | None = None
        self._original: TrainFunction | None = None  # the train function of the model while it is replaced

    def on_train_begin(self, logs: object = None) -> None:
        """Replace the train function, or name in the record why this training cannot be recorded."""
        self._restore()  # an error may have ended an earlier call of fit
        if not self._writer.is_open or (self._recorder is not None and not self._recorder.is_recording):
            return
        try:
            sentence = self._find_obstacle()
            if sentence is None:
                self._begin()
        except Exception as error:  # no error of the recorder ends the training
            sentence = notes.FAILED.format(1, type(error).__name__, f"{error}".replace("\n", " "))
        if sentence is not None:
            self._refuse(sentence)

    def on_train_end(self, logs: object = None) -> None:
        """Give the model its train function back. A later call of fit continues the record."""
        self._restore()

    def _implements_no_batch_hooks(self) -> bool:
        return False

    # tf_keras's `fit` calls these three on every callback, but Keras 3's class Callback does not define them
    _implements_train_batch_hooks = _implements_no_batch_hooks
    _implements_test_batch_hooks = _implements_no_batch_hooks
    _implements_predict_batch_hooks = _implements_no_batch_hooks

    def _find_obstacle(self) -> str | None:
        steps = getattr(self.model, "_steps_per_execution", None)  # a number, or a variable in Keras 2
        steps = getattr(self.model, "steps_per_execution", steps) if steps is None else steps
        if steps is not None and int(steps) > 1:
            return notes.SEVERAL_EXECUTIONS.format(int(steps))
        if not callable(getattr(self.model, "train_function", None)):
            return notes.NO_TRAIN_FUNCTION
        return None if hasattr(self._optimizer or self.model.optimizer, "apply_gradients") else notes.NO_OPTIMIZER

    def _begin(self) -> None:
        if self._recorder is None:
            recorder = Recorder(
                model=self.model,
                optimizer=self._optimizer or self.model.optimizer,
                follow=self._follower,
                **self._arguments,
            )
            flags = recorder.writer.facts["environment"]["flags"]
            flags["run_eagerly"] = bool(self.model.run_eagerly)
            flags["jit_compile"] = bool(getattr(self.model, "jit_compile", False))
            recorder.is_compiled_by_xla = bool(flags["jit_compile"])
            if has_keras_step(self.model):
                recorder.omit_implied_gradients()
            flags["compiled"] = not flags["run_eagerly"] and flags["compiled"]
            self._recorder = recorder
        if self._follower is not None:
            self._follower.declare_class_weights(_find_class_weights(self.model))
        self._original = self.model.train_function
        self.model.train_function = self._train

    def _refuse(self, sentence: str) -> None:
        self._restore()
        self._writer.facts["environment"] = describe_environment(self.model)
        self._writer.note(sentence)
        self._writer.close(complete=False)
        warnings.warn(f"nothing is recorded: {sentence}", RuntimeWarning, stacklevel=2)

    def _restore(self) -> None:
        if self._original is not None:
            self.model.train_function = self._original
            self._original = None

    def _train(self, iterator: Iterator[object]) -> object:
        """Record a step of the original train function."""
        original, recorder = self._original, self._recorder
        assert original is not None
        assert recorder is not None
        if not isinstance(iterator, (tf.data.Iterator, tf.distribute.DistributedIterator)):
            recorder.writer.note(notes.NO_TRAIN_FUNCTION)
            recorder.close()
        if not recorder.is_recording:
            self._restore()
            return original(iterator)
        try:
            batch = next(iterator)
        except (StopIteration, tf.errors.OutOfRangeError):
            return original(iterator)  # raises it again
        if self._follower is not None:
            batch = self._follower.replace_batch(batch)
        return self._train_on(batch, iterator, original, recorder)

    def _train_on(
        self, batch: object, iterator: Iterator[object], original: TrainFunction, recorder: Recorder
    ) -> object:
        strategy = self.model.distribute_strategy
        if not (recorder.state.is_built or self.model.run_eagerly or tf.config.functions_run_eagerly()):
            trace_train_function(original, OneBatch(iterator, batch, strategy).iterator)
        with recorder.step():
            batches = OneBatch(iterator, batch, strategy)
            recorder.follow(lambda: original(batches.iterator), [batches.iterator])
            rehearsed = recorder.guard(_rehearse, recorder, original, OneBatch(iterator, batch, strategy))
            recorder.guard(recorder.add_batch, batch)
            replacement = OneBatch(iterator, batch, strategy)
            logs = recorder.run_unobserved(original, replacement.iterator)
            recorder.guard(recorder.compare_results, rehearsed, logs)
        if not recorder.is_recording:
            self._restore()
        return logs


def _find_class_weights(model: object) -> Mapping[int, float]:
    """Return the argument `class_weight` of the call of `fit` that calls this callback; empty if it has none."""
    frame = inspect.currentframe()
    while frame is not None and not (frame.f_code.co_name == "fit" and frame.f_locals.get("self") is model):
        frame = frame.f_back
    weights = frame.f_locals.get("class_weight") if frame is not None else None
    return weights if isinstance(weights, Mapping) else {}


def _rehearse(recorder: Recorder, original: TrainFunction, batch: OneBatch) -> object:
    return recorder.rehearse(lambda: original(batch.iterator), [batch.iterator])
