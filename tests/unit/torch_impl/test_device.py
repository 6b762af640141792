"""Tests that a replica computes on its own device only, without a GPU: tensors of a device that has no memory."""

import json
from pathlib import Path

import pytest

from tests.conftest import Python

pytestmark = pytest.mark.slow

# The backend and the mode are not for public use: FakeTensorMode computes shapes, types and devices, and refuses
# operations on tensors of several devices. The process keeps the backend, so that the tests run in one of their own.
TRAIN = """
import json, sys
from unittest.mock import patch

import torch
from hydra import compose, initialize_config_dir
from torch._subclasses.fake_tensor import FakeTensorMode, unset_fake_temporarily
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

from common.config.compose import parse_config
from common.training.planned_batches import planned_batches, validation_batches
from tests.conftest import CONF, SMALL_CORPUS
from tests.unit.torch_impl.ready import ALONE, make_ready
from torch_impl.batch_norm import synchronize_batch_norm
from torch_impl.strategies import single

_setup_privateuseone_for_python_backend("fake")
torch.fake.get_amp_supported_dtype = lambda: []  # autocast asks for it although it is off
DEVICE = torch.device("fake", 0)


class NoMemory(FakeTensorMode):
    avoid_device_init = True  # copies to the device are not computed


def prepare(*overrides):
    with initialize_config_dir(CONF, version_base="1.3"):
        return make_ready(parse_config(compose("train", [*overrides, f"cache_dir={sys.argv[1]}"])))


def train(context, plant):
    build = single.build_model

    def build_on_the_cpu(*arguments):
        with unset_fake_temporarily():
            model = build(*arguments)
            classes = len([*model.parameters()][-1])
            model.norm = torch.nn.BatchNorm1d(classes)
        summand = torch.ones(classes) if plant == "layer" else 0
        model.register_forward_hook(lambda model, _, outputs: model.norm(outputs) + summand)
        synchronize_batch_norm(model, lambda sums: sums + torch.ones(1) if plant == "batch norm" else sums)
        return model

    with (
        NoMemory(allow_non_fake_inputs=True),
        patch.object(single, "build_model", build_on_the_cpu),
        patch.object(single, "select_replica_devices", lambda count: [DEVICE] * count),
    ):
        strategy, splits = single.Single(context, ALONE), context.inputs.cache
        results = list(strategy.train(planned_batches(context.config, splits.train, range(1, 3))))
        strategy.model.eval()
        sums = strategy._compute_evaluation_sums(next(validation_batches(context.config, splits.validation)))
    return sorted({str(tensor.device) for tensor in (results[-1].loss, results[-1].grad_norm, sums)})


def try_to_train(*arguments):
    try:
        return train(*arguments)
    except RuntimeError as error:
        return [f"{type(error).__name__}: {error}"]


bert = prepare(*SMALL_CORPUS, "model=bert_tiny", "model.dropout=0.1")
convnet = prepare("model=convnet", "optimizer=adamw", "task.label_smoothing=0.1")
print(json.dumps({
    "bert": try_to_train(bert, None),
    "convnet": try_to_train(convnet, None),
    "planted in a layer": try_to_train(bert, "layer"),
    "planted in batch norm": try_to_train(convnet, "batch norm"),
}))
"""


def test_a_step_computes_on_the_device_of_its_replica(python: Python, tmp_path: Path) -> None:
    devices = json.loads(python(TRAIN, tmp_path))
    for name, seen in devices.items():
        if name.startswith("planted"):
            assert "at least two devices" in seen[0], (name, seen)
        else:
            assert seen == ["fake:0"], (name, seen)
