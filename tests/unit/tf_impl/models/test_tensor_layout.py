"""Tests of the conversion of tensors between the layouts, and of Adafactor in fused variables.

TensorFlow runs in a separate process.
"""

import json
from pathlib import Path

import numpy as np
import pytest

from common.config.compose import save_config
from common.training.optimizer_rules import build_rule
from tests.conftest import MakeConfig, Python

pytestmark = pytest.mark.slow

STEPS = 4
SHAPES = {
    "dense.weight": (4, 3),
    "dense.bias": (4,),
    "attention.weight": (6, 3),  # in three variables
    "first.weight": (2, 3),  # in one variable with second.weight
    "second.weight": (2, 3),
    "gru.weight": (6, 2),  # with its blocks in another order
    "kernel.weight": (4, 3, 2, 5),
    "heads.weight": (4, 6),
    "scale": (),
    "lstm.bias_ih": (8,),  # in one variable with the next one, as their sum
    "lstm.bias_hh": (8,),
}
VARIABLES = [  # the shape of each variable in Keras, and its transformation
    ((3, 4), "dense.weight | transpose 1 0"),
    ((4,), "dense.bias"),
    ((3, 2), "attention.weight[4:6] | transpose 1 0"),
    ((3, 2), "attention.weight | rows 0 2 | transpose 1 0"),
    ((3, 2), "attention.weight[2:4] | transpose 1 0"),
    ((2, 3, 2), "first.weight, second.weight | transpose 1 2 0"),
    ((2, 6), "gru.weight | blocks 1 0 2 | transpose 1 0"),
    ((2, 5, 3, 4), "kernel.weight | transpose 2 3 1 0"),
    ((6, 2, 2), "heads.weight | transpose 1 0 | reshape 6 2 2"),
    ((), "scale"),
    ((8,), "lstm.bias_ih + lstm.bias_hh"),
]
UNTRAINED = "lstm.bias_hh"  # it stays 0
TRAIN = """
import json
import sys
from pathlib import Path
import keras
import numpy as np
import tensorflow as tf
from common.config.compose import load_config
from common.map.transformation import parse_transformation
from common.training.state import Position
from tests.unit.tf_impl.models.test_tensor_layout import SHAPES, STEPS, VARIABLES, make_arrays
from tf_impl.models.layout import TransformedParameter
from tf_impl.models.tensor_layout import TransposedLayout, build_layouts
from tf_impl.optimizer import SCALARS, Optimizer

keras.config.set_floatx("float64")

class Model(keras.Model):
    def __init__(self, variables):
        super().__init__()
        self.named_parameters = []
        for number, (shape, text) in enumerate(variables):
            variable = self.add_weight(name=f"v{number}", shape=shape, dtype="float64")
            transformation = parse_transformation(text)
            shapes = {source.name: SHAPES[source.name] for source in transformation.sources}
            self.named_parameters.append(TransformedParameter(variable, transformation, shapes))
        self.built = True

config, path = load_config(Path(sys.argv[1])), Path(sys.argv[2])
model = Model(VARIABLES)
layouts = build_layouts(model.named_parameters)
print(json.dumps([[layout.numbers, isinstance(layout, TransposedLayout)] for layout in layouts]))
optimizer = Optimizer(config, model)
for parameter in model.named_parameters:
    parameter.variable.assign(parameter.to_keras(make_arrays(0)))
signature = [[tf.TensorSpec(shape, tf.float64) for shape, _ in VARIABLES], SCALARS]
update = tf.function(optimizer.update, input_signature=signature, jit_compile=True)
for step in range(1, STEPS + 1):
    if step == 3:  # resume from a checkpoint
        slots = optimizer.slots()
        optimizer = Optimizer(config, model)
        optimizer.load(slots, Position(2, 2))
        update = tf.function(optimizer.update, input_signature=signature)
    gradients = [parameter.to_keras(make_arrays(step)) for parameter in model.named_parameters]
    update([tf.constant(gradient) for gradient in gradients], optimizer.compute_scalars(step))
arrays = {}
for parameter in model.named_parameters:
    parameter.to_torch(parameter.variable.numpy(), arrays)
np.savez(path, **arrays, **optimizer.slots())
for variables in ([((4,), "dense.bias + dense.bias")], [((2,), "dense.bias[0:2]")]):
    try:
        Optimizer(config, Model(variables))
    except Exception as error:
        print(error)
"""


def make_arrays(seed: int) -> dict[str, np.ndarray]:
    """Return an array for each parameter: weights, or the gradients of a step."""
    stream = np.random.default_rng(seed)
    arrays = {name: np.asarray(stream.normal(size=shape)) for name, shape in SHAPES.items()}
    return {**arrays, UNTRAINED: np.zeros(SHAPES[UNTRAINED])}


def test_adafactor_updates_the_parameters_of_pytorch(
    make_config: MakeConfig, tmp_path: Path, keras_python: Python
) -> None:
    config = make_config(
        "optimizer=adafactor",
        "optimizer.epsilon=1e-6",
        "optimizer.max_grad_norm=null",
        "schedule=constant",
        "schedule.warmup_steps=0",
        "train.precision=float64",
    )
    save_config(config, tmp_path / "config.yaml")
    output = keras_python(TRAIN, tmp_path / "config.yaml", tmp_path / "arrays.npz").splitlines()
    rule, weights = build_rule(config.optimizer), make_arrays(0)
    shapes = {name: config.optimizer.list_slots(name, shape) for name, shape in SHAPES.items() if name != UNTRAINED}
    slots = {name: [np.zeros(shape) for shape in by_slot.values()] for name, by_slot in shapes.items()}
    for step in range(1, STEPS + 1):
        for name in shapes:
            gradient = make_arrays(step)[name]
            scalars = rule.compute_scalars(config.optimizer.learning_rate, 0.0, step)
            change, slots[name] = rule.compute(np, weights[name], gradient, slots[name], scalars)
            weights[name] = weights[name] + change
    named_slots = {f"{slot}.{name}": x for name in shapes for slot, x in zip(shapes[name], slots[name], strict=True)}
    expected = weights | named_slots
    arrays = np.load(tmp_path / "arrays.npz")
    assert {*arrays} == {*expected}
    for name, array in expected.items():
        np.testing.assert_allclose(arrays[name], array, rtol=1e-12, atol=1e-12, err_msg=name)
    is_transposed = {tuple(numbers): transposed for numbers, transposed in json.loads(output[0])}
    expected_axes: dict[tuple[int, ...], bool] = {(number,): number not in (5, 6) for number in (0, 1, *range(5, 11))}
    assert is_transposed == expected_axes | {(2, 3, 4): False}
    for line in output[1:]:
        assert line.startswith("optimizer.kind=adafactor: needs whole parameters, but TensorFlow's"), line
        assert line.endswith("/v0 does not hold each element of dense.bias once; choose another optimizer"), line
    assert len(output) == 3
