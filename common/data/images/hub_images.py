"""A data set of the Hugging Face hub as a source of images."""

from collections.abc import Iterable
from typing import TYPE_CHECKING

import numpy as np

from common.config.data import HubImagesSettings
from common.data import hub
from common.data.identity import Identity, collect_source_keys
from common.data.images.image_corpus import ImageCorpus, LabelledImages, format_shape
from common.data.required_columns import check_columns
from common.errors import UserError

if TYPE_CHECKING:
    from PIL.Image import Image

MODES = ("L", "RGB")  # PIL's names for images of bytes with one channel and with three


def read(data: HubImagesSettings) -> ImageCorpus:
    """Read both splits.

    Raises:
        UserError: If the data set or an image is wrong. The error names the config key or the row.
    """
    splits = hub.load_splits(data)
    labelled_splits = []
    for key, split in splits.items():
        location = f"data.path={data.path}, {getattr(data, key)}"
        check_columns(location, [("data.image", data.image), ("data.label", data.label)], split.column_names)
        if type(split.features[data.image]).__name__ != "Image":
            raise UserError(f"{location}: no images in {data.image!r}; set data.image to a column of images")
        if not getattr(split.features[data.label], "names", None):  # only a ClassLabel has names
            raise UserError(f"{location}: no classes in {data.label!r}; set data.label to a column of class labels")
        images = _stack_images(location, split[data.image])
        labelled_splits.append(LabelledImages(images, np.array(split[data.label], np.int32), location, location))
    train, validation = labelled_splits
    return ImageCorpus(train, validation, splits["train_split"].features[data.label].names)


def identify(data: HubImagesSettings) -> Identity:
    """Return the config keys. A revision that is a commit identifies the content, but a branch does not."""
    return collect_source_keys(data)


def _stack_images(location: str, images: "Iterable[Image | None]") -> np.ndarray:
    """Return PIL images as one array, uint8 [n, height, width, channels]."""
    arrays: list[np.ndarray] = []
    for row, image in enumerate(images, 1):
        if image is None or image.mode not in MODES:
            kind = "no image" if image is None else f"an image of mode {image.mode}"
            raise UserError(f"{location}: row {row}: {kind}; convert it to {' or '.join(MODES)}")
        arrays.append(np.asarray(image))
        shape, first_shape = arrays[-1].shape, arrays[0].shape
        if shape != first_shape:
            raise UserError(
                f"{location}: row {row}: {format_shape(shape)}, but row 1 is {format_shape(first_shape)}; resize them"
            )
    stacked = np.stack(arrays)
    return stacked.reshape(*stacked.shape[:3], -1)
