"""BatchNorm over the replicas of MirroredStrategy against NumPy's on the whole batch, in a process of TensorFlow's."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.conftest import Python

SHARDS, CHANNELS, MOMENTUM, EPSILON = [3, 1, 4], 5, 0.7, 1e-3
STEP = """
import json
import sys
import keras
import numpy as np
import tensorflow as tf
from tf_impl.batch_norm import build_statistics_averaging, use_real_rows, find_moving_statistics, synchronize_batch_norm
from tf_impl.device import select_replica_devices

path, sizes, momentum, epsilon, synchronized, steps = sys.argv[1], *map(json.loads, sys.argv[2:])
keras.config.set_floatx("float64")
data = np.load(path)
strategy = tf.distribute.MirroredStrategy(select_replica_devices(len(sizes)))
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
            with use_real_rows(real):
                outputs = model(x, training=True)
            loss = tf.reduce_sum(outputs * weights)
        of_x, *gradients = tape.gradient(loss, [x, layer.gamma.value, layer.beta.value])
        return outputs, of_x, *replica.all_reduce("SUM", gradients)

    return strategy.run(replica_step)

for _ in range(steps):
    outputs, of_x, gamma, beta = map(strategy.experimental_local_results, step(shards))
found = {"outputs": np.concatenate(outputs), "of_x": np.concatenate(of_x), "of_gamma": gamma[0], "of_beta": beta[0]}


def read_statistics(prefix=""):
    return {
        prefix + each.name: np.array(strategy.experimental_local_results(each.value))
        for each in find_moving_statistics(model)
    }


copies = read_statistics()
build_statistics_averaging(strategy, model)()
means = read_statistics("mean_")
x = data["x"][:2]
np.savez(path, evaluated=model(x, training=False), **found, **copies, **means)
"""


def compute(
    python: Python, path: Path, synchronized: bool, steps: int, missing: Sequence[int] = ()
) -> tuple[dict[str, np.ndarray], ...]:
    """What is given and what is found. missing: rows that fill up a batch."""
    stream = np.random.default_rng(0)
    given: dict[str, Any] = {name: stream.normal(3, 2, (sum(SHARDS), 2, 3, CHANNELS)) for name in ("x", "weights")}
    given |= {name: stream.normal(size=CHANNELS) for name in ("gamma", "beta")}
    given["real"] = np.isin(np.arange(sum(SHARDS)), missing, invert=True).astype(np.int32)
    given["weights"][missing] = 0
    np.savez(path, **given)
    python(STEP, path, json.dumps(SHARDS), MOMENTUM, EPSILON, json.dumps(synchronized), steps)
    return given, dict(np.load(path))


def normalized(x: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """x with the mean 0 and the variance 1 of its channels; their mean and unbiased variance."""
    mean, variance = x.mean((0, 1, 2)), x.var((0, 1, 2))
    count = x.size / CHANNELS
    return (x - mean) / np.sqrt(variance + EPSILON), mean, variance * count / (count - 1)


def moved(statistic: np.ndarray, start: float, steps: int) -> np.ndarray:
    return start * MOMENTUM**steps + statistic * (1 - MOMENTUM**steps)


@pytest.mark.parametrize("missing", [[], [3], [1, 6, 7]])
def test_the_statistics_are_those_of_all_replicas(tmp_path: Path, python: Python, missing: list[int]) -> None:
    """The second replica may have no example at all."""
    given, found = compute(python, tmp_path / "arrays.npz", True, 2, missing)
    x, weights, axes = (*(np.delete(given[name], missing, 0) for name in ("x", "weights")), (0, 1, 2))
    y, mean, variance = normalized(x)
    # the gradient of BatchNorm: Ioffe and Szegedy, 2015
    of_y = weights * given["gamma"]
    of_x = (of_y - of_y.mean(axes) - y * (of_y * y).mean(axes)) / np.sqrt(x.var(axes) + EPSILON)
    wanted = {
        "outputs": y * given["gamma"] + given["beta"],
        "of_x": of_x,
        "of_gamma": (weights * y).sum(axes),
        "of_beta": weights.sum(axes),
        "moving_mean": np.tile(moved(mean, 0, 2), (len(SHARDS), 1)),
        "moving_variance": np.tile(moved(variance, 1, 2), (len(SHARDS), 1)),
    }
    assert not found["of_x"][missing].any()
    for name in ("outputs", "of_x"):
        found[name] = np.delete(found[name], missing, 0)
    for name, array in wanted.items():
        np.testing.assert_allclose(found[name], array, rtol=1e-10, atol=1e-10, err_msg=name)


@pytest.mark.parametrize("steps", [1, 3])
def test_each_replica_has_its_own_until_they_are_averaged(tmp_path: Path, python: Python, steps: int) -> None:
    given, found = compute(python, tmp_path / "arrays.npz", False, steps)
    shards = [normalized(shard) for shard in np.split(given["x"], np.cumsum(SHARDS)[:-1])]
    outputs = np.concatenate([y for y, *_ in shards]) * given["gamma"] + given["beta"]
    np.testing.assert_allclose(found["outputs"], outputs, rtol=1e-10, atol=1e-10)
    means = {}
    for place, (name, start) in enumerate((("moving_mean", 0.0), ("moving_variance", 1.0)), 1):
        own = np.array([moved(shard[place], start, steps) for shard in shards])
        np.testing.assert_allclose(found[name], own, rtol=1e-10)
        means[name] = own.mean(0)
        np.testing.assert_allclose(found[f"mean_{name}"], np.tile(means[name], (len(SHARDS), 1)), rtol=1e-10)
    evaluated = (given["x"][:2] - means["moving_mean"]) / np.sqrt(means["moving_variance"] + EPSILON)
    np.testing.assert_allclose(found["evaluated"], evaluated * given["gamma"] + given["beta"], rtol=1e-10, atol=1e-10)
