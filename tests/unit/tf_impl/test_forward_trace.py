"""Traces of layers that a pass calls several times."""

import keras
import numpy as np
import tensorflow as tf

from common.map.description import MOST_CALLS, RecordedCall, name_call
from tf_impl.forward_trace import ForwardTrace


class Loop(keras.Model):
    """A cell that is applied again and again."""

    def __init__(self) -> None:
        super().__init__()
        self.cell = keras.layers.Dense(2, activation="tanh")

    def call(self, x: tf.Tensor) -> tf.Tensor:
        for _ in range(MOST_CALLS + 1):
            x = self.cell(x)
        return x


def trace_loop() -> tuple[Loop, tf.Tensor, ForwardTrace]:
    """Return a model, its input, and the trace of a pass."""
    model, x = Loop(), tf.ones((3, 2))
    model(x)  # builds the layer
    with ForwardTrace(model) as trace:
        model(x)
    return model, x, trace


def test_the_calls_of_layers_that_were_asked_for_are_recorded_and_replaced() -> None:
    model, x, trace = trace_loop()
    (path,) = (path for path in trace.calls if path != "model")
    assert trace.counts[path] == MOST_CALLS + 1
    replacement = RecordedCall(np.full((3, 2), 5, np.float32), np.full((3, 2), 7, np.float32))
    with ForwardTrace(model, {name_call(path, 1): replacement}, [path]) as trace:
        model(x)
    assert len(trace.calls) == MOST_CALLS
    first, second, third = (trace.calls[name_call(path, count)] for count in range(3))
    assert first.returned is not None and second.received is not None and second.returned is not None
    assert third.received is not None and replacement.returned is not None
    np.testing.assert_allclose(second.received, np.tanh(first.returned), rtol=1e-6)
    np.testing.assert_allclose(second.returned, np.full((3, 2), 5.0) @ model.cell.kernel.numpy(), rtol=1e-6)
    np.testing.assert_allclose(third.received, np.tanh(replacement.returned), rtol=1e-6)


def test_a_call_that_is_not_recorded_is_replaced_too() -> None:
    model, x, trace = trace_loop()
    (path,) = (path for path in trace.calls if path != "model")
    replacement = np.full((3, 2), 7, np.float32)
    with ForwardTrace(model, {name_call(path, MOST_CALLS): RecordedCall(None, replacement)}, [path]):
        returned = model(x)
    np.testing.assert_allclose(returned.numpy(), np.tanh(replacement), rtol=1e-6)
