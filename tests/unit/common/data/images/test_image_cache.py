"""The cache of images."""

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.config.data import IdxSettings
from common.config.schema import Config
from common.data.batches import GlobalBatch
from common.data.images import image_cache
from common.data.images.image_cache import ImageSplit, open_cache
from common.errors import UserError
from tests.unit.common.data.images.conftest import TEST, TRAIN, labels_of
from tests.unit.common.data.images.idx_samples import write_idx


def test_what_the_files_hold(idx_config: Config) -> None:
    cache = open_cache(idx_config, None)
    assert (str(cache), cache.classes) == ("20 training and 8 validation examples", ["0", "1", "2"])
    assert cache.image_shape == (6, 5, 1)
    scaled = TRAIN / 255
    for split, images in ((cache.train, TRAIN), (cache.validation, TEST)):
        ids = np.arange(len(split))
        arrays = split.gather(ids, ids)
        assert {name: str(array.dtype) for name, array in arrays.items()} == {"images": "float32", "labels": "int32"}
        expected = (images / 255 - scaled.mean()) / scaled.std()
        assert np.allclose(arrays["images"][..., 0], expected, rtol=0, atol=1e-6)
        assert arrays["labels"].tolist() == labels_of(images).tolist()


@pytest.mark.slow
@given(
    world_size=st.integers(1, 12),
    ids=st.lists(st.integers(0, 19), min_size=1, max_size=10, unique=True),
    padding=st.sampled_from(["global", "micro_batches", "unpadded"]),
)
def test_a_global_batch_of_images(world_size: int, ids: list[int], padding: str) -> None:
    values = np.arange(256, dtype=np.float32)
    split = ImageSplit(TRAIN[..., None], labels_of(TRAIN).astype(np.int32), values)
    batch = GlobalBatch(1, np.array(ids), split, padding)
    parts = [part for rank in range(world_size) for part in batch.shard(rank, world_size)]
    assert batch.tokens == 0
    images = np.concatenate([part["images"][part["weights"] == 1, ..., 0] for part in parts])
    assert sorted(images.tolist()) == sorted(TRAIN[ids].astype(np.float32).tolist())
    assert all(len(part["images"]) == len(part["labels"]) > 0 for part in parts)


def test_a_second_start_reads_no_images(idx_config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    first = open_cache(idx_config, None)

    def fail(*arguments: Any) -> None:
        raise AssertionError("the images are read")

    monkeypatch.setattr(image_cache, "read_images", fail)
    again = open_cache(idx_config, None)
    assert again.fingerprint == first.fingerprint
    assert isinstance(again.train, ImageSplit) and isinstance(again.train.images, np.memmap)
    assert isinstance(idx_config.data, IdxSettings)
    os.utime(Path(idx_config.data.directory, "t10k-labels-idx1-ubyte"), ns=(1, 1))
    with pytest.raises(AssertionError, match="the images are read"):
        open_cache(idx_config, None)


def test_images_of_one_value(idx_config: Config) -> None:
    assert isinstance(idx_config.data, IdxSettings)
    write_idx(Path(idx_config.data.directory), "train", np.full_like(TRAIN, 7), labels_of(TRAIN), zipped=False)
    with pytest.raises(
        UserError, match=r"^data=idx: all pixels of the images to train on have the same value; check them$"
    ):
        open_cache(idx_config, None)
