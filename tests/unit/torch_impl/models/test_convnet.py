"""Tests of the convolutional network against the formulas of the tutorial."""

import numpy as np
import pytest
import torch
from torch.nn import functional

from common.data.batches import GlobalBatch
from common.run.prepare import prepare_inputs
from tests.conftest import MakeConfig
from torch_impl.batches import to_tensors
from torch_impl.models import build_model
from torch_impl.models.weights import read_weights
from torch_impl.step import compute_outputs

CPU = torch.device("cpu")


def test_logits_are_those_of_the_tutorial(make_config: MakeConfig) -> None:
    config = make_config("model=convnet", "train.precision=float64")
    _, prepared = prepare_inputs(config, None)
    cache, initial = prepared.cache, prepared.initial
    ids = np.arange(7)
    arrays = cache.train.gather(ids, ids)
    w = {name: torch.from_numpy(weight).double() for name, weight in initial.weights().items()}
    x = torch.from_numpy(np.moveaxis(arrays["images"], 3, 1)).double()
    x = functional.relu(functional.max_pool2d(functional.conv2d(x, w["conv1.weight"], w["conv1.bias"], padding=2), 2))
    x = functional.relu(functional.max_pool2d(functional.conv2d(x, w["conv2.weight"], w["conv2.bias"], padding=2), 2))
    x = functional.relu(functional.linear(x.reshape(7, -1), w["fc1.weight"], w["fc1.bias"]))
    expected = functional.linear(x, w["fc2.weight"], w["fc2.bias"])
    logits = compute_outputs(build_model(config, initial), to_tensors([arrays], CPU)[0], "float64")
    assert logits.dtype == torch.float64
    assert torch.allclose(logits, expected, rtol=0, atol=1e-14)


@pytest.mark.parametrize("precision", ["float32", "bfloat16", "float64"])
def test_precision_of_weights_and_dropout_only_in_training(make_config: MakeConfig, precision: str) -> None:
    config = make_config("model=convnet", "model.dropout=0.5", f"train.precision={precision}")
    _, prepared = prepare_inputs(config, None)
    cache, initial = prepared.cache, prepared.initial
    model = build_model(config, initial)
    assert {str(weight.dtype) for weight in read_weights(model).values()} == {
        "float64" if precision == "float64" else "float32"
    }
    assert all(
        np.array_equal(weight, initial.weights()[name].astype(weight.dtype))
        for name, weight in read_weights(model).items()
    )
    batch = to_tensors(GlobalBatch(1, np.arange(5), cache.train, "global", dropout_seed=0).shard(0, 1), CPU)[0]
    first, second = (compute_outputs(model.eval(), batch, precision) for _ in range(2))
    assert torch.equal(first, second)
    assert not torch.equal(first, compute_outputs(model.train(), batch, precision))


def test_gradients_have_the_strides_of_their_parameters(make_config: MakeConfig) -> None:
    """With one channel the strides could differ, and DistributedDataParallel would warn."""
    config = make_config("model=convnet")
    _, prepared = prepare_inputs(config, None)
    cache, initial = prepared.cache, prepared.initial
    model = build_model(config, initial)
    batch = to_tensors([cache.train.gather(np.arange(5), np.arange(5))], CPU)[0]
    compute_outputs(model, batch, "float32").sum().backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None and parameter.grad.stride() == parameter.stride(), name
