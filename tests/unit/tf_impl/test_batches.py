"""Tests that tensors of a shard equal its arrays in type, shape and value. TensorFlow runs in a separate process."""

import json
from typing import Any

import numpy as np
import pytest

from common.data.batches import GlobalBatch
from common.data.images.image_cache import ImageSplit
from tests.conftest import MakeSplit, Python

CONVERT = """
import json, sys
from types import SimpleNamespace
import numpy as np
import tensorflow as tf
from tf_impl.batches import build_input_signature, to_tensors

class Split:
    def __init__(self, arrays, kind):
        self.arrays = arrays
        self.example_shapes = {"images": arrays["images"].shape[1:]} if kind == "images" else {}

    def __len__(self):
        return 1

    def lengths(self, ids):
        return np.zeros(len(ids), np.int64)

    def weights(self, ids):
        return np.ones(len(ids))

    def gather_unpadded(self, ids):
        return {name: array for name, array in self.arrays.items() if name != "weights"}

train = SimpleNamespace(global_batch_size=1, seed=0, steps=1, padding="unpadded")
task = SimpleNamespace(label_weights=None, output_weights=None, compares_examples=False)
model = SimpleNamespace(has_aligned_dropout=False, has_global_batch_norm=False)
config = SimpleNamespace(train=train, model=model, task=task, micro_batches=1)
arrays, results = dict(np.load(sys.argv[1])), {}
for kind in {key.partition("/")[0] for key in arrays}:
    shard = {key.partition("/")[2]: array for key, array in arrays.items() if key.startswith(f"{kind}/")}
    (tensors,) = to_tensors([shard])
    assert all(isinstance(tensor, tf.Tensor) for tensor in tensors.values())
    signatures = []
    for rank in (None, 0):
        specs = build_input_signature(config, Split(shard, kind), rank)[0] if kind != "any" else {}
        signatures.append({name: [spec.dtype.name, spec.shape.as_list()] for name, spec in specs.items()})
    results[kind] = {
        "tensors": {name: [tensor.dtype.name, tensor.shape.as_list(), tensor.numpy().tolist()]
                    for name, tensor in tensors.items()},
        "signatures": signatures,
    }
print(json.dumps(results))
"""
SIZED_STEP = """
import json
import tensorflow as tf
from tf_impl.batches import SizedStep

def make_spec(count):
    return {"x": tf.TensorSpec([count, None, 2], tf.float32), "weights": tf.TensorSpec([count], tf.float64)}

def make_shard(count, width):
    return [{"x": tf.ones([count, width, 2]), "weights": tf.ones([count], tf.float64)}]

traced = []

def step(shards, factor):
    micro_batches = [micro_batch for shard in shards for micro_batch in shard]
    traced.append([micro_batch["x"].shape.as_list() for micro_batch in micro_batches])
    return factor * tf.add_n([tf.reduce_sum(micro_batch["x"]) for micro_batch in micro_batches])

sized = SizedStep(step, [[make_spec(3)], [make_spec(2)]], tf.TensorSpec([], tf.float32))
sums = [
    float(sized([make_shard(first, width), make_shard(second, width)], 0.5))
    for first, second, width in json.loads(input())
]
one_shard = SizedStep(lambda shard, factor: step([shard], factor), [make_spec(3)], tf.TensorSpec([], tf.float32))
sums.append(float(one_shard(make_shard(3, 1), 0.5)))
print(json.dumps([traced, sums]))
"""
ANY = {  # values that a conversion to another type would change
    "float64": np.array([[0.1, 1e300], [-0.0, np.pi]]),
    "float32": np.array([0.1, 3e38], np.float32),
    "float16": np.array([0.1, 6e4], np.float16),
    "int64": np.array([2**53 + 1, -(2**62)]),
    "int32": np.arange(24, dtype=np.int32).reshape(2, 3, 4).transpose(2, 0, 1),  # not contiguous
    "uint16": np.array([65535], np.uint16),
    "bool": np.array([True, False]),
    "empty": np.zeros((0, 7), np.int32),
    "scalar": np.array(0.1),
}
Shard = dict[str, np.ndarray]


@pytest.fixture(scope="module")
def shards(make_split: MakeSplit) -> dict[str, Shard]:
    """Return shards of text and of images as strategies receive them, and a shard of all data types."""
    stream, ids = np.random.default_rng(0), np.array([3, 0, 4, 1])
    images = ImageSplit(
        images=stream.integers(0, 256, (5, 6, 4, 1), np.uint8),
        labels=np.arange(5, dtype=np.int32),
        pixel_values=stream.standard_normal(256, np.float32),
    )
    text = make_split([5, 2, 9, 7, 3])
    return {
        "text": GlobalBatch(1, ids, text, "global").shard(0, 3)[0],
        "unpadded": GlobalBatch(1, ids, text, "unpadded").shard(0, 3)[0],
        "images": GlobalBatch(1, ids, images, "global").shard(0, 3)[0],
        "any": ANY,
    }


@pytest.fixture(scope="module")
def converted(
    shards: dict[str, Shard], tmp_path_factory: pytest.TempPathFactory, keras_python: Python
) -> dict[str, dict[str, Any]]:
    path = tmp_path_factory.mktemp("batches") / "shards.npz"
    arrays: dict[str, Any] = {f"{kind}/{name}": array for kind in shards for name, array in shards[kind].items()}
    np.savez(path, **arrays)
    results: dict[str, dict[str, Any]] = json.loads(keras_python(CONVERT, path))
    return results


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["text", "unpadded", "images", "any"])
def test_tensors_equal_the_arrays(shards: dict[str, Shard], converted: dict[str, dict[str, Any]], kind: str) -> None:
    tensors = converted[kind]["tensors"]
    assert tensors.keys() == shards[kind].keys()
    for name, array in shards[kind].items():
        assert tensors[name] == [array.dtype.name, list(array.shape), array.tolist()], name


@pytest.mark.parametrize("kind", ["text", "unpadded", "images"])
def test_input_signature_accepts_shards_of_any_size(
    shards: dict[str, Shard], converted: dict[str, dict[str, Any]], kind: str
) -> None:
    expected: dict[str, list[Any]] = {
        name: [array.dtype.name, [None] * array.ndim] for name, array in shards[kind].items()
    }
    if kind == "images":
        expected["images"] = ["float32", [None, 6, 4, 1]]
    assert converted[kind]["signatures"][0] == expected


def test_input_signature_of_a_replica_fixes_the_number_of_examples(
    shards: dict[str, Shard], converted: dict[str, dict[str, Any]]
) -> None:
    assert converted["images"]["signatures"][1]["images"] == ["float32", list(shards["images"]["images"].shape)]
    assert converted["text"]["signatures"][1]["labels"] == ["int32", [None]]


def test_a_step_is_compiled_for_the_usual_size_and_for_all_others(keras_python: Python) -> None:
    sizes = [(3, 2, 4), (3, 2, 5), (1, 1, 4), (2, 3, 1), (3, 2, 1)]
    traced, sums = json.loads(keras_python(SIZED_STEP.replace("json.loads(input())", json.dumps(sizes))))
    assert traced == [[[3, None, 2], [2, None, 2]], [[None, None, 2]] * 2, [[3, None, 2]]]
    assert sums == [*((first + second) * width for first, second, width in sizes), 3]
