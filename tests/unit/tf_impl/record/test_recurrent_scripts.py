"""Scripts with recurrent layers."""

from pathlib import Path

import keras
import numpy as np
import pytest

from common.diagnose.recorded.walk import diagnose_records
from tf_impl.record import FitRecorder

STREAM = np.random.default_rng(0)
X, Y = STREAM.normal(size=(24, 5, 4)).astype("float32"), STREAM.normal(size=(24, 1)).astype("float32")


def train(directory: Path, position: int | None) -> Path:
    """Train a regression on a bidirectional layer: on its last states, or on its outputs at a position."""
    keras.utils.clear_session()
    keras.utils.set_random_seed(0)
    inputs = keras.Input((5, 4))
    x = keras.layers.Bidirectional(keras.layers.LSTM(3, return_sequences=position is not None), name="both")(inputs)
    outputs = keras.layers.Dense(1, name="fc")(x if position is None else x[:, position])
    model = keras.Model(inputs, outputs)
    model.compile(keras.optimizers.SGD(0.1), "mse")
    model.fit(X, Y, batch_size=8, shuffle=False, callbacks=[FitRecorder(str(directory))], verbose=0)
    return directory


@pytest.mark.parametrize("position", [-1, 0])
@pytest.mark.parametrize("is_reversed", [False, True])
def test_outputs_at_a_position_in_place_of_the_last_states_are_named(
    position: int, is_reversed: bool, tmp_path: Path
) -> None:
    """The last state of the backward direction is its output at the first position, which it computes last."""
    a, b = train(tmp_path / "a", None), train(tmp_path / "b", position)
    (cause,) = diagnose_records(*((b, a) if is_reversed else (a, b))).causes
    assert (cause.cause, cause.confirmed) == ("pooling", True)
    tokens = ("first", "last") if is_reversed else ("last", "first")
    assert "A has the {} token, B the {} token".format(*tokens) in cause.sentence
    assert ("elements 3 to 5" if position == -1 else "elements 0 to 2") in cause.sentence
