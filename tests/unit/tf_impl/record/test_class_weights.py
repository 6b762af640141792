"""Tests of `fit(class_weight=...)`: a script that follows a record weights the record's labels by its own rule."""

import json
from pathlib import Path

import keras
import numpy as np
import pytest

from common.diagnose.recorded.walk import diagnose_records
from tf_impl.record import FitRecorder

WEIGHTS = {0: 1.0, 1: 4.0, 2: 9.0}
LABELS = np.array([0, 1, 0, 1, 2, 0, 2, 1])  # only the second batch has class 2
X = np.random.default_rng(0).standard_normal((8, 3)).astype("float32")


def record(directory: Path, labels: np.ndarray, loss: str, follow: Path | None = None) -> Path:
    """Record two steps of four examples each."""
    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.Input([3]), keras.layers.Dense(3, activation="softmax", name="head")])
    model.compile(keras.optimizers.SGD(0.1), loss)
    recorder = FitRecorder(str(directory), steps=2, follow=None if follow is None else str(follow))
    options = {"batch_size": 4, "shuffle": False, "verbose": 0, "class_weight": WEIGHTS}
    model.fit(X, labels, callbacks=[recorder], **options)
    return directory


@pytest.mark.slow
@pytest.mark.parametrize("is_one_hot", [False, True])
def test_classes_that_are_not_in_the_first_batch_have_the_declared_weights(is_one_hot: bool, tmp_path: Path) -> None:
    labels = np.eye(3, dtype="float32")[LABELS] if is_one_hot else LABELS
    loss = "categorical_crossentropy" if is_one_hot else "sparse_categorical_crossentropy"
    a = record(tmp_path / "a", labels[::-1], loss)
    # The first batch of A is the second one of B, in another order
    b = record(tmp_path / "b", labels, loss, follow=a)
    facts = json.loads((b / "record.json").read_text())
    assert facts["complete"]
    assert not any("taken from" in sentence or "class" in sentence for sentence in facts["not_recorded"])
    assert [cause.sentence for cause in diagnose_records(a, b).causes] == []
