"""Optimizers, schedules and parameter groups in combination, against keras.optimizers with its schedules.

TensorFlow runs in a separate process.
"""

import json
from pathlib import Path

import pytest

from common.config.compose import save_config
from tests.conftest import MakeConfig, Python, in_matrix
from tests.unit.combined_optimizers import CYCLED, KINDS, expand, list_combinations

pytestmark = pytest.mark.slow

TRAIN = """
import json, math, sys
from pathlib import Path
import keras
import numpy as np
import tensorflow as tf
from common.config.compose import load_config
from tests.unit.combined_optimizers import CYCLED, RATE, SHAPES, STEPS, TOTAL, get_group, make_arrays
from tf_impl.models.layout import NamedParameter
from tf_impl.optimizer import SCALARS, Optimizer

keras.config.set_floatx("float64")
BETAS, EPSILON = {"beta_1": 0.875, "beta_2": 0.96875}, 2**-10
OPTIMIZERS = {
    "sgd": lambda **k: keras.optimizers.SGD(momentum=0.5, nesterov=True, **k),
    "adam": lambda **k: keras.optimizers.Adam(**BETAS, epsilon=EPSILON, **k),
    "adamw": lambda **k: keras.optimizers.AdamW(**BETAS, epsilon=EPSILON, **k),
    "rmsprop": lambda **k: keras.optimizers.RMSprop(rho=0.9375, momentum=0.5, centered=True, epsilon=EPSILON, **k),
    "adagrad": lambda **k: keras.optimizers.Adagrad(initial_accumulator_value=0.125, epsilon=EPSILON, **k),
    "adadelta": lambda **k: keras.optimizers.Adadelta(rho=0.9375, epsilon=EPSILON, **k),
    "adamax": lambda **k: keras.optimizers.Adamax(**BETAS, epsilon=EPSILON, **k),
    "nadam": lambda **k: keras.optimizers.Nadam(**BETAS, epsilon=EPSILON, **k),
}
FACTORS = {
    "constant": lambda n: 1.0,
    "linear": lambda n: 1 - n / TOTAL,
    "cosine": lambda n: 0.25 + 0.75 * (1 + math.cos(math.pi * n / TOTAL)) / 2,
    "polynomial": lambda n: (1 - n / TOTAL) ** 2,
    "step": lambda n: 0.5 ** (n // 7),
    "exponential": lambda n: 0.9**n,
    "one_cycle": lambda n: interpolate(n, 1 / 25, 1.0, 1 / 250000),
}
PEAK = 0.3 * TOTAL - 1  # of one_cycle

def interpolate(n, first, peak, final):
    start, end, progress = (first, peak, n / PEAK) if n <= PEAK else (peak, final, (n - PEAK) / (TOTAL - 1 - PEAK))
    return end + (start - end) * (1 + math.cos(math.pi * progress)) / 2

class Model(keras.Model):
    def __init__(self):
        super().__init__()
        for name, array in make_arrays(0).items():
            key = name.replace(".", "_")
            setattr(self, key, self.add_weight(name=key, shape=array.shape, dtype="float64"))
            getattr(self, key).assign(array)
        self.built = True
        self.named_parameters = [
            NamedParameter(name, getattr(self, name.replace(".", "_")), shape, None) for name, shape in SHAPES.items()
        ]

results = {}
for path in sorted(Path(sys.argv[1]).glob("*.yaml")):
    kind, schedule, preset = path.stem.split(",")
    model = Model()
    optimizer = Optimizer(load_config(path), model)
    signature = [[tf.TensorSpec(shape, tf.float64) for shape in SHAPES.values()], SCALARS]
    update = tf.function(optimizer.update, input_signature=signature)
    expected = {name: keras.Variable(array, dtype="float64") for name, array in make_arrays(0).items()}
    members = {}  # names of the parameters by the factor of the rate and the weight decay
    for name in expected:
        members.setdefault(get_group(preset, name), []).append(name)
    stock = {group: OPTIMIZERS[kind](learning_rate=RATE, weight_decay=group[1]) for group in members}
    for group, names in members.items():
        stock[group].build([expected[name] for name in names])
    for step in range(1, STEPS + 1):
        gradients = {name: tf.constant(gradient) for name, gradient in make_arrays(step).items()}
        update([*gradients.values()], optimizer.compute_scalars(step))
        for group, names in members.items():
            stock[group].learning_rate.assign(RATE * group[0] * FACTORS[schedule](step - 1))
            if schedule == "one_cycle" and kind in CYCLED:
                name = "momentum" if kind in ("sgd", "rmsprop") else "beta_1"
                setattr(stock[group], name, interpolate(step - 1, 0.875, 0.5, 0.875))
            stock[group].apply([gradients[name] for name in names])
    results[path.stem] = max(
        float(np.max(np.abs(parameter.variable.numpy() - expected[parameter.name].numpy())))
        for parameter in model.named_parameters
    )
print(json.dumps(results))
"""


@pytest.mark.parametrize("quarter", [0, *map(in_matrix, (1, 2, 3))])
def test_updates_are_those_of_keras(
    quarter: int, make_config: MakeConfig, tmp_path: Path, keras_python: Python
) -> None:
    """Train a quarter of the combinations, because Keras takes long, and every optimizer whose momentum is cycled."""
    for index, (kind, schedule, preset, overrides) in enumerate(list_combinations("keras")):
        if index % 4 != quarter and not (schedule == "one_cycle" and kind in CYCLED):
            continue
        save_config(expand(make_config(*overrides)), tmp_path / f"{kind},{schedule},{preset}.yaml")
    differences = json.loads(keras_python(TRAIN, str(tmp_path)).splitlines()[-1])
    assert {name.partition(",")[0] for name in differences} == {*KINDS} - {"adafactor", "muon"}  # which have no keras
    rounded = ("nadam", "one_cycle")  # Keras rounds their momentum to float32
    assert {
        name: difference
        for name, difference in differences.items()
        if not difference < (1e-6 if any(kind in name.split(",") for kind in rounded) else 1e-12)
    } == {}
