"""Test of the time to assemble a batch, compared with the step that trains on it."""

import statistics
import time

import pytest

from common.data.batches import training_batches
from tests.conftest import MakeConfig
from tests.unit.torch_impl.ready import ALONE, make_ready
from torch_impl.strategies.single import Single


@pytest.mark.slow
def test_a_batch_costs_less_than_two_percent_of_a_bert_mini_step(make_config: MakeConfig) -> None:
    overrides = ("model=bert_mini", "data.train_examples=3000", "data.validation_examples=60", "train.steps=40")
    context = make_ready(make_config(*overrides))
    strategy = Single(context, ALONE)
    gathering, training = [], []
    for batch in training_batches(context.inputs.cache.train, 32, 0, range(1, 41), "unpadded"):
        began = time.perf_counter()
        batch.shard(0, 1)
        gathering.append(time.perf_counter() - began)
        if batch.step <= 10:
            began = time.perf_counter()
            list(strategy.train([batch]))
            training.append(time.perf_counter() - began)
    share = statistics.median(gathering) / statistics.median(training)
    print(f"a batch takes {share:.2%} of a bert_mini step")
    assert share < 0.02
