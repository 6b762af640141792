"""Tests of DDP's options on several ranks: their effect on the loss curve, and the time of the reductions."""

import dataclasses
import os
from collections.abc import Iterator
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch.nn import Linear, Module

from common.config.schema import Config
from common.data.batches import GlobalBatch, training_batches
from common.run.prepare import prepare_inputs
from common.training.strategy import StepResult
from tests.conftest import MakeConfig
from tests.unit.torch_impl.ranks import Ranks
from tests.unit.torch_impl.ready import ALONE, context_of, make_ready
from torch_impl.communication.rendezvous import Group
from torch_impl.communication.shared_memory import SharedMemory
from torch_impl.models import build_model
from torch_impl.strategies import allreduce, ddp
from torch_impl.strategies import single as single_strategy
from torch_impl.strategies.allreduce import AllReduce
from torch_impl.strategies.ddp import DDP
from torch_impl.strategies.single import Single

pytestmark = pytest.mark.slow

Options = dict[str, Any]  # options of DDP, and train.padding
Weights = dict[str, np.ndarray]
Trained = tuple[list[tuple[float, float]], Weights]

RANKS, STEPS, SMALL_BUCKET = 2, 5, 0.0004
EXACT: list[Options] = [
    {},
    {"bucket_cap_mb": SMALL_BUCKET},
    {"bucket_cap_mb": SMALL_BUCKET, "overlap": False},
    {"gradient_as_bucket_view": False, "overlap": False},
    {"static_graph": True},
    {"accumulate": 3},
    {"accumulate": 3, "overlap": False, "bucket_cap_mb": SMALL_BUCKET},
    {"accumulate": 100},  # more micro-batches than a shard has examples
    {"accumulate": 2, "padding": "micro_batches"},
    {"padding": "global"},
]
LOSSY: list[Options] = [
    {"comm_hook": "fp16"},
    {"comm_hook": "bf16"},
    {"comm_hook": "bf16", "overlap": False, "gradient_as_bucket_view": False},
    {"comm_hook": "powersgd"},
]


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ranks]:
    group = Ranks(RANKS, tmp_path_factory.mktemp("ranks"))
    yield group
    group.close()


@pytest.fixture
def config(small_config: MakeConfig) -> Config:
    """Return a config in which step 3, the last step of the epoch, has one example."""
    sizes = (f"train.steps={STEPS}", "train.global_batch_size=20", "data.train_examples=41")
    return make_ready(small_config("strategy=ddp", *sizes)).config


def with_options(config: Config, precision: str, options: Options) -> Config:
    strategy_options = {name: value for name, value in options.items() if name != "padding"}
    padding = options.get("padding", config.train.padding)
    return dataclasses.replace(
        config,
        train=dataclasses.replace(config.train, precision=precision, padding=padding),
        strategy=dataclasses.replace(config.strategy, **strategy_options),
    )


def batches_of(config: Config, steps: int) -> Iterator[GlobalBatch]:
    train_split = prepare_inputs(config, None)[1].cache.train
    size, padding = config.train.global_batch_size, config.train.padding
    return training_batches(train_split, size, 0, range(1, steps + 1), padding, micro_batches=config.micro_batches)


def train(config: Config, strategy: DDP | AllReduce | Single) -> list[tuple[float, float]]:
    results: list[StepResult] = list(strategy.train(batches_of(config, STEPS)))
    losses = strategy.sum_losses(results)
    return [(float(loss), float(result.grad_norm)) for loss, result in zip(losses, results, strict=True)]


def make(config: Config, one_host: bool = False) -> DDP:
    os.environ["LOCAL_RANK"] = str(dist.get_rank() if one_host else 0)
    ddp.init_process_group = lambda *_: None  # the ranks already have a process group
    return DDP(context_of(config), Group(dist.get_rank(), dist.get_world_size(), None, None))


def make_single(config: Config) -> Single:
    return Single(context_of(config), ALONE)


def train_all(
    configs: list[Config], one_host: bool = False
) -> list[tuple[list[tuple[float, float]], list[tuple[float, float]]]]:
    """Train each config with DDP, in a rank. Return each curve with the curve of Single, which no option changes."""
    reference = train(configs[0], make_single(configs[0]))
    with patch.object(SharedMemory, "average", autospec=True, side_effect=SharedMemory.average) as average:
        curves = [(train(config, make(config, one_host)), reference) for config in configs]
    assert average.called == one_host
    return curves


def train_with_unreached_layers(configs: list[Config], calling_ranks: list[int]) -> list[Trained]:
    """Train a model with a layer that is never called, and one that only some ranks call, in a rank.

    Train with the strategy of each config, then with Single.
    """

    def build_with_layers(*arguments: Any) -> Module:
        model = build_model(*arguments)
        model.never_called, model.sometimes = Linear(3, 3).double(), Linear(3, 3).double()
        for parameter in (*model.never_called.parameters(), *model.sometimes.parameters()):
            torch.nn.init.constant_(parameter, 0.1)
        if dist.get_rank() in calling_ranks:
            model.register_forward_hook(lambda model, _, logits: logits + model.sometimes(logits))
        return model

    allreduce.init_process_group = lambda *_: None
    trained = []
    for module in (ddp, allreduce, single_strategy):
        module.build_model = build_with_layers  # type: ignore[attr-defined]
    try:
        group = Group(dist.get_rank(), dist.get_world_size(), None, None)
        for config in configs:
            is_ddp = config.strategy.kind == "ddp"
            strategy = make(config, one_host=True) if is_ddp else AllReduce(context_of(config), group)
            trained.append((train(config, strategy), {**strategy.state().weights}))
        reference = make_single(configs[0])
        trained.append((train(configs[0], reference), {**reference.state().weights}))
    finally:
        for module in (ddp, allreduce, single_strategy):
            module.build_model = build_model  # type: ignore[attr-defined]
    return trained


def ready_when_reduced(config: Config) -> list[int]:
    """Count the ready gradients whenever a bucket of the second step is reduced, in a rank.

    The first step has one bucket. DDP divides it when it knows the order of the gradients.
    """
    ready, seen = 0, []

    def count(_: torch.Tensor) -> None:
        nonlocal ready
        ready += 1

    original = ddp.default_hooks.bf16_compress_hook

    def reduce(state: None, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        seen.append(ready)
        return original(state, bucket)  # type: ignore[arg-type]  # None is the default group

    with patch.object(ddp.default_hooks, "bf16_compress_hook", reduce):
        strategy = make(config)
        for parameter in strategy.model.parameters():
            parameter.register_post_accumulate_grad_hook(count)
        list(strategy.train(batches_of(config, 2)))
    return [count - len(strategy.optimizer.parameters) for count in seen[1:]]


@pytest.mark.parametrize("one_host", [True, False])
def test_the_options_keep_the_curve(ranks: Ranks, config: Config, one_host: bool) -> None:
    for curves in ranks(train_all, [with_options(config, "float64", options) for options in EXACT], one_host):
        for options, (run, single) in zip(EXACT, curves, strict=True):
            for (loss, grad_norm), expected in zip(run, single, strict=True):
                assert loss == pytest.approx(expected[0], abs=1e-12), options
                assert grad_norm == pytest.approx(expected[1], rel=1e-10), options


def test_the_lossy_hooks_stay_near_it(ranks: Ranks, config: Config) -> None:
    config = dataclasses.replace(config, optimizer=dataclasses.replace(config.optimizer, learning_rate=0.1))
    for curves in ranks(train_all, [with_options(config, "float32", options) for options in LOSSY]):
        for options, (run, single) in zip(LOSSY, curves, strict=True):
            differences = [
                abs(a - b) / b for a, b in zip((norm for _, norm in run), (n for _, n in single), strict=True)
            ]
            assert 1e-6 < max(differences) < 0.5, options
            assert run[-1][0] == pytest.approx(single[-1][0], abs=0.05), options


def test_overlap_decides_when_the_buckets_are_reduced(ranks: Ranks, config: Config) -> None:
    small = {"bucket_cap_mb": SMALL_BUCKET, "comm_hook": "bf16"}
    parameters = len(list(make_single(config).model.parameters()))
    for seen in ranks(ready_when_reduced, with_options(config, "float32", small)):
        assert len(seen) > 2 and seen[0] < parameters / 2
    for seen in ranks(ready_when_reduced, with_options(config, "float32", {**small, "overlap": False})):
        assert len(seen) > 2 and min(seen) >= parameters - 1


@pytest.mark.parametrize("calling_ranks", [[], [0], [0, 1]])
def test_a_layer_without_a_gradient_gets_zeros(
    ranks: Ranks, small_config: MakeConfig, config: Config, calling_ranks: list[int]
) -> None:
    """The optimizer decays its weights, on every rank, whether a rank calls the layer or not."""
    sizes = (f"train.steps={STEPS}", "train.global_batch_size=20", "data.train_examples=41")
    by_hand = make_ready(small_config("strategy=allreduce", "train.precision=float64", *sizes)).config
    options: list[Options] = [{}, {"accumulate": 3}, {"bucket_cap_mb": SMALL_BUCKET, "overlap": False}]
    configs = [*(with_options(config, "float64", chosen) for chosen in options), by_hand]
    results = ranks(train_with_unreached_layers, configs, calling_ranks)
    if calling_ranks == [0]:
        del results[1][-1], results[0][-1]  # a single process calls the layer in every batch or in none
    (curve, weights), *others = [trained for rank in results for trained in rank]
    for other_curve, other_weights in others:
        np.testing.assert_allclose(other_curve, curve, rtol=1e-10)
        for name, array in weights.items():
            np.testing.assert_allclose(other_weights[name], array, rtol=1e-9, atol=1e-12, err_msg=name)
    assert weights["never_called.weight"] == pytest.approx(weights["never_called.weight"][0, 0])
    assert 0.09 < weights["never_called.weight"][0, 0] < 0.1
    assert np.ptp(weights["sometimes.weight"]) > 1e-6 or not calling_ranks
