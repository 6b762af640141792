"""Tests of BatchNorm over the replicas of MirroredStrategy against NumPy on the whole batch, in one process."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.conftest import Python

SHARDS, CHANNELS, MOMENTUM, EPSILON = [3, 1, 4], 5, 0.7, 1e-3
AXES = (0, 1, 2)
STEP = """
import json
import sys
from pathlib import Path
from types import SimpleNamespace
import keras
import numpy as np
import tensorflow as tf
from common.errors import UserError
from tf_impl.changing_buffers import build_averaging, build_buffer_check, find_changing_buffers, mark_changing_buffers
from tf_impl.batch_norm import build_statistics_averaging, find_moving_statistics, synchronize_batch_norm, use_real_rows
from tf_impl.device import select_replica_devices

folder, sizes, momentum, epsilon, cases = Path(sys.argv[1]), *map(json.loads, sys.argv[2:])
strategy = tf.distribute.MirroredStrategy(select_replica_devices(len(sizes)))

def run(data, synchronized, steps, dtype, marks):
    keras.config.set_floatx(dtype)
    keras.config.set_dtype_policy(dtype)  # Keras keeps the policy of the layers before
    data = {name: array if name == "real" else array.astype(dtype) for name, array in data.items()}
    with strategy.scope():
        layer = keras.layers.BatchNormalization(momentum=momentum, epsilon=epsilon)
        model = keras.Sequential([keras.Input(data["x"].shape[1:]), layer])
        synchronize_batch_norm(model, synchronized)
        layer.gamma.assign(data["gamma"])
        layer.beta.assign(data["beta"])
    shards = [np.split(data[name], np.cumsum(sizes)[:-1]) for name in ("x", "weights", "real")]
    spec = [[tf.TensorSpec([None, *part.shape[1:]], part.dtype) for part in parts] for parts in shards]

    @tf.function(input_signature=[spec])
    def step(shards):
        def replica_step():
            replica = tf.distribute.get_replica_context()
            x, weights, real = (parts[int(tf.get_static_value(replica.replica_id_in_sync_group))] for parts in shards)
            with tf.GradientTape() as tape:
                tape.watch(x)
                with use_real_rows(real if marks else None):
                    outputs = model(x, training=True)
                loss = tf.reduce_sum(outputs * weights)
            of_x, *gradients = tape.gradient(loss, [x, layer.gamma.value, layer.beta.value])
            return outputs, of_x, *replica.all_reduce("SUM", gradients)

        return strategy.run(replica_step)

    def read_statistics(prefix=""):
        return {
            prefix + variable.name: np.array(strategy.experimental_local_results(variable.value))
            for variable in find_moving_statistics(model)
        }

    for _ in range(steps):
        outputs, of_x, gamma, beta = map(strategy.experimental_local_results, step(shards))
    computed = {"outputs": np.concatenate(outputs), "of_x": np.concatenate(of_x)}
    computed |= {"of_gamma": gamma[0], "of_beta": beta[0], **read_statistics()}
    build_statistics_averaging(strategy, model)()
    return computed | read_statistics("mean_") | {"evaluated": model(data["x"][:2], training=False)}

for name, settings in cases.items():
    np.savez(folder / f"{name}.computed.npz", **run(np.load(folder / f"{name}.npz"), *settings))

keras.config.set_floatx("float64")

with strategy.scope():
    calls, centre = (keras.Variable(0, dtype=dtype, trainable=False) for dtype in ("int32", "float64"))
buffers = {"calls": calls, "centre": centre}
named_parameters = [SimpleNamespace(names=[name], variable=variable) for name, variable in buffers.items()]
model = SimpleNamespace(named_parameters=named_parameters)
mark_changing_buffers(model, {"calls": False, "centre": True})
check = build_buffer_check(strategy, model)

def change(variable, by_replica):
    def replica_step():
        replica = tf.distribute.get_replica_context()
        number = int(tf.get_static_value(replica.replica_id_in_sync_group))
        variable.assign_add(number if by_replica else 1)

    tf.function(lambda: strategy.run(replica_step))()

change(calls, False)
change(centre, True)
check()
build_averaging(strategy, find_changing_buffers(model, dependent=True).values())()
state = {name: np.array(strategy.experimental_local_results(x.value)).tolist() for name, x in buffers.items()}
change(calls, True)
try:
    check()
except UserError as error:
    state["error"] = str(error)
(folder / "buffers.json").write_text(json.dumps(state))
"""

Arrays = dict[str, np.ndarray]


@dataclass(frozen=True)
class Case:
    synchronized: bool
    steps: int
    padding: tuple[int, ...] = ()  # indices of rows that are padding
    dtype: str = "float64"
    marks: bool = True  # whether the layers get the marks of real rows

    @property
    def tolerance(self) -> float:
        """Return the largest absolute and relative error."""
        return 1e-10 if self.dtype == "float64" else 3e-5


CASES = {
    "no padding": Case(True, 2),
    "a replica without examples": Case(True, 2, (3,)),
    "padding on several replicas": Case(True, 2, (1, 6, 7)),
    "1 step": Case(False, 1),
    "3 steps": Case(False, 3),
    # In float32 without marks TensorFlow's own operations normalize.
    "fused over replicas": Case(True, 2, dtype="float32", marks=False),
    "fused": Case(False, 3, dtype="float32", marks=False),
    "marks in float32": Case(True, 2, (1, 6, 7), "float32"),
}


BUFFERS = "buffers"  # the key of what the replicas make of other variables that change


def make_arrays(case: Case) -> Arrays:
    stream = np.random.default_rng(0)
    arrays = {name: stream.normal(3, 2, (sum(SHARDS), 2, 3, CHANNELS)) for name in ("x", "weights")}
    arrays |= {name: stream.normal(size=CHANNELS) for name in ("gamma", "beta")}
    arrays["weights"][list(case.padding)] = 0
    return arrays | {"real": np.isin(np.arange(sum(SHARDS)), case.padding, invert=True).astype(np.int32)}


@pytest.fixture(scope="module")
def computed(tmp_path_factory: pytest.TempPathFactory, keras_python: Python) -> dict[str, Arrays]:
    """Return the arrays that TensorFlow computes in each case."""
    folder: Path = tmp_path_factory.mktemp("batch_norm")
    for name, case in CASES.items():
        arrays: dict[str, Any] = dict(make_arrays(case))
        np.savez(folder / f"{name}.npz", **arrays)
    settings = {name: (case.synchronized, case.steps, case.dtype, case.marks) for name, case in CASES.items()}
    keras_python(STEP, folder, json.dumps(SHARDS), MOMENTUM, EPSILON, json.dumps(settings))
    computed = {name: dict(np.load(folder / f"{name}.computed.npz")) for name in CASES}
    return computed | {BUFFERS: json.loads((folder / "buffers.json").read_text())}


def normalize(x: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return x with mean 0 and variance 1 in each channel, and the channels' mean and unbiased variance."""
    mean, variance = x.mean(AXES), x.var(AXES)
    count = x.size / CHANNELS
    return (x - mean) / np.sqrt(variance + EPSILON), mean, variance * count / (count - 1)


def average(statistic: np.ndarray, start: float, steps: int) -> np.ndarray:
    """Return a moving average after steps that all have the same statistic."""
    return start * MOMENTUM**steps + statistic * (1 - MOMENTUM**steps)


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_a_case_computes_in_its_own_type(computed: dict[str, Arrays], name: str) -> None:
    assert {computed[name][key].dtype.name for key in ("outputs", "of_x", "moving_mean")} == {CASES[name].dtype}


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.synchronized])
def test_synchronized_statistics_are_those_of_all_replicas(computed: dict[str, Arrays], name: str) -> None:
    padding, arrays, results = list(CASES[name].padding), make_arrays(CASES[name]), dict(computed[name])
    tolerance = CASES[name].tolerance
    x, weights = (np.delete(arrays[key], padding, 0) for key in ("x", "weights"))
    y, mean, variance = normalize(x)
    # The gradient of BatchNorm: Ioffe and Szegedy, 2015.
    of_y = weights * arrays["gamma"]
    of_x = (of_y - of_y.mean(AXES) - y * (of_y * y).mean(AXES)) / np.sqrt(x.var(AXES) + EPSILON)
    expected = {
        "outputs": y * arrays["gamma"] + arrays["beta"],
        "of_x": of_x,
        "of_gamma": (weights * y).sum(AXES),
        "of_beta": weights.sum(AXES),
        "moving_mean": np.tile(average(mean, 0, 2), (len(SHARDS), 1)),
        "moving_variance": np.tile(average(variance, 1, 2), (len(SHARDS), 1)),
    }
    assert not results["of_x"][padding].any()
    for key in ("outputs", "of_x"):
        results[key] = np.delete(results[key], padding, 0)
    for key, array in expected.items():
        np.testing.assert_allclose(results[key], array, rtol=tolerance, atol=tolerance, err_msg=key)


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if not case.synchronized])
def test_replicas_have_separate_statistics_until_they_are_averaged(computed: dict[str, Arrays], name: str) -> None:
    arrays, results, steps = make_arrays(CASES[name]), computed[name], CASES[name].steps
    tolerance = CASES[name].tolerance
    shards = [normalize(shard) for shard in np.split(arrays["x"], np.cumsum(SHARDS)[:-1])]
    outputs = np.concatenate([y for y, *_ in shards]) * arrays["gamma"] + arrays["beta"]
    np.testing.assert_allclose(results["outputs"], outputs, rtol=tolerance, atol=tolerance)
    means = {}
    for index, (key, start) in enumerate((("moving_mean", 0.0), ("moving_variance", 1.0)), 1):
        of_replicas = np.array([average(shard[index], start, steps) for shard in shards])
        np.testing.assert_allclose(results[key], of_replicas, rtol=tolerance, atol=tolerance)
        means[key] = of_replicas.mean(0)
        np.testing.assert_allclose(
            results[f"mean_{key}"], np.tile(means[key], (len(SHARDS), 1)), rtol=tolerance, atol=tolerance
        )
    evaluated = (arrays["x"][:2] - means["moving_mean"]) / np.sqrt(means["moving_variance"] + EPSILON)
    expected = evaluated * arrays["gamma"] + arrays["beta"]
    np.testing.assert_allclose(results["evaluated"], expected, rtol=tolerance, atol=tolerance)


@pytest.mark.slow
def test_replicas_keep_their_own_buffers_and_are_compared(computed: dict[str, Arrays]) -> None:
    state: dict[str, Any] = dict(computed[BUFFERS])
    assert state.pop("error").startswith("calls: differs between the replicas")
    assert state == {"calls": [1] * len(SHARDS), "centre": [1.0] * len(SHARDS)}


MASKED = """
import numpy as np, keras
from tf_impl.batch_norm import synchronize_batch_norm
x = np.random.default_rng(0).normal(size=(2, 3, 4)).astype("float32")
real = np.array([[True, True, False], [True, False, False]])
x[~real] = -1
model = keras.Sequential([keras.Input((3, 4)), keras.layers.Masking(-1.0), keras.layers.BatchNormalization()])
synchronize_batch_norm(model, False)
normalized = model(x, training=True).numpy()[real]
expected = (x[real] - x[real].mean(0)) / np.sqrt(x[real].var(0) + 1e-3)
print(np.abs(normalized - expected).max())
"""


@pytest.mark.slow
def test_masked_values_do_not_count(keras_python: Python) -> None:
    assert float(keras_python(MASKED).split()[-1]) < 1e-5
