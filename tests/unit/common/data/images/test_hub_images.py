"""A data set of images on the hub."""

from typing import Any

import datasets
import numpy as np
import PIL.Image
import pytest

from common.data.images.image_cache import ImageSplit, open_cache
from common.errors import UserError
from tests.conftest import MakeConfig
from tests.unit.common.data.images.conftest import RANDOM

FEATURES = {"image": datasets.Image(), "label": datasets.ClassLabel(names=["cat", "dog"])}


def on_the_hub(monkeypatch: pytest.MonkeyPatch, images: list[Any], labels: list[int], **features: Any) -> None:
    """Let the hub have this data for both splits."""
    kinds = {**FEATURES, **features}
    split = datasets.Dataset.from_dict({"image": images, "label": labels}, datasets.Features(kinds))
    monkeypatch.setattr("common.data.hub.load_splits", lambda data: {"train_split": split, "validation_split": split})


def picture(mode: str, *shape: int) -> PIL.Image.Image:
    return PIL.Image.fromarray(RANDOM.integers(0, 256, shape, np.uint8), mode)


@pytest.mark.slow
@pytest.mark.parametrize(("mode", "shape"), [("L", (6, 5)), ("RGB", (6, 5, 3))])
def test_images_of_the_hub(
    make_config: MakeConfig, monkeypatch: pytest.MonkeyPatch, mode: str, shape: tuple[int, ...]
) -> None:
    pictures = [picture(mode, *shape) for _ in range(4)]
    on_the_hub(monkeypatch, pictures, [1, 0, 1, 1])
    cache = open_cache(make_config("model=convnet", "data=mnist"), None)
    assert (len(cache.train), cache.classes, cache.validation.labels.tolist()) == (4, ["cat", "dog"], [1, 0, 1, 1])
    assert cache.image_shape == (6, 5, 3 if mode == "RGB" else 1)
    assert isinstance(cache.train, ImageSplit)
    assert np.array_equal(
        cache.train.images.reshape(4, *shape), np.stack([np.asarray(picture) for picture in pictures])
    )


@pytest.mark.parametrize(
    ("images", "labels", "features", "expected"),
    [
        ([picture("L", 6, 5), picture("L", 5, 6)], [0, 1], {}, "train: row 2: 5 x 6, but row 1 is 6 x 5"),
        ([picture("L", 6, 5), None], [0, 1], {}, "train: row 2: no image; convert it to L or RGB"),
        ([picture("RGBA", 6, 5, 4)], [0], {}, "train: row 1: an image of mode RGBA; convert it to L or RGB"),
        ([picture("L", 6, 5)], [-1], {}, "train: label -1 of image 1 is not one of the 2 classes"),
        ([picture("L", 6, 5)], [1], {"label": datasets.Value("int64")}, "train: no classes in 'label'; set data.label"),
        (
            ["x"],
            [1],
            {"image": datasets.Value("string")},
            "train: no images in 'image'; set data.image to a column of images",
        ),
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
        open_cache(make_config("model=convnet", "data=mnist"), None)
    assert str(raised.value).startswith(f"data.path=ylecun/mnist, {expected}")


def test_a_column_that_the_hub_has_not(make_config: MakeConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    on_the_hub(monkeypatch, [picture("L", 6, 5)], [1])
    with pytest.raises(
        UserError, match=r"^data.path=.*: no column 'img'; set data.image to one of \['image', 'label'\]"
    ):
        open_cache(make_config("model=convnet", "data=mnist", "data.image=img"), None)
