"""Tests of the losses and metrics of every task against their definitions, in a TensorFlow process."""

from pathlib import Path

import numpy as np
import pytest
import torch

from tests.conftest import Python
from tests.unit.reference_losses import CASES, expected
from torch_impl.batches import to_tensors
from torch_impl.task import build_task_functions

pytestmark = pytest.mark.slow

COMPUTE = """
import sys
import numpy as np
import tensorflow as tf
from tests.unit.reference_losses import CASES
from tf_impl.batches import to_tensors
from tf_impl.task import build_task_functions

arrays = {}
for name, (task, outputs, labels) in CASES.items():
    (batch,) = to_tensors([{"outputs": outputs, "labels": labels}])
    functions = build_task_functions(task)
    with tf.GradientTape() as tape:
        tape.watch(batch["outputs"])
        losses = functions.losses(batch["outputs"], batch["labels"])
    arrays[f"{name}/losses"] = losses.numpy()
    arrays[f"{name}/metric"] = functions.metric(batch["outputs"], batch["labels"]).numpy()
    arrays[f"{name}/gradient"] = tape.gradient(losses, batch["outputs"]).numpy()

import keras

keras.config.set_epsilon(1e-300)
def add(name, compute):
    _, outputs, labels = CASES[name]
    arrays[f"{name}/keras"] = compute(outputs, labels).numpy()

def one_hot(classes):
    return np.eye(4)[classes]

add("hinge of classes", lambda x, y: keras.losses.categorical_hinge(one_hot(y), x))
add("hinge of yes or no", lambda x, y: keras.losses.hinge(y.astype(float), x))
add("focal yes or no", lambda x, y: keras.losses.binary_focal_crossentropy(
    y.astype(float), x, apply_class_balancing=True, alpha=0.25, gamma=2.0, from_logits=True))
add("dice of yes or no", lambda x, y: keras.losses.dice(y.astype(float), tf.sigmoid(x), axis=1))
add("several yes or no", lambda x, y: keras.losses.binary_crossentropy(y.astype(float), x, from_logits=True))
np.savez(sys.argv[1], **arrays)
"""


@pytest.fixture(scope="module")
def computed(tmp_path_factory: pytest.TempPathFactory, keras_python: Python) -> dict[str, np.ndarray]:
    path: Path = tmp_path_factory.mktemp("losses") / "found.npz"
    keras_python(COMPUTE, path)
    return dict(np.load(path))


@pytest.mark.parametrize("name", CASES)
def test_losses_and_metrics_follow_their_definitions(computed: dict[str, np.ndarray], name: str) -> None:
    for part, wanted in expected(*CASES[name]).items():
        array = computed[f"{name}/{part}"]
        assert array.shape == (5,)
        np.testing.assert_allclose(array, wanted, rtol=1e-12, atol=1e-15, err_msg=part)


@pytest.mark.parametrize("name", CASES)
def test_gradients_are_those_of_pytorch(computed: dict[str, np.ndarray], name: str) -> None:
    task, outputs, labels = CASES[name]
    leaf = torch.tensor(outputs, requires_grad=True)
    (batch,) = to_tensors([{"labels": labels}], torch.device("cpu"))
    build_task_functions(task).losses(leaf, batch["labels"]).sum().backward()
    assert leaf.grad is not None
    np.testing.assert_allclose(computed[f"{name}/gradient"], leaf.grad.numpy(), rtol=1e-11, atol=1e-14)


@pytest.mark.parametrize(
    "name", ["hinge of classes", "hinge of yes or no", "focal yes or no", "dice of yes or no", "several yes or no"]
)
def test_losses_are_those_of_keras(computed: dict[str, np.ndarray], name: str) -> None:
    tolerance = 1e-4 if "dice" in name else 1e-12  # Keras adds its epsilon to the denominator only
    np.testing.assert_allclose(computed[f"{name}/losses"], computed[f"{name}/keras"], rtol=tolerance, atol=1e-15)
