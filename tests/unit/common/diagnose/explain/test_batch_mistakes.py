"""Mistakes of a sampler or of dropout's seed."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from common.config.compose import parse_config
from common.data.dropout import derive_example_keys
from common.data.images.image_cache import ImageSplit
from common.diagnose.explain.batch_mistakes import BatchMistake, list_batch_mistakes, share_masks
from common.training.planned_batches import planned_batches
from tests.conftest import Compose

COUNT, SIZE = 10, 4  # three steps in an epoch


def list_mistakes(composed: Compose, step: int, replicas: int, dropout: float) -> dict[str, BatchMistake]:
    """Return the possible mistakes in a step of a run whose images are their own labels."""
    ids = np.arange(COUNT)
    split = ImageSplit(ids.reshape(-1, 1, 1, 1), ids.astype(np.int32), np.arange(256.0))
    overrides = ("model=convnet", "data=digits", f"train.global_batch_size={SIZE}", "train.padding=global")
    config = parse_config(composed(*overrides, f"model.dropout={dropout}"))
    batches = list(planned_batches(config, split, range(1, 7)))
    run: Any = SimpleNamespace(config=config, shard_count=replicas, batches=batches)
    return {mistake.cause: mistake for mistake in list_batch_mistakes(run, step - 1)}


def sorted_labels(mistake: BatchMistake) -> list[int]:
    return sorted(label for shard in mistake.shards for part in shard for label in part["labels"].tolist())


@pytest.mark.slow
def test_an_epoch_in_the_order_of_the_first(composed: Compose) -> None:
    assert list_mistakes(composed, 3, 1, dropout=0) == {}, "the first epoch cannot repeat an order"
    mistake = list_mistakes(composed, 5, 2, dropout=0)["epoch_not_reshuffled"]
    step_2 = list_mistakes(composed, 2, 2, dropout=0.1)["same_masks_in_all_steps"]
    assert sorted_labels(mistake) == sorted_labels(step_2) and mistake.weight == SIZE and len(mistake.shards) == 2
    assert "trains on the examples of step 2 again" in mistake.sentence and "in epoch 2" in mistake.sentence


def test_masks_without_the_step(composed: Compose) -> None:
    assert "same_masks_in_all_steps" not in list_mistakes(composed, 1, 1, dropout=0.1)
    (shard,) = list_mistakes(composed, 2, 1, dropout=0.1)["same_masks_in_all_steps"].shards
    assert shard[0]["dropout_keys"].tolist() == derive_example_keys(0, 1, shard[0]["labels"]).tolist()


def test_masks_without_the_rank(composed: Compose) -> None:
    assert "same_masks_on_all_ranks" not in list_mistakes(composed, 1, 1, dropout=0.1)
    first, second = list_mistakes(composed, 1, 2, dropout=0.1)["same_masks_on_all_ranks"].shards
    assert first[0]["dropout_keys"].tolist() == second[0]["dropout_keys"].tolist()
    assert first[0]["labels"].tolist() != second[0]["labels"].tolist()


def test_all_shards_share_the_masks_of_the_largest() -> None:
    keys = [np.arange(3), np.arange(10, 14)]
    shards = share_masks([[{"dropout_keys": shard_keys}] for shard_keys in keys])
    assert [shard[0]["dropout_keys"].tolist() for shard in shards] == [[10, 11, 12], [10, 11, 12, 13]]
