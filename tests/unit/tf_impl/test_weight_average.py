"""The average of the weights, against Keras's optimizers with `use_ema`. TensorFlow runs in a separate process."""

from pathlib import Path

import pytest

from common.config.compose import save_config
from tests.conftest import MakeConfig, Python

pytestmark = pytest.mark.slow  # imports TensorFlow

SCRIPT = """
import sys
from pathlib import Path
import keras
import numpy as np
import tensorflow as tf
from common.config.compose import load_config
from common.training.state import Position
from common.map.transformation import parse_transformation
from tf_impl.models.layout import NamedParameter, TransformedParameter
from tf_impl.optimizer import SCALARS, Optimizer

config = load_config(Path(sys.argv[1]))
keras.config.set_dtype_policy("float64")

def build():
    model = keras.Sequential([keras.Input([3]), keras.layers.Dense(2)])
    names = zip(("weight", "bias"), model.trainable_variables)
    model.named_parameters = [NamedParameter(name, variable, tuple(variable.shape), None) for name, variable in names]
    return model

model, stock_model = build(), build()
stock_model.set_weights(model.get_weights())
optimizer = Optimizer(config, model)
stock = keras.optimizers.SGD(0.05, use_ema=True, ema_momentum=0.8)
stock.build(stock_model.trainable_variables)

@tf.function(input_signature=[[tf.TensorSpec([3, 2], tf.float64), tf.TensorSpec([2], tf.float64)], SCALARS])
def update(gradients, scalars):
    return optimizer.update(gradients, scalars)

for step in range(1, 7):
    gradients = [tf.constant(np.random.default_rng(step + i).normal(size=shape)) for i, shape in enumerate([(3, 2), 2])]
    update(gradients, optimizer.compute_scalars(step))
    stock.apply(gradients)
slots = optimizer.slots()
expected = [average.numpy() for average in stock._model_variables_moving_average]
assert len(expected) == 2
for name, average in zip(("weight", "bias"), expected):
    np.testing.assert_allclose(slots[f"average.{name}"], average, rtol=1e-6, atol=1e-7)  # Keras's momentum is float32

weights = model.get_weights()
optimizer.swap_averages()
for name, swapped, weight in zip(("weight", "bias"), model.get_weights(), weights):
    assert (swapped == slots[f"average.{name}"]).all() and (swapped != weight).any()
optimizer.swap_averages()
assert all((a == b).all() for a, b in zip(model.get_weights(), weights))

resumed = Optimizer(config, build())
resumed.load(slots, Position(6, 6))
assert all((resumed.slots()[name] == array).all() for name, array in slots.items())

with_sum, shapes = build(), {"bias": (2,), "other": (2,)}  # PyTorch's checkpoints have no slots of the other term
variable = with_sum.named_parameters[1].variable
with_sum.named_parameters[1] = TransformedParameter(variable, parse_transformation("bias + other"), shapes)
resumed = Optimizer(config, with_sum)
resumed.load(slots, Position(6, 6))
assert all((resumed.slots()[name] == array).all() for name, array in slots.items())
"""


def test_the_average_is_that_of_keras(make_config: MakeConfig, tmp_path: Path, keras_python: Python) -> None:
    keys = ("optimizer=sgd", "optimizer.learning_rate=0.05", "optimizer.momentum=0", "optimizer.weight_decay=0")
    schedule = (
        "optimizer.max_grad_norm=null",
        "schedule=constant",
        "schedule.warmup_steps=0",
        "train.precision=float64",
    )
    save_config(make_config(*keys, *schedule, "ema.decay=0.8"), tmp_path / "config.yaml")
    keras_python(SCRIPT, str(tmp_path / "config.yaml"))
