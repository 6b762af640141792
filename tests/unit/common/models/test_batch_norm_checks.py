"""Tests of the checks of BatchNorm layers: no layer gets a batch without a variance."""

import pytest

from common.config.resolve import resolve_config
from common.errors import UserError
from common.map.description import Connection, LayerDescription, ModelDescription, VariableDescription
from common.models.batch_norm_checks import check_batch_sizes, list_norms_of_single_values
from tests.conftest import MakeConfig


def describe_norm(sizes: tuple[int, ...], trainable: bool = True) -> ModelDescription:
    """Describe a model whose only layer is a BatchNorm of four channels. sizes: those of an example."""
    variables = {
        "norm/gamma": VariableDescription("norm/gamma", (4,), trainable),
        "norm/moving_mean": VariableDescription("norm/moving_mean", (4,), trainable=False),
    }
    roles = {"gamma": "norm/gamma", "moving_mean": "norm/moving_mean"}
    layer = LayerDescription("BatchNormalization", "norm", {}, roles, connection=Connection(sizes, None))
    return ModelDescription([layer], variables, [], has_channels=True, statistics=["norm/moving_mean"])


def test_layers_of_features_and_of_pooled_images_get_single_values() -> None:
    assert list_norms_of_single_values("torch", describe_norm((4,))) == ["norm"]
    assert list_norms_of_single_values("tf", describe_norm((1, 1, 4))) == ["norm"]
    assert list_norms_of_single_values("torch", describe_norm((3, 3, 4))) == []
    assert list_norms_of_single_values("torch", describe_norm((4,), trainable=False)) == ["norm"]
    assert list_norms_of_single_values("tf", describe_norm((4,), trainable=False)) == []


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
    ],
)
def test_shards_of_one_example_are_refused(
    small_config: MakeConfig, count: int, synchronized: bool, overrides: tuple[str, ...], is_refused: bool
) -> None:
    config = resolve_config(small_config("train.global_batch_size=20", "train.steps=6", *overrides))
    stored = {"sync_batch_norm": synchronized, "norms_of_single_values": {"torch": ["head.norm"]}}
    if not is_refused:
        check_batch_sizes(config, stored, count)
        return
    with pytest.raises(UserError, match=rf"model\.torch: BatchNorm layer head\.norm would get one .* {count} training"):
        check_batch_sizes(config, stored, count)
    check_batch_sizes(config, {**stored, "norms_of_single_values": {}}, count)
