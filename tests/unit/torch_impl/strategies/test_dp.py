"""Tests that each form of DP's loss has the right traffic and that no form changes the loss curve."""

import numpy as np
import pytest

from common.data.batches import training_batches
from common.training.strategy import StepResult
from tests.conftest import MakeConfig
from tests.unit.torch_impl.ready import ALONE, make_ready
from torch_impl.strategies.dp import DP, TRAFFIC_KINDS
from torch_impl.strategies.single import Single

pytestmark = pytest.mark.slow

REPLICAS, CLASSES, FLOAT = 3, 3, 4
LOSSES = ("gathered", "in_forward", "criterion")
SIZES = {1: [7, 7, 6], 3: [7, 7, 6], 4: [1, 1, 1]}  # the fourth global batch has 2 of the 62 examples, and a filler


def train(make_config: MakeConfig, *overrides: str) -> tuple[DP | Single, list[StepResult]]:
    sizes = ("train.global_batch_size=20", "data.train_examples=62", "train.steps=5")
    context = make_ready(make_config(*sizes, *overrides))
    strategy = (DP if context.config.strategy.kind == "dp" else Single)(context, ALONE)
    batches = training_batches(context.inputs.cache.train, 20, 0, range(1, 6), context.config.train.padding)
    return strategy, list(strategy.train(batches))


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("output", [0, 2])
def test_bytes_by_replica(small_config: MakeConfig, loss: str, output: int) -> None:
    overrides = (f"strategy.loss={loss}", f"strategy.output_device={output}", f"strategy.replicas={REPLICAS}")
    strategy, results = train(small_config, "strategy=dp", *overrides)
    parameters = sum(parameter.nbytes for parameter in strategy.model.parameters())
    for step, sizes in SIZES.items():
        traffic = results[step - 1].traffic
        assert traffic is not None and set(traffic) == set(TRAFFIC_KINDS)
        moved = [0, *[parameters] * (REPLICAS - 1)]
        assert traffic["broadcast"] == traffic["reduced"] == moved
        whole, shards = sum(sizes) * CLASSES * FLOAT, [size * CLASSES * FLOAT for size in sizes]
        if loss == "gathered":
            assert traffic["gathered"] == [0 if index == output else count for index, count in enumerate(shards)]
            assert traffic["logits"] == [count + whole * (index == output) for index, count in enumerate(shards)]
        else:
            assert traffic["gathered"] == [FLOAT * (index != output) for index in range(REPLICAS)]
            assert traffic["logits"] == shards
        assert traffic["scattered"][0] == 0
        assert min(traffic["scattered"][1:]) > 0 and min(traffic["memory"]) > 0


@pytest.mark.parametrize("loss", LOSSES)
def test_uneven_shards_are_weighted_exactly(small_config: MakeConfig, loss: str) -> None:
    exact = "train.precision=float64"
    _, references = train(small_config, exact)
    _, results = train(small_config, exact, "strategy=dp", f"strategy.replicas={REPLICAS}", f"strategy.loss={loss}")
    for expected, result in zip(references, results, strict=True):
        np.testing.assert_allclose(float(result.loss), float(expected.loss), rtol=1e-12)
        np.testing.assert_allclose(float(result.grad_norm), float(expected.grad_norm), rtol=1e-12)
