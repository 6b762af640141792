"""Optimizers, schedules and parameter groups of both sides in combination, against keras.optimizers with its schedules.

TensorFlow runs in a separate process.
"""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from common.config.compose import load_config, save_config
from common.config.schema import Config
from common.map.transformation import parse_transformation
from tests.conftest import MakeConfig, Python, in_matrix
from tests.unit.combined_optimizers import KINDS, LAYOUTS, STEPS, expand, list_combinations, make_arrays
from torch_impl.optimizer import Optimizer

pytestmark = pytest.mark.slow

PARTS = 33

TRAIN = """
import json, math, sys
from pathlib import Path
import keras
import numpy as np
import tensorflow as tf
from common.config.compose import load_config
from common.map.transformation import parse_transformation
from tests.unit.combined_optimizers import CYCLED, LAYOUTS, RATE, SHAPES, STEPS, TOTAL, get_group, make_arrays
from tf_impl.models.layout import TransformedParameter
from tf_impl.optimizer import SCALARS, Optimizer

keras.config.set_floatx("float64")
BETAS, EPSILON = {"beta_1": 0.875, "beta_2": 0.96875}, 2**-10
MUON = {**{f"adam_{name}": beta for name, beta in BETAS.items()}, "exclude_layers": ["^embed", "^head"]}
TRANSFORMATIONS = {name: parse_transformation(" | ".join([name, *LAYOUTS.get(name, "").split("|")]).rstrip(" |"))
                   for name in SHAPES}
OPTIMIZERS = {
    "sgd": lambda **k: keras.optimizers.SGD(momentum=0.5, nesterov=True, **k),
    "adam": lambda **k: keras.optimizers.Adam(**BETAS, epsilon=EPSILON, **k),
    "adamw": lambda **k: keras.optimizers.AdamW(**BETAS, epsilon=EPSILON, **k),
    "rmsprop": lambda **k: keras.optimizers.RMSprop(rho=0.9375, momentum=0.5, centered=True, epsilon=EPSILON, **k),
    "adagrad": lambda **k: keras.optimizers.Adagrad(initial_accumulator_value=0.125, epsilon=EPSILON, **k),
    "adadelta": lambda **k: keras.optimizers.Adadelta(rho=0.9375, epsilon=EPSILON, **k),
    "adamax": lambda **k: keras.optimizers.Adamax(**BETAS, epsilon=EPSILON, **k),
    "nadam": lambda **k: keras.optimizers.Nadam(**BETAS, epsilon=EPSILON, **k),
    "adafactor": lambda **k: keras.optimizers.Adafactor(
        beta_2_decay=-0.75, epsilon_1=EPSILON, epsilon_2=2**-8, clip_threshold=1.25, **k
    ),
    "muon": lambda **k: keras.optimizers.Muon(
        **MUON, epsilon=EPSILON, momentum=0.5, adam_weight_decay=k["weight_decay"], **k
    ),
}
FACTORS = {
    "constant": lambda n: 1.0,
    "linear": lambda n: 1 - n / TOTAL,
    "cosine": lambda n: 0.25 + 0.75 * (1 + math.cos(math.pi * n / TOTAL)) / 2,
    "polynomial": lambda n: (1 - n / TOTAL) ** 2,
    "cosine_restarts": lambda n: restart(n, (n >= 5) * 5 + (n >= 15) * 10),  # cycles of 5, 10 and 20 steps
    "step": lambda n: 0.5 ** (n // 7),
    "multi_step": lambda n: 0.5 ** ((n >= 5) + (n >= 12)),
    "piecewise": lambda n: 0.5 if n <= 4 else 1.0 if n <= 9 else 0.25,
    "inverse_sqrt": lambda n: math.sqrt(10 / (n + 10)),
    "exponential": lambda n: 0.9**n,
    "one_cycle": lambda n: interpolate(n, 1 / 25, 1.0, 1 / 250000),
}

def restart(n, start):
    return (1 + math.cos(math.pi * (n - start) / (start + 5))) / 2

PEAK = 0.3 * TOTAL - 1  # of one_cycle

def interpolate(n, first, peak, final):
    start, end, progress = (first, peak, n / PEAK) if n <= PEAK else (peak, final, (n - PEAK) / (TOTAL - 1 - PEAK))
    return end + (start - end) * (1 + math.cos(math.pi * progress)) / 2

class Model(keras.Model):
    def __init__(self):
        super().__init__()
        self.named_parameters = []
        for name, array in convert(make_arrays(0)).items():
            variable = self.add_weight(name=name.replace(".", "_"), shape=array.shape, dtype="float64")
            variable.assign(array)
            self.named_parameters.append(TransformedParameter(variable, TRANSFORMATIONS[name], {name: SHAPES[name]}))
        self.built = True

def convert(arrays):
    return {name: TRANSFORMATIONS[name].to_keras(arrays) for name in arrays}

results = {}
for path in sorted(Path(sys.argv[1]).glob("*.yaml")):
    kind, schedule, preset = path.stem.split(",")
    model = Model()
    optimizer = Optimizer(load_config(path), model)
    signature = [[tf.TensorSpec(x.variable.shape, tf.float64) for x in model.named_parameters], SCALARS]
    update = tf.function(optimizer.update, input_signature=signature)
    initial = convert(make_arrays(0))
    expected = {name: keras.Variable(array, dtype="float64", name=name) for name, array in initial.items()}
    members = {}  # names of the parameters by the factor of the rate and the weight decay
    for name in expected:
        members.setdefault(get_group(preset, name), []).append(name)
    stock = {group: OPTIMIZERS[kind](learning_rate=RATE, weight_decay=group[1]) for group in members}
    for group, names in members.items():
        stock[group].build([expected[name] for name in names])
    for step in range(1, STEPS + 1):
        gradients = {name: tf.constant(gradient) for name, gradient in convert(make_arrays(step)).items()}
        update([*gradients.values()], optimizer.compute_scalars(step))
        for group, names in members.items():
            stock[group].learning_rate.assign(RATE * group[0] * FACTORS[schedule](step - 1))
            if schedule == "one_cycle" and kind in CYCLED:
                name = "momentum" if kind in ("sgd", "rmsprop") else "beta_1"
                setattr(stock[group], name, interpolate(step - 1, 0.875, 0.5, 0.875))
            stock[group].apply([gradients[name] for name in names])
    results[path.stem] = max(
        float(np.max(np.abs(parameter.variable.numpy() - variable.numpy())))
        for parameter, variable in zip(model.named_parameters, expected.values())
    )
    np.savez(path.with_suffix(".npz"), **{name: variable.numpy() for name, variable in expected.items()})
print(json.dumps(results))
"""


def train_in_pytorch(config: Config) -> dict[str, np.ndarray]:
    """Return the weights after all steps by the optimizer of PyTorch's side."""
    parameters = {name: torch.nn.Parameter(torch.from_numpy(array)) for name, array in make_arrays(0).items()}
    optimizer = Optimizer(config, parameters)
    for step in range(1, STEPS + 1):
        for name, gradient in make_arrays(step).items():
            parameters[name].grad = torch.from_numpy(gradient)
        optimizer.update(step)
    return {name: parameter.detach().numpy() for name, parameter in parameters.items()}


@pytest.mark.parametrize("part", [0, *map(in_matrix, range(1, PARTS))])
def test_updates_are_those_of_keras(part: int, make_config: MakeConfig, tmp_path: Path, keras_python: Python) -> None:
    """Train a part of the combinations, because Keras takes long."""
    for kind, schedule, preset, overrides in list_combinations("keras", part, PARTS):
        save_config(expand(make_config(*overrides)), tmp_path / f"{kind},{schedule},{preset}.yaml")
    differences = json.loads(keras_python(TRAIN, str(tmp_path)).splitlines()[-1])
    assert {name.partition(",")[0] for name in differences} == {*KINDS}
    for path in tmp_path.glob("*.npz"):  # PyTorch's side computes the same
        config = load_config(path.with_suffix(".yaml"))
        weights = train_in_pytorch(config)
        for name, array in np.load(path).items():
            arrays = {name: weights[name]}
            text = " | ".join([name, *([LAYOUTS[name]] if name in LAYOUTS else [])])
            difference = np.abs(parse_transformation(text).to_keras(arrays) - array).max()
            differences[f"{path.stem},{name}"] = float(difference)
    rounded = ("nadam", "one_cycle")  # Keras rounds their momentum to float32
    assert {
        name: difference
        for name, difference in differences.items()
        if not difference < (1e-6 if any(kind in name.split(",") for kind in rounded) else 1e-12)
    } == {}
