"""Tests of the checks of BatchNorm layers: no layer gets a batch without a variance."""

import pytest

from common.config.resolve import resolve_config
from common.errors import UserError
from common.models.batch_norm_checks import check_batch_sizes
from tests.conftest import MakeConfig

BATCHES = ("train.global_batch_size=20", "train.steps=6")
SYNCHRONOUS = "strategy.max_staleness=0"


@pytest.mark.parametrize(
    ("count", "synchronized", "overrides", "is_refused"),
    [
        (41, False, ("strategy=single",), True),
        (42, False, ("strategy=single",), False),
        (41, False, ("strategy=single", "train.steps=2"), False),  # before the last batch of the epoch
        (41, True, ("strategy=ddp", "strategy.replicas=2"), True),
        (42, True, ("strategy=ddp", "strategy.replicas=2"), False),
        (42, False, ("strategy=ddp", "strategy.replicas=2"), True),  # one example for each replica
        (40, False, ("strategy=single", "train.micro_batches=20"), True),
        (40, False, ("strategy=single", "train.micro_batches=10"), False),
        (1, False, ("strategy=single",), True),
        (40, False, ("strategy=single", "train.padding=micro_batches", "train.global_batch_size=4"), True),
        (40, False, ("strategy=parameter_server", "strategy.replicas=20"), True),
        (40, False, ("strategy=parameter_server", "strategy.replicas=20", "strategy.batch=global"), False),
        (40, False, ("strategy=parameter_server", "strategy.replicas=20", "strategy.batch=global", SYNCHRONOUS), True),
    ],
)
def test_shards_of_one_example_are_refused(
    small_config: MakeConfig, count: int, synchronized: bool, overrides: tuple[str, ...], is_refused: bool
) -> None:
    config = resolve_config(small_config(*BATCHES, *overrides))
    stored = {"sync_batch_norm": synchronized, "norms_of_single_values": {"torch": ["head.norm"]}}
    if not is_refused:
        check_batch_sizes(config, stored, count)
        return
    with pytest.raises(UserError, match=rf"model\.torch: BatchNorm layer head\.norm would get one .* {count} training"):
        check_batch_sizes(config, stored, count)
    check_batch_sizes(config, {**stored, "norms_of_single_values": {}}, count)
