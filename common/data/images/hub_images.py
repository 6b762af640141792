"""A data set of the Hugging Face hub as a source of images."""

from typing import Any

import numpy as np

from common.config.data import HubImagesSettings
from common.data import hub
from common.data.identity import collect_source_keys
from common.data.images.image_corpus import ImageCorpus, LabelledImages, format_shape
from common.data.required_columns import check_columns
from common.errors import UserError

MODES = ("L", "RGB")  # PIL's names for images of bytes with one channel and with three


def read(data: HubImagesSettings) -> ImageCorpus:
    """Read both splits. Raises UserError, which names the key or the row."""
    splits = hub.load_splits(data)
    read_splits = []
    for key, split in splits.items():
        at = f"data.path={data.path}, {getattr(data, key)}"
        check_columns(at, [("data.image", data.image), ("data.label", data.label)], split.column_names)
        if type(split.features[data.image]).__name__ != "Image":
            raise UserError(f"{at}: no images in {data.image!r}; set data.image to the column that has them")
        if not getattr(split.features[data.label], "names", None):  # a ClassLabel has them
            raise UserError(f"{at}: no classes in {data.label!r}; set data.label to a column of class labels")
        labels = np.array(split[data.label], np.int32)
        read_splits.append(LabelledImages(_stacked(at, split[data.image]), labels, at, at))
    train, validation = read_splits
    return ImageCorpus(train, validation, splits["train_split"].features[data.label].names)


def identify(data: HubImagesSettings) -> dict[str, Any]:
    """What names the corpus: the keys. A commit names the content; of a branch only its name is known."""
    return collect_source_keys(data)


def _stacked(at: str, images: Any) -> np.ndarray:
    """PIL's images as one array."""
    arrays: list[np.ndarray] = []
    for row, image in enumerate(images, 1):
        if image is None or image.mode not in MODES:
            kind = "no image" if image is None else f"an image of mode {image.mode}"
            raise UserError(f"{at}: row {row}: {kind}; convert it to {' or '.join(MODES)}")
        arrays.append(np.asarray(image))
        if arrays[-1].shape != arrays[0].shape:
            raise UserError(
                f"{at}: row {row}: {format_shape(arrays[-1].shape)}, but row 1 is {format_shape(arrays[0].shape)}; "
                "resize them"
            )
    stacked = np.stack(arrays)
    return stacked.reshape(*stacked.shape[:3], -1)
