"""Tests of the predictions of several outputs, in a TensorFlow process."""

from pathlib import Path

import numpy as np
import pytest

from tests.conftest import Python
from tests.unit.output_samples import OUTPUTS

pytestmark = pytest.mark.slow

PREDICT = """
import sys
import numpy as np
import tensorflow as tf
from tests.unit.output_samples import LAYOUTS, OUTPUTS, TASK
from tf_impl.task import build_task_functions

functions = build_task_functions(TASK, {"output_layouts": LAYOUTS})
np.save(sys.argv[1], functions.predict_classes(tf.constant(OUTPUTS)).numpy())
"""


def test_predictions_are_the_classes_of_each_pixel_and_example_and_the_numbers(
    tmp_path: Path, keras_python: Python
) -> None:
    keras_python(PREDICT, tmp_path / "predictions.npy")
    pixels, groups = OUTPUTS[:, :24].reshape(-1, 8, 3).argmax(-1), OUTPUTS[:, 24:28].argmax(-1)
    expected = np.concatenate([pixels, groups[:, None], OUTPUTS[:, 28:]], 1)
    np.testing.assert_array_equal(np.load(tmp_path / "predictions.npy"), expected)
