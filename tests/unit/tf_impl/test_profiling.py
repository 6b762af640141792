"""Test of a profile of TensorFlow as a Chrome trace. TensorFlow runs in a separate process."""

import gzip
import json
from pathlib import Path

import pytest

from tests.conftest import Python

pytestmark = pytest.mark.slow

PROFILE = """
import sys
from pathlib import Path
import tensorflow as tf
from tf_impl.profiling import profile

@tf.function
def product(x):
    return tf.matmul(x, x)

tf.sigmoid(tf.ones([3]))
product(tf.ones([3, 3]))
with profile(Path(sys.argv[1])):
    product(tf.ones([3, 3])).numpy()
"""


def test_trace_contains_what_runs_within_the_context(tmp_path: Path, keras_python: Python) -> None:
    path = tmp_path / "profile" / "rank-0.json.gz"
    keras_python(PROFILE, path)
    with gzip.open(path) as file:
        events = [event for event in json.load(file)["traceEvents"] if event["ph"] == "X"]
    (product,) = [event for event in events if event["name"].startswith("MatMul:")]
    assert product["dur"] > 0
    start, end = (
        function(event["ts"] + event["dur"] * at for event in events) for function, at in ((min, 0), (max, 1))
    )
    assert start <= product["ts"] and product["ts"] + product["dur"] <= end
    assert not [event for event in events if "igmoid" in event["name"]]
