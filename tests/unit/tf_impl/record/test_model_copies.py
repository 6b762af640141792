"""Scripts that follow a record with copies of their model, such as target networks."""

from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf

from common.diagnose.recorded.walk import diagnose_records
from common.recording.record_reader import open_record
from tests.unit.common.recording.numpy_script import NumpyScript, draw_batches, draw_weights
from tf_impl.record import Recorder
from tf_impl.record.model_copies import find_copies


def build() -> keras.Model:
    """Build the model of NumpyScript."""
    layers = [keras.layers.Dense(8, activation="relu", name="fc1"), keras.layers.Dense(3, name="fc2")]
    return keras.Sequential([keras.Input([5]), *layers])


def test_other_weights_and_parts_are_no_copies() -> None:
    model, target, other = build(), build(), build()
    target.set_weights(model.get_weights())
    assert find_copies(model) == [target]
    assert find_copies(other) == []
    for model_of_zeros in (model, target):
        model_of_zeros.set_weights([0 * weight for weight in model_of_zeros.get_weights()])
    assert find_copies(model) == []


@pytest.mark.parametrize("framework", ["torch", "tensorflow"])
def test_a_target_network_gets_the_weights_of_the_record(framework: str, tmp_path: Path) -> None:
    keras.utils.clear_session()
    NumpyScript(framework=framework, optimizer="sgd", momentum=0.0, decay=0.0).write(tmp_path / "old")
    model, target, optimizer = build(), build(), keras.optimizers.SGD(0.01)
    target.set_weights(model.get_weights())
    recorder = Recorder(str(tmp_path / "new"), model, optimizer, follow=str(tmp_path / "old"))

    @tf.function
    def step(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
        outputs = target(x)
        with tf.GradientTape() as tape:
            loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)(y, model(x))
        weights = model.trainable_variables
        optimizer.apply_gradients(list(zip(tape.gradient(loss, weights), weights, strict=True)))
        return outputs

    batches = [(tf.constant(np.roll(x, 1)), tf.constant(y)) for x, y in draw_batches()]
    for number, (x, y) in enumerate(recorder.batches(batches)):
        with recorder.step():
            outputs = step(x, y)
        np.testing.assert_array_equal(target.get_weights()[2], draw_weights()["fc2.weight"].T)
        assert number or np.allclose(outputs, model_outputs(draw_batches()[0][0]), rtol=1e-5)
    assert diagnose_records(tmp_path / "old", tmp_path / "new").is_equal
    notes = open_record(tmp_path / "new").facts["not_recorded"]
    assert [note.partition(": ")[2] for note in notes if "copies" in note] == [
        "copies of the model (1), such as a target network, got those of the record, too"
    ]


def model_outputs(x: np.ndarray) -> np.ndarray:
    return NumpyScript().forward(draw_weights(), x)["fc2/output"]
