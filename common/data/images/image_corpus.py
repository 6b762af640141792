"""Corpora of labelled images of one shape, as arrays."""

from collections.abc import Iterable
from dataclasses import dataclass
from importlib import import_module

import numpy as np

from common.config.data import DataSettings
from common.errors import UserError


@dataclass(frozen=True)
class LabelledImages:
    """One split: `images` uint8 [n, height, width, channels] and `labels` int32 [n], which index the corpus's classes.

    images_at, labels_at: the file or data set that each was read from, for errors.
    """

    images: np.ndarray
    labels: np.ndarray
    images_at: str
    labels_at: str


@dataclass(frozen=True)
class ImageCorpus:
    """Both splits; `largest` is the largest value that a pixel may have."""

    train: LabelledImages
    validation: LabelledImages
    classes: list[str]
    largest: int = 255


def read_images(data: DataSettings) -> ImageCorpus:
    """Read both splits of a corpus. Raises UserError, which names the file or the key."""
    corpus: ImageCorpus = import_module(data.source).read(data)
    _check_labels(corpus.train, corpus.classes)
    _check_labels(corpus.validation, corpus.classes)
    _check_shapes(corpus.train, corpus.validation)
    return corpus


def format_shape(shape: Iterable[int]) -> str:
    """A shape in words."""
    return " x ".join(map(str, shape))


def _check_shapes(train: LabelledImages, validation: LabelledImages) -> None:
    shape, expected = validation.images.shape[1:], train.images.shape[1:]
    if shape != expected:
        raise UserError(
            f"{validation.images_at}: images of {format_shape(shape)}, "
            f"but those to train on are {format_shape(expected)}; resize them"
        )


def _check_labels(split: LabelledImages, classes: list[str]) -> None:
    wrong = np.flatnonzero((split.labels < 0) | (split.labels >= len(classes)))
    if len(wrong):
        raise UserError(
            f"{split.labels_at}: label {split.labels[wrong[0]]} of image {wrong[0] + 1} is not one of the "
            f"{len(classes)} classes; correct it"
        )
