"""What else a step may have been trained on."""

from types import SimpleNamespace
from typing import Any

import numpy as np

from common.config.compose import parse_config
from common.data.dropout import derive_example_keys
from common.data.images.image_cache import ImageSplit
from common.diagnose.explain.batch_mistakes import Mistake, mistakes, with_masks_of_one
from common.training.planned_batches import planned_batches
from tests.conftest import Compose

COUNT, SIZE = 10, 4  # three steps in an epoch


def found(composed: Compose, step: int, replicas: int, *overrides: str) -> dict[str, Mistake]:
    """Of a run on images that are their own ids."""
    ids = np.arange(COUNT)
    split = ImageSplit(ids.reshape(-1, 1, 1, 1), ids.astype(np.int32), np.arange(256.0))
    chosen = ("model=convnet", "data=digits", f"train.global_batch_size={SIZE}", "train.padding=global", *overrides)
    config = parse_config(composed(*chosen))
    run: Any = SimpleNamespace(
        config=config, replicas=replicas, batches=list(planned_batches(config, split, range(1, 7)))
    )
    return {each.cause: each for each in mistakes(run, step - 1)}


def labels(mistake: Mistake) -> list[int]:
    return sorted(label for shard in mistake.shards for part in shard for label in part["labels"].tolist())


def test_an_epoch_in_the_order_of_the_first(composed: Compose) -> None:
    assert found(composed, 3, 1, "model.dropout=0") == {}, "the first epoch has no other order"
    mistake = found(composed, 5, 2, "model.dropout=0")["epoch_not_reshuffled"]
    ids = found(composed, 2, 2, "model.dropout=0.1")["same_masks_in_all_steps"]
    assert labels(mistake) == labels(ids) and mistake.weight == SIZE and len(mistake.shards) == 2
    assert "trains on the examples of step 2 again" in mistake.words and "in epoch 2" in mistake.words


def test_masks_without_the_step(composed: Compose) -> None:
    assert "same_masks_in_all_steps" not in found(composed, 1, 1, "model.dropout=0.1")
    (shard,) = found(composed, 2, 1, "model.dropout=0.1")["same_masks_in_all_steps"].shards
    assert shard[0]["dropout_keys"].tolist() == derive_example_keys(0, 1, shard[0]["labels"]).tolist()


def test_masks_without_the_rank(composed: Compose) -> None:
    assert "same_masks_on_all_ranks" not in found(composed, 1, 1, "model.dropout=0.1")
    first, second = found(composed, 1, 2, "model.dropout=0.1")["same_masks_on_all_ranks"].shards
    assert first[0]["dropout_keys"].tolist() == second[0]["dropout_keys"].tolist()
    assert first[0]["labels"].tolist() != second[0]["labels"].tolist()


def test_shards_of_other_sizes_have_the_masks_of_the_largest() -> None:
    keys = [np.arange(3), np.arange(10, 14)]
    shards = with_masks_of_one([[{"dropout_keys": each}] for each in keys])
    assert [shard[0]["dropout_keys"].tolist() for shard in shards] == [[10, 11, 12], [10, 11, 12, 13]]
