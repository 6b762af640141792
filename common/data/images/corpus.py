"""Corpora of labelled images: scikit-learn's digits, IDX files or a data set of the hub, as arrays."""

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from common.config.schema import Digits, HubImages, Idx
from common.data import hub
from common.data.images.idx import find_idx, read_idx
from common.data.text.formats import check_columns
from common.errors import UserError

DIGITS_TO_TRAIN_ON = 1437  # of 1797, in scikit-learn's order; the last fifth is for validation
MODES = ("L", "RGB")  # PIL's names for images of bytes with one channel and with three


@dataclass(frozen=True)
class Images:
    """`images` uint8 [n, height, width, channels] and `labels` int32 [n], which index the corpus's classes."""

    images: np.ndarray
    labels: np.ndarray


@dataclass(frozen=True)
class ImageCorpus:
    """Both splits, of images of one shape; `largest` is the largest value that a pixel may have."""

    train: Images
    validation: Images
    classes: list[str]
    largest: int = 255


def read_images(data: Digits | Idx | HubImages) -> ImageCorpus:
    """Read both splits of a corpus. Raises UserError, which names the file or the key."""
    if isinstance(data, Digits):
        return _read_digits()
    return _read_idx(data) if isinstance(data, Idx) else _read_hub(data)


def image_identity(data: Digits | Idx | HubImages) -> dict[str, Any]:
    """What names a corpus without reading its images."""
    key = asdict(data)
    del key["allow_change"]
    if isinstance(data, Idx):
        files = [path for pair in find_idx(data.directory) for path in pair]
        key["directory"] = [[str(path.resolve()), path.stat().st_size, path.stat().st_mtime_ns] for path in files]
    return key


def _read_digits() -> ImageCorpus:
    from sklearn.datasets import load_digits

    digits = load_digits()
    images, labels = digits.images.astype(np.uint8)[..., None], digits.target.astype(np.int32)
    train, validation = slice(DIGITS_TO_TRAIN_ON), slice(DIGITS_TO_TRAIN_ON, None)
    return ImageCorpus(
        Images(images[train], labels[train]),
        Images(images[validation], labels[validation]),
        [str(name) for name in digits.target_names],
        largest=16,
    )


def _read_idx(data: Idx) -> ImageCorpus:
    files = find_idx(data.directory)
    train, validation = (
        Images(images[..., None], labels.astype(np.int32)) for images, labels in (read_idx(*pair) for pair in files)
    )
    classes = [str(label) for label in range(train.labels.max() + 1)]
    (_, train_labels), (validation_images, validation_labels) = files
    _check_shapes(str(validation_images), train, validation)
    _check_labels(str(train_labels), train, classes)
    _check_labels(str(validation_labels), validation, classes)
    return ImageCorpus(train, validation, classes)


def _read_hub(data: HubImages) -> ImageCorpus:
    splits = hub.load_splits(data)
    classes: list[str] = []
    read, source = [], ""
    for key, split in splits.items():
        source = f"data.path={data.path}, {getattr(data, key)}"
        check_columns(source, [("data.image", data.image), ("data.label", data.label)], split.column_names)
        if type(split.features[data.image]).__name__ != "Image":
            raise UserError(f"{source}: no images in {data.image!r}; set data.image to the column that has them")
        if not (classes := getattr(split.features[data.label], "names", [])):  # a ClassLabel has them
            raise UserError(f"{source}: no classes in {data.label!r}; set data.label to a column of class labels")
        read.append(Images(_stacked(source, split[data.image]), np.array(split[data.label], np.int32)))
        _check_labels(source, read[-1], classes)
    train, validation = read
    _check_shapes(source, train, validation)
    return ImageCorpus(train, validation, classes)


def _stacked(source: str, images: Any) -> np.ndarray:
    """PIL's images as one array."""
    arrays: list[np.ndarray] = []
    for row, image in enumerate(images, 1):
        if image is None or image.mode not in MODES:
            kind = "no image" if image is None else f"an image of mode {image.mode}"
            raise UserError(f"{source}: row {row}: {kind}; Lockstep reads {' and '.join(MODES)}")
        arrays.append(np.asarray(image))
        if arrays[-1].shape != arrays[0].shape:
            raise UserError(f"{source}: row {row}: {_size(arrays[-1].shape)}, but row 1 is {_size(arrays[0].shape)}")
    stacked = np.stack(arrays)
    return stacked.reshape(*stacked.shape[:3], -1)


def _check_shapes(source: str, train: Images, validation: Images) -> None:
    shape, expected = validation.images.shape[1:], train.images.shape[1:]
    if shape != expected:
        raise UserError(f"{source}: images of {_size(shape)}, but those to train on are {_size(expected)}")


def _check_labels(source: str, split: Images, classes: list[str]) -> None:
    wrong = np.flatnonzero((split.labels < 0) | (split.labels >= len(classes)))
    if len(wrong):
        raise UserError(
            f"{source}: label {split.labels[wrong[0]]} of image {wrong[0] + 1} is not one of the {len(classes)} classes"
        )


def _size(shape: tuple[int, ...]) -> str:
    return " x ".join(map(str, shape))
