"""Tests of FitRecorder: it leaves nothing in the model, and names what it cannot record."""

import json
from pathlib import Path

import keras
import numpy as np
import pytest

from tf_impl.record import FitRecorder, Recorder

X, Y = np.ones((12, 3), "float32"), np.zeros((12, 1), "float32")


def _fit(callback: FitRecorder, **options: object) -> keras.Model:
    model = keras.Sequential([keras.layers.Dense(1)])
    model.compile("sgd", "mse", **options)
    model.fit(X, Y, batch_size=4, epochs=2, callbacks=[callback], verbose=0)
    return model


@pytest.mark.slow
def test_nothing_is_left_after_the_last_step(tmp_path: Path) -> None:
    call = keras.Layer.__call__
    model = _fit(FitRecorder(str(tmp_path / "record"), steps=1))
    assert not isinstance(getattr(model.train_function, "__self__", None), FitRecorder)
    assert keras.Layer.__call__ is call
    assert not {"apply", "apply_gradients"} & set(vars(model.optimizer))
    facts = json.loads((tmp_path / "record/record.json").read_text())
    assert (facts["complete"], len(facts["steps"])) == (True, 1)


@pytest.mark.slow
def test_several_steps_in_one_execution_are_named(tmp_path: Path) -> None:
    with pytest.warns(RuntimeWarning, match="nothing is recorded: steps_per_execution=2"):
        _fit(FitRecorder(str(tmp_path / "record")), steps_per_execution=2)
    facts = json.loads((tmp_path / "record/record.json").read_text())
    assert not facts["complete"]
    assert "compile the model with steps_per_execution=1" in facts["not_recorded"][0]


def test_mistakes_are_reported_at_once(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(ValueError, match=r"notes\.txt: is not a part of a record"):
        FitRecorder(str(tmp_path))
    with pytest.raises(ValueError, match="steps=0: pass the number of optimizer steps"):
        FitRecorder(str(tmp_path / "record"), steps=0)
    with pytest.raises(ValueError, match="model: is a int; pass a keras.Model"):
        Recorder(str(tmp_path / "record"), 3, keras.optimizers.SGD())
    with pytest.raises(ValueError, match="optimizer: is a str; pass a Keras optimizer"):
        Recorder(str(tmp_path / "record"), keras.Sequential(), "sgd")


def test_fit_of_tf_keras_may_ask_the_callback_for_its_hooks(tmp_path: Path) -> None:
    recorder = FitRecorder(str(tmp_path / "record"))
    assert not any(getattr(recorder, f"_implements_{kind}_batch_hooks")() for kind in ("train", "test", "predict"))
