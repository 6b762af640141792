"""Tests of the strategy zero on three ranks: it computes what `single` and `ddp` compute, and divides its state."""

from collections.abc import Iterator
from pathlib import Path

import pytest

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

pytestmark = pytest.mark.slow

STRATEGY = ("strategy=zero", f"strategy.replicas={RANKS}", *SIZES)

LAYOUT_CASES = {  # updates that need whole parameters, which strategy=fsdp refuses
    "slots of other shapes": ("optimizer=adafactor", "optimizer.learning_rate=0.01"),
    "slots by name": ("optimizer=muon", "optimizer.groups=[no_decay_on_bias_and_norm]"),
}


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ranks]:
    group = Ranks(RANKS, tmp_path_factory.mktemp("ranks"))
    yield group
    group.close()


def test_every_option_draws_the_curve_of_single_and_keeps_its_state(
    ranks: Ranks, small_config: MakeConfig, tmp_path: Path
) -> None:
    cases = CASES | LAYOUT_CASES
    settings = [
        (*STRATEGY, *overrides, "train.precision=float64", f"run_dir={tmp_path}") for overrides in cases.values()
    ]
    configs = [make_ready(small_config(*overrides)).config for overrides in settings]
    for results in ranks(train_all, ["zero", "single"], configs):
        for case, (trained, single) in zip(cases, results, strict=True):
            assert_equal(trained, single, case)


def test_a_rank_reads_no_more_than_it_holds(ranks: Ranks, small_config: MakeConfig, tmp_path: Path) -> None:
    """Every rank reads its own slots of a checkpoint only, and the weights one after the other."""
    config = make_ready(small_config(*STRATEGY, "model.hidden_size=128", "model.intermediate_size=512")).config
    size, state_bytes = save_arrays(config, tmp_path)
    for elements, peak in ranks(measure_load, "zero", config, tmp_path):
        assert elements == size and peak < 0.45 * state_bytes


def test_layers_without_a_gradient_and_tied_weights(ranks: Ranks, small_config: MakeConfig) -> None:
    """DDP is the reference, because a single process calls a layer in every batch or in none."""
    config = make_ready(small_config(*STRATEGY, "train.precision=float64")).config
    reference = make_ready(small_config("strategy=ddp", *STRATEGY[1:], "train.precision=float64")).config
    expected = ranks(train_all, ["ddp"], [reference], build_with_other_layers)[0][0][0]
    for results in ranks(train_all, ["zero"], [config], build_with_other_layers):
        assert_equal(results[0][0], expected, "zero")
