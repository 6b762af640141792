"""Corpora of images, and their cache."""

import os
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import PIL.Image
import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.config.schema import Config
from common.data.batches import GlobalBatch
from common.data.images import image_cache
from common.data.images.image_cache import ImageSplit, open_image_cache
from common.errors import UserError
from tests.conftest import MakeConfig
from tests.unit.common.data.images.idx_files import write_idx

RANDOM = np.random.default_rng(0)
TRAIN = RANDOM.integers(0, 256, (20, 6, 5), np.uint8)
TEST = RANDOM.integers(0, 256, (8, 6, 5), np.uint8)


def labels_of(images: np.ndarray) -> np.ndarray:
    return (np.arange(len(images)) % 3).astype(np.uint8)


@pytest.fixture
def idx_config(make_config: MakeConfig, tmp_path: Path) -> Config:
    """A config of the images above in IDX files."""
    for prefix, images in (("train", TRAIN), ("t10k", TEST)):
        write_idx(tmp_path, prefix, images, labels_of(images), zipped=prefix == "train")
    return make_config("model=convnet", "data=idx", f"data.directory={tmp_path}")


def test_what_the_files_hold(idx_config: Config) -> None:
    cache = open_image_cache(idx_config)
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


def test_digits(make_config: MakeConfig) -> None:
    cache = open_image_cache(make_config("model=convnet"))
    assert (str(cache), cache.image_shape) == ("1437 training and 360 validation examples", (8, 8, 1))
    assert cache.classes == [str(digit) for digit in range(10)]
    everything = np.arange(len(cache.train))
    images = cache.train.gather(everything, everything)["images"].astype(np.float64)
    assert abs(images.mean()) < 1e-6 and images.std() == pytest.approx(1, abs=1e-6)
    assert len(np.unique(images)) == 17
    assert set(cache.validation.labels.tolist()) == set(range(10))


@given(
    world_size=st.integers(1, 12),
    ids=st.lists(st.integers(0, 19), min_size=1, max_size=10, unique=True),
)
def test_a_global_batch_of_images(world_size: int, ids: list[int]) -> None:
    values = np.arange(256, dtype=np.float32)
    split = ImageSplit(TRAIN[..., None], labels_of(TRAIN).astype(np.int32), values)
    batch = GlobalBatch(1, np.array(ids), split)
    arrays, bounds = batch.shards(world_size)
    assert batch.tokens == 0
    assert np.array_equal(arrays["images"][: len(ids), ..., 0], TRAIN[ids])
    assert arrays["weights"].sum() == len(ids) and (np.diff(bounds) > 0).all()


def test_a_second_start_reads_no_images(idx_config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    first = open_image_cache(idx_config)

    def fail(*arguments: Any) -> None:
        raise AssertionError("the images are read")

    monkeypatch.setattr(image_cache, "read_images", fail)
    again = open_image_cache(idx_config)
    assert again.fingerprint == first.fingerprint
    assert isinstance(again.train.images, np.memmap)
    os.utime(Path(idx_config.data.directory, "t10k-labels-idx1-ubyte"), ns=(1, 1))
    with pytest.raises(AssertionError, match="the images are read"):
        open_image_cache(idx_config)


@pytest.mark.parametrize(
    ("prefix", "images", "labels", "expected"),
    [
        (
            "t10k",
            TEST[:, :5],
            labels_of(TEST),
            "t10k-images-idx3-ubyte: images of 5 x 5 x 1, but those to train on are 6",
        ),
        ("t10k", TEST, labels_of(TEST) + 1, "t10k-labels-idx1-ubyte: label 3 of image 3 is not one of the 3 classes"),
        ("train", np.full_like(TRAIN, 7), labels_of(TRAIN), "data=idx: all pixels of the images to train on have the"),
    ],
)
def test_files_that_do_not_fit(
    idx_config: Config, prefix: str, images: np.ndarray, labels: np.ndarray, expected: str
) -> None:
    write_idx(Path(idx_config.data.directory), prefix, images, labels, zipped=False)
    with pytest.raises(UserError) as raised:
        open_image_cache(idx_config)
    assert expected in str(raised.value)


# The hub

FEATURES = {"image": datasets.Image(), "label": datasets.ClassLabel(names=["cat", "dog"])}


def on_the_hub(monkeypatch: pytest.MonkeyPatch, images: list[Any], labels: list[int], **features: Any) -> None:
    """The hub has this for both splits."""
    kinds = {**FEATURES, **features}
    split = datasets.Dataset.from_dict({"image": images, "label": labels}, datasets.Features(kinds))
    monkeypatch.setattr("common.data.hub.load_splits", lambda data: {"train_split": split, "validation_split": split})


def picture(mode: str, *shape: int) -> PIL.Image.Image:
    return PIL.Image.fromarray(RANDOM.integers(0, 256, shape, np.uint8), mode)


@pytest.mark.parametrize(("mode", "shape"), [("L", (6, 5)), ("RGB", (6, 5, 3))])
def test_images_of_the_hub(
    make_config: MakeConfig, monkeypatch: pytest.MonkeyPatch, mode: str, shape: tuple[int, ...]
) -> None:
    pictures = [picture(mode, *shape) for _ in range(4)]
    on_the_hub(monkeypatch, pictures, [1, 0, 1, 1])
    cache = open_image_cache(make_config("model=convnet", "data=mnist"))
    assert (len(cache.train), cache.classes, cache.validation.labels.tolist()) == (4, ["cat", "dog"], [1, 0, 1, 1])
    assert cache.image_shape == (6, 5, 3 if mode == "RGB" else 1)
    assert np.array_equal(cache.train.images.reshape(4, *shape), np.stack([np.asarray(each) for each in pictures]))


@pytest.mark.parametrize(
    ("images", "labels", "features", "expected"),
    [
        ([picture("L", 6, 5), picture("L", 5, 6)], [0, 1], {}, "train: row 2: 5 x 6, but row 1 is 6 x 5"),
        ([picture("L", 6, 5), None], [0, 1], {}, "train: row 2: no image; Lockstep reads L and RGB"),
        ([picture("RGBA", 6, 5, 4)], [0], {}, "train: row 1: an image of mode RGBA; Lockstep reads L and RGB"),
        ([picture("L", 6, 5)], [-1], {}, "train: label -1 of image 1 is not one of the 2 classes"),
        ([picture("L", 6, 5)], [1], {"label": datasets.Value("int64")}, "train: no classes in 'label'; set data.label"),
        (["x"], [1], {"image": datasets.Value("string")}, "train: no images in 'image'; set data.image to the column"),
    ],
)
def test_what_the_hub_should_not_have(
    make_config: MakeConfig,
    monkeypatch: pytest.MonkeyPatch,
    images: list[Any],
    labels: list[int],
    features: dict[str, Any],
    expected: str,
) -> None:
    on_the_hub(monkeypatch, images, labels, **features)
    with pytest.raises(UserError) as raised:
        open_image_cache(make_config("model=convnet", "data=mnist"))
    assert str(raised.value).startswith(f"data.path=ylecun/mnist, {expected}")


def test_a_column_that_the_hub_has_not(make_config: MakeConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    on_the_hub(monkeypatch, [picture("L", 6, 5)], [1])
    with pytest.raises(
        UserError, match=r"^data.path=.*: no column 'img'; set data.image to one of \['image', 'label'\]"
    ):
        open_image_cache(make_config("model=convnet", "data=mnist", "data.image=img"))
