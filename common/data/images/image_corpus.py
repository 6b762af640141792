"""Corpora of labelled images. All images of a corpus have the same shape, so a split is one array in memory."""

from collections.abc import Iterable
from dataclasses import dataclass
from importlib import import_module

import numpy as np

from common.config.data import DataSettings
from common.errors import UserError


@dataclass(frozen=True)
class LabelledImages:
    """The images of one split."""

    images: np.ndarray  # uint8 [n, height, width, channels]
    labels: np.ndarray  # index of each image's class in `ImageCorpus.classes`, int32 [n]
    images_location: str  # file or data set of the images, for errors
    labels_location: str  # file or data set of the labels, for errors


@dataclass(frozen=True)
class ImageCorpus:
    """Both splits of a corpus."""

    train: LabelledImages
    validation: LabelledImages
    classes: list[str]  # names
    largest: int = 255  # largest value that a pixel may have


def read_images(data: DataSettings) -> ImageCorpus:
    """Read both splits of a corpus.

    Raises:
        UserError: If labels or shapes are wrong. The error names the file or the config key.
    """
    corpus: ImageCorpus = import_module(data.source).read(data)
    _check_labels(corpus.train, corpus.classes)
    _check_labels(corpus.validation, corpus.classes)
    _check_shapes(corpus.train, corpus.validation)
    return corpus


def format_shape(shape: Iterable[int]) -> str:
    """Return a shape as text, such as "28 x 28"."""
    return " x ".join(map(str, shape))


def _check_shapes(train: LabelledImages, validation: LabelledImages) -> None:
    shape, expected = validation.images.shape[1:], train.images.shape[1:]
    if shape != expected:
        raise UserError(
            f"{validation.images_location}: images of {format_shape(shape)}, but those to train on are "
            f"{format_shape(expected)}; resize them"
        )


def _check_labels(split: LabelledImages, classes: list[str]) -> None:
    wrong = np.flatnonzero((split.labels < 0) | (split.labels >= len(classes)))
    if len(wrong):
        raise UserError(
            f"{split.labels_location}: label {split.labels[wrong[0]]} of image {wrong[0] + 1} is not one of the "
            f"{len(classes)} classes; correct it"
        )
