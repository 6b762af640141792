"""Tests of the strategy fsdp on several ranks: it computes what `single` and `ddp` compute, and divides its state."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist
from torch.nn import Linear, Module, ModuleList, Sequential

from common.errors import UserError
from tests.conftest import MakeConfig
from tests.unit.torch_impl.ranks import Ranks
from tests.unit.torch_impl.ready import make_ready
from tests.unit.torch_impl.strategies.sharded import (
    CASES,
    RANKS,
    SIZES,
    assert_equal,
    build_with_other_layers,
    measure_load,
    save_arrays,
    train_all,
)
from torch_impl.models import build_model

pytestmark = pytest.mark.slow

COPIES = {"copies of the model": ("strategy.copies=3", "optimizer.max_grad_norm=0.01")}
STRATEGY = ("strategy=fsdp", f"strategy.replicas={RANKS}", *SIZES)


def build_with_experts(*arguments: Any) -> Module:
    """Build a model with two layers of the same shape, of which each rank calls another one."""
    model: Any = build_model(*arguments)
    model.experts = ModuleList([Sequential(Linear(3, 3)), Sequential(Linear(3, 3))]).double()
    expert = model.experts[dist.get_rank() % 2]
    model.classifier.register_forward_hook(lambda classifier, _, logits: logits + expert(logits))
    return model


def build_with_added_layer(*arguments: Any) -> Module:
    """Build a model with a layer that the initial checkpoint lacks."""
    model: Any = build_model(*arguments)
    model.added = Linear(3, 3, device="meta")
    return model


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ranks]:
    group = Ranks(RANKS, tmp_path_factory.mktemp("ranks"))
    yield group
    group.close()


def test_every_option_draws_the_curve_of_single_and_keeps_its_state(
    ranks: Ranks, small_config: MakeConfig, tmp_path: Path
) -> None:
    cases = CASES | COPIES
    settings = [
        (*STRATEGY, *overrides, "train.precision=float64", f"run_dir={tmp_path}") for overrides in cases.values()
    ]
    configs = [make_ready(small_config(*overrides)).config for overrides in settings]
    for results in ranks(train_all, ["fsdp", "single"], configs):
        for case, (trained, single) in zip(cases, results, strict=True):
            assert_equal(trained, single, case)


def test_copies_of_several_parts_draw_the_curve_of_single_and_keep_their_state(
    small_config: MakeConfig, tmp_path: Path
) -> None:
    """The classifier has three rows, so that the two parts of a copy have different sizes."""
    overrides = (
        "strategy=fsdp", "strategy.replicas=4", "strategy.copies=2", *SIZES, "optimizer.max_grad_norm=0.01",
        "ema.decay=0.8", "train.evaluate_average=true", "train.precision=float64",
    )  # fmt: skip
    config = make_ready(small_config(*overrides)).config
    ranks = Ranks(4, tmp_path)
    try:
        for ((trained, single),) in ranks(train_all, ["fsdp", "single"], [config]):
            assert trained.state.weights["classifier.weight"].shape[0] % 2
            assert_equal(trained, single, "two copies of two parts")
    finally:
        ranks.close()


def test_a_rank_reads_no_more_than_it_holds(ranks: Ranks, small_config: MakeConfig, tmp_path: Path) -> None:
    """Every rank reads its parts of the initial weights and of a checkpoint only, one tensor after the other."""
    config = make_ready(small_config(*STRATEGY, "model.hidden_size=128", "model.intermediate_size=512")).config
    size, state_bytes = save_arrays(config, tmp_path)
    for elements, peak in ranks(measure_load, "fsdp", config, tmp_path):
        assert elements < 1.01 * size / RANKS and peak < 0.45 * state_bytes


def test_layers_without_a_gradient_and_tied_weights(ranks: Ranks, small_config: MakeConfig) -> None:
    """DDP is the reference, because a single process calls a layer in every batch or in none."""
    config = make_ready(small_config(*STRATEGY, "train.precision=float64")).config
    reference = make_ready(small_config("strategy=ddp", *STRATEGY[1:], "train.precision=float64")).config
    expected = ranks(train_all, ["ddp"], [reference], build_with_other_layers)[0][0][0]
    for results in ranks(train_all, ["fsdp"], [config], build_with_other_layers):
        assert_equal(results[0][0], expected, "fsdp")


def test_ranks_that_call_other_layers_are_seen(ranks: Ranks, small_config: MakeConfig) -> None:
    """Their messages have equal sizes, so that one rank would compute with parameters of the other's layer."""
    config = make_ready(small_config(*STRATEGY, "train.precision=float64")).config
    with pytest.raises(UserError, match="the model calls different layers for different examples, or in a different"):
        ranks(train_all, ["fsdp"], [config], build_with_experts)


def test_initial_weights_that_the_checkpoint_lacks_are_named(ranks: Ranks, small_config: MakeConfig) -> None:
    config = make_ready(small_config(*STRATEGY)).config
    with pytest.raises(UserError, match=r"the checkpoint has no added\.weight \(2 missing in all\)"):
        ranks(train_all, ["fsdp"], [config], build_with_added_layer)
