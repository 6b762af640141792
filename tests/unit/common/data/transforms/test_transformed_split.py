"""The bytes of transformed examples depend on the seed, the epoch and the example alone."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.data import batch_plan
from common.data.batches import GlobalBatch
from common.data.transforms import streams
from common.data.transforms.transformed_split import TransformedSplit
from common.errors import UserError
from common.training.look_ahead import look_ahead
from tests.unit.common.data.transforms.samples import COUNT, HERE, TOKEN_SPLIT, gather, transformed

SIZE, SEED = 10, 7  # the last batch of an epoch of 24 examples is smaller
LISTS: dict[str, tuple[Any, ...]] = {
    "examples": ({"random_crop": 2}, "horizontal_flip", {"color_jitter": {"brightness": 0.2}}, f"{HERE}:jitter"),
    "mixup": ("horizontal_flip", {"mixup": 0.3}),
    "cutmix": ({"random_crop": 1}, "cutmix"),
}
SPLITS = {name: transformed(*transforms) for name, transforms in LISTS.items()}


def make_batch(split: TransformedSplit, step: int) -> GlobalBatch:
    ids = batch_plan.select_example_ids(COUNT, SIZE, SEED, step)
    return GlobalBatch(step, ids, split.select_batch((step - 1) // 3, step, ids), "global")


def collect_rows(batch: GlobalBatch, world_size: int = 1, micro_batches: int = 1) -> set[tuple[bytes, bytes]]:
    batch = replace(batch, micro_batches=micro_batches)
    parts = [part for rank in range(world_size) for part in batch.shard(rank, world_size)]
    return {
        (image.tobytes(), label.tobytes())
        for part in parts
        for image, label in zip(part["images"], part["labels"], strict=True)
    }


@pytest.mark.slow
@given(
    name=st.sampled_from([*SPLITS]),
    world_size=st.integers(1, 12),
    micro_batches=st.integers(1, 3),
    first=st.integers(1, 7),
)
def test_bytes_do_not_depend_on_shards_or_the_step_of_a_resume(
    name: str, world_size: int, micro_batches: int, first: int
) -> None:
    """Copies that fill up a batch have the bytes of their example, since they add no row."""
    batches = (make_batch(SPLITS[name], step) for step in range(first, first + 3))
    with ThreadPoolExecutor(1) as pool:
        for batch in look_ahead(batches, pool):
            expected = collect_rows(make_batch(transformed(*LISTS[name]), batch.step))
            assert len(expected) == batch.size
            assert collect_rows(batch, world_size, micro_batches) == expected


def test_epochs_seeds_and_examples_have_other_numbers() -> None:
    split = transformed({"random_crop": 2})
    same = gather(split, range(COUNT))["images"]
    for other in (gather(split, range(COUNT), epoch=1), gather(replace(split, seed=8), range(COUNT))):
        assert sum(not np.array_equal(*pair) for pair in zip(same, other["images"], strict=True)) > 12
    assert np.array_equal(same, gather(split, range(COUNT), step=5)["images"])


def test_the_numbers_of_a_transform_do_not_depend_on_the_transforms_before_it() -> None:
    after_jitter, alone = (
        transformed({"color_jitter": {}}, "vertical_flip"),
        transformed({"resize": [6, 5]}, "vertical_flip"),
    )
    assert np.array_equal(gather(after_jitter, range(COUNT))["images"], gather(alone, range(COUNT))["images"])


def test_a_generator_that_is_seeded_by_the_rank_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """The property above fails for this mistake."""
    batch = make_batch(SPLITS["examples"], 1)
    expected = collect_rows(batch)
    derive = streams.derive_keys
    rank = 0

    def derive_from_rank(domain: np.uint64, seed: int, epoch: int, ids: np.ndarray) -> np.ndarray:
        return derive(domain, seed + rank, epoch, ids)

    monkeypatch.setattr("common.data.transforms.transformed_split.derive_keys", derive_from_rank)
    rows = set()
    for rank in range(2):
        (part,) = batch.shard(rank, 2)
        rows |= {
            (image.tobytes(), label.tobytes()) for image, label in zip(part["images"], part["labels"], strict=True)
        }
    assert rows != expected


def test_the_weight_of_a_batch_counts_the_masked_tokens() -> None:
    split = transformed({"token_masking": {"mask_token": 1, "vocabulary": 200}}, source=TOKEN_SPLIT)
    ids = np.arange(5)
    batch = GlobalBatch(1, ids, split.select_batch(0, 1, ids), "global")
    parts = [part for rank in range(2) for part in batch.shard(rank, 2)]
    assert batch.weight == sum((part["labels"] >= 0).sum() for part in parts) > 0


def test_the_shapes_of_the_examples() -> None:
    split = transformed({"resize": [4, 7]}, "mixup")
    assert split.example_shapes == {"images": (4, 7, 3), "labels": (3,)}


def test_labels_that_a_function_changes_are_those_that_count() -> None:
    split = transformed(f"{HERE}:next_class")
    ids = np.arange(6)
    batch = GlobalBatch(1, ids, split.select_batch(0, 1, ids), "global", class_weights=[1.0, 10.0, 100.0])
    (part,) = batch.shard(0, 1)
    assert part["labels"].tolist() == batch.labels.tolist() == [1, 2, 0, 1, 2, 0]
    assert part["weights"].tolist() == [10, 100, 1, 10, 100, 1] and batch.weight == 222


def test_a_later_example_with_nan_is_named_with_its_transform() -> None:
    split = transformed("horizontal_flip", f"{HERE}:undefined", {"normalize": {"mean": [0.5], "std": [0.2]}})
    gather(split, [0, 1, 3])
    with pytest.raises(UserError, match=f"^data.transforms: {HERE}:undefined returns nan or infinity in images of exa"):
        gather(split, [0, 1, 11, 3])
