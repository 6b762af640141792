"""Tests that layers with noise are recognized, and compute bit for bit what their counterparts in PyTorch compute."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn import Module, Sequential

from common.data.dropout import derive_example_keys
from common.map.noise import Noise
from tests.conftest import Python
from torch_impl.aligned_layers import align_dropout, use_dropout_keys

pytestmark = pytest.mark.slow

KEYS = derive_example_keys(3, 7, np.arange(12))
X = np.random.default_rng(0).standard_normal((12, 4, 5, 6))  # [n, height, width, channels]
NOISES = {  # by the name of the layer below
    "stochastic_depth": Noise("drop", "example", 0.2),
    "examples": Noise("drop", "example", 0.2),
    "channels": Noise("drop", "channel", 0.2),
    "spatial": Noise("drop", "channel", 0.2),
    "unscaled": Noise("drop", "example", 0.2, is_scaled=False),
    "alpha": Noise("alpha", "element", 0.2),
    "terms": Noise("add", "element", 0.3),
    "own_terms": Noise("add", "element", 0.3),
    "factors": Noise("multiply", "element", 0.5),
}

COMPUTE = """
import json
import sys
import keras
import numpy as np
import tensorflow as tf
from dataclasses import asdict
from keras import layers, random
from keras.src.applications.convnext import StochasticDepth
from tests.unit.tf_impl.test_aligned_layers import KEYS, X
from common.map.dropout_pairs import ChannelLayout
from tf_impl.aligned_layers import align_dropout, use_dropout_keys
from tf_impl.described_dropout import disable_dropout, find_dropouts
from tf_impl.float64 import compute_in_float64

compute_in_float64()

class UserLayer(layers.Layer):
    def __init__(self, change, always=False, **numbers):
        super().__init__(name=numbers.pop("name", None))
        self.change, self.always, self.seed = change, always, random.SeedGenerator(1)
        vars(self).update(numbers)

    def call(self, x, training=False):
        return self.change(self, x) if training or self.always else x

def drop(layer, x):
    return x * keras.ops.floor(0.8 + random.uniform((len(x), 1, 1, 1), seed=layer.seed))

def add(layer, x):
    return x + 0.3 * random.normal(keras.ops.shape(x), seed=layer.seed)

aligned = {
    "stochastic_depth": StochasticDepth(0.2),
    "examples": layers.Dropout(0.2, noise_shape=(None, 1, 1, 1)),
    "channels": layers.Dropout(0.2, noise_shape=(None, 1, 1, None)),
    "spatial": layers.SpatialDropout2D(0.2),
    "unscaled": UserLayer(drop, drop_prob=0.2),
    "alpha": layers.AlphaDropout(0.2),
    "terms": layers.GaussianNoise(0.3),
    "own_terms": UserLayer(add, stddev=0.3),
    "factors": layers.GaussianDropout(0.2),
}
others = {
    "rows": layers.Dropout(0.2, noise_shape=(None, None, 1, 1)),
    "batch": layers.Dropout(0.2, noise_shape=(1, 1, 1, 1)),
    "first": layers.SpatialDropout2D(0.2, data_format="channels_first"),
    "always": UserLayer(add, always=True, stddev=0.3),
    "unknown": UserLayer(add),
}
noises, arrays = {}, {}
for name, layer in {**aligned, **others}.items():
    model = keras.Sequential([layer])
    model(X)
    found, refused = find_dropouts(model)
    noises[name] = [[asdict(noise) for noise in found.values()], len(refused)]
    if name in aligned:
        disable_dropout(model, found)
        arrays[f"{name} without noise"] = layer(X, training=True)
        (noise,) = found.values()
        layout = ChannelLayout((6, 4, 5), (6, 4, 5))
        align_dropout(layer, "0", noise, layout)
        for compiled in (False, True) if name in ("spatial", "alpha", "factors") else (False,):
            @tf.function(jit_compile=compiled, autograph=False)
            def train(keys, x):
                with use_dropout_keys(keys):
                    return layer(x, training=True), layer(x, training=True)
            arrays[f"{name} {compiled}"], arrays[f"{name} {compiled} again"] = train(KEYS, X)
        shards = train.python_function(KEYS[:1], X[:1]), train.python_function(KEYS[1:], X[1:])
        arrays[f"{name} of shards"] = np.concatenate([first for first, again in shards])
        arrays[f"{name} in evaluation"] = layer(X, training=False)
np.savez(sys.argv[1], noises=json.dumps(noises), **arrays)
"""


def test_layers_compute_what_pytorchs_compute(tmp_path: Path, keras_python: Python) -> None:
    """The same holds with XLA, except for the rounding of a fused multiplication and addition."""
    keras_python(COMPUTE, tmp_path / "arrays.npz")
    arrays = dict(np.load(tmp_path / "arrays.npz"))
    noises = json.loads(str(arrays["noises"]))
    for name, noise in NOISES.items():
        (recognized,), _ = noises.pop(name)
        assert Noise(**recognized).is_like(noise), name
        model = Sequential(Module())
        align_dropout(model, {"0": noise})
        use_dropout_keys(model.double().train(), torch.from_numpy(KEYS))
        x = torch.from_numpy(np.moveaxis(X, -1, 1).copy())
        expected, again = (model(x).movedim(1, -1).numpy() for _ in range(2))
        assert np.abs(expected - X).max() > 0.1 and np.abs(expected - again).max() > 0.1
        assert np.array_equal(arrays[f"{name} False"], expected), name
        assert np.array_equal(arrays[f"{name} False again"], again), name
        assert np.array_equal(arrays[f"{name} of shards"], expected)
        np.testing.assert_allclose(arrays.get(f"{name} True", expected), expected, rtol=0, atol=1e-15)
        assert np.array_equal(arrays[f"{name} in evaluation"], X) and np.array_equal(arrays[f"{name} without noise"], X)
    assert noises == {
        name: [[], refused] for name, refused in {"rows": 1, "batch": 1, "first": 1, "always": 0, "unknown": 1}.items()
    }
