"""Tests of the strategy on ranks that each train many configs, and tests of its reducer alone."""

import dataclasses
import itertools
import os
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.nn import Parameter

from common.config.schema import Config
from common.config.strategies import AllReduceSettings
from common.data.batches import training_batches
from common.run.prepare import prepare_inputs
from common.training.strategy import Strategy, require_settings
from tests.conftest import MakeConfig
from tests.unit.torch_impl.ranks import Ranks
from tests.unit.torch_impl.ready import ALONE, context_of, make_ready
from torch_impl.communication.allreduce import ALGORITHMS, Traffic
from torch_impl.communication.rendezvous import Group
from torch_impl.strategies import allreduce
from torch_impl.strategies.allreduce import AllReduce, Reducer, make_buckets
from torch_impl.strategies.single import Single

STEPS = 4
Run = list[tuple[float, float]]  # the loss and the gradient norm of each step


@pytest.fixture(scope="module", params=[2, 3])
def ranks(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ranks]:
    group = Ranks(request.param, tmp_path_factory.mktemp("ranks"))
    yield group
    group.close()


@pytest.fixture
def config(small_config: MakeConfig, ranks: Ranks) -> Config:
    """Return a config in which some ranks have no example in step 3, the last step of an epoch."""
    sizes = ["data.train_examples=59", "train.global_batch_size=29", f"train.steps={STEPS}"]
    sizes.append(f"strategy.replicas={len(ranks.processes)}")
    return make_ready(small_config("strategy=allreduce", "train.precision=float64", *sizes)).config


def train(config: Config, trainer: Strategy) -> Run:
    train_split, settings = prepare_inputs(config, None)[1].cache.train, config.train
    batches = training_batches(train_split, settings.global_batch_size, 0, range(1, STEPS + 1), settings.padding)
    results = list(trainer.train(batches))
    losses = trainer.sum_losses(results)
    return [(float(loss), float(result.grad_norm)) for loss, result in zip(losses, results, strict=True)]


def train_all(configs: list[Config]) -> tuple[Run, list[tuple[Run, dict[str, Any], int, int]]]:
    """Train with Single, then with each config. Return curves, reports, and the buckets and bytes of a step."""
    os.environ["LOCAL_RANK"] = "0"
    allreduce.init_process_group = lambda *_: None  # the ranks already have a process group
    group = Group(dist.get_rank(), dist.get_world_size(), None, None)
    results = []
    for config in configs:
        trainer = AllReduce(context_of(config), group)
        size = sum(parameter.nbytes for parameter in trainer.model.parameters())
        results.append((train(config, trainer), trainer.report(), len(trainer.reducer.buckets), size))
    return train(configs[0], Single(context_of(configs[0]), ALONE)), results


@pytest.mark.slow
def test_every_algorithm_bucket_and_overlap_draws_the_curve_of_single(ranks: Ranks, config: Config) -> None:
    buckets_and_overlap = [(None, True), (0.004, True), (0.004, False), (25.0, False)]
    if len(ranks.processes) == 2:  # buckets do not depend on the number of ranks, as algorithms do
        buckets_and_overlap = [(0.004, True)]
    choices = list(itertools.product(ALGORITHMS, buckets_and_overlap))
    configs = []
    for algorithm, (cap, overlap) in choices:
        settings = require_settings(config.strategy, AllReduceSettings)
        chosen = dataclasses.replace(settings, algorithm=algorithm, bucket_cap_mb=cap, overlap=overlap)
        configs.append(dataclasses.replace(config, strategy=chosen))
    micro_batches = dataclasses.replace(config.train, padding="micro_batches")
    choices.append(("ring", (0.004, True)))  # the buckets must wait for the last micro-batch
    configs.append(dataclasses.replace(configs[choices.index(choices[-1])], train=micro_batches))
    results_of_ranks = ranks(train_all, configs)
    size = len(results_of_ranks)
    messages = {  # the messages of all ranks for a buffer, and their bytes as a multiple of the buffer
        "gather_broadcast": (2 * (size - 1), 2 * (size - 1)),
        "all_to_all": (size * (size - 1), size * (size - 1)),
        "ring": (2 * size * (size - 1), 2 * (size - 1)),
        "recursive_doubling": (2, 2) if size == 2 else (4, 4),
    }
    bucket_counts = set()
    for index, (algorithm, (cap, overlap)) in enumerate(choices):
        for single, results in results_of_ranks:
            run, report, buckets, step_bytes = results[index]
            assert report == results_of_ranks[0][1][index][1]
            for (loss, grad_norm), expected in zip(run, single, strict=True):
                assert loss == pytest.approx(expected[0], abs=1e-12), (algorithm, cap, overlap)
                assert grad_norm == pytest.approx(expected[1], rel=1e-10), (algorithm, cap, overlap)
            if algorithm == "native":
                assert report["messages_sent"] is report["bytes_sent"] is None
            else:
                count, times = messages[algorithm]
                assert sum(report["messages_sent"]) == count * buckets * STEPS
                assert sum(report["bytes_sent"]) == times * step_bytes * STEPS
            assert len(report["peak_memory_bytes"]) == size
            bucket_counts.add(buckets)
    assert len(bucket_counts) == (3 if size == 3 else 1)


def test_buckets_are_in_reverse_and_hold_up_to_the_cap() -> None:
    parameters = [Parameter(torch.zeros(2**18 * size)) for size in (1, 2, 5, 1, 1)]  # the sizes are in MiB

    def sizes(cap: float | None) -> list[list[int]]:
        return [[parameter.nbytes >> 20 for parameter in bucket] for bucket in make_buckets(parameters, cap)]

    assert sizes(None) == [[1], [1], [5], [2], [1]]
    assert sizes(0.1) == [[1], [1], [5], [2], [1]]
    assert sizes(3) == [[1, 1], [5], [2, 1]]
    assert sizes(7) == [[1, 1, 5], [2, 1]]
    assert sizes(25) == [[1, 1, 5, 2, 1]]


class Recording:
    """An algorithm that records the lengths of the buffers and doubles the buffers."""

    def __init__(self) -> None:
        self.lengths: list[int] = []
        self.fails_at: int | None = None
        self.reduced = threading.Event()

    def __call__(self, buffer: torch.Tensor, traffic: Traffic) -> None:
        self.lengths.append(len(buffer))
        if len(buffer) == self.fails_at:
            raise RuntimeError("the cable is cut")
        buffer *= 2
        self.reduced.set()


@pytest.fixture
def recording(monkeypatch: pytest.MonkeyPatch) -> Recording:
    algorithm = Recording()
    monkeypatch.setitem(ALGORITHMS, "ring", algorithm)
    return algorithm


@pytest.fixture
def parameters() -> list[Parameter]:
    return [Parameter(torch.ones(length)) for length in (3, 4, 5)]


def chained(parameters: list[Parameter]) -> torch.Tensor:
    """Return a sum whose backward finishes the gradients in the order of the list."""
    value = torch.ones(())
    for parameter in reversed(parameters):
        value = (value + parameter).sum()
    return value


def test_buckets_are_reduced_while_backward_runs(recording: Recording, parameters: list[Parameter]) -> None:
    reducer = Reducer(make_buckets(parameters, None), "ring", overlap=True)
    early: list[bool] = []
    parameters[0].register_hook(lambda gradient: early.append(recording.reduced.wait(30)))
    chained(parameters[::-1]).backward()
    assert early == [True]
    reducer.finish()
    assert recording.lengths == [5, 4, 3]


def test_without_overlap_nothing_is_reduced_before_backward_ends(
    recording: Recording, parameters: list[Parameter]
) -> None:
    reducer = Reducer(make_buckets(parameters, None), "ring", overlap=False)
    chained(parameters).backward()
    assert not recording.reduced.wait(0.1)
    reducer.finish()
    assert recording.lengths == [5, 4, 3]


def test_the_order_is_that_of_the_buckets_in_every_step(recording: Recording, parameters: list[Parameter]) -> None:
    reducer = Reducer(make_buckets(parameters, None), "ring", overlap=True)
    for step in range(1, 4):
        chained(parameters if step % 2 else parameters[::-1]).backward()
        reducer.finish()
        assert recording.lengths == [5, 4, 3] * step


@pytest.mark.parametrize("overlap", [True, False])
def test_gradients_are_replaced_by_their_sums(recording: Recording, parameters: list[Parameter], overlap: bool) -> None:
    reducer = Reducer(make_buckets(parameters, 25.0), "ring", overlap)
    (parameters[0].sum() + 3 * parameters[2].sum()).backward()
    reducer.finish()
    assert recording.lengths == [12]
    gradients = [parameter.grad.tolist() for parameter in parameters if parameter.grad is not None]
    assert gradients == [[2.0] * 3, [0.0] * 4, [6.0] * 5]


@pytest.mark.parametrize("overlap", [True, False])
def test_what_fails_in_the_thread_is_raised(recording: Recording, parameters: list[Parameter], overlap: bool) -> None:
    recording.fails_at = 4
    reducer = Reducer(make_buckets(parameters, None), "ring", overlap)
    chained(parameters).backward()
    with pytest.raises(RuntimeError, match="the cable is cut"):
        reducer.finish()
