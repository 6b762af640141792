"""The image cache: a corpus of images as bytes on disk, built once and opened memory-mapped by every process of a run.

A split of n examples is two arrays: `images` uint8 [n, height, width, channels], and `labels` int32 [n], the indices of
the classes.
"""

import logging
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, cast

import numpy as np

from common.config.data import TransformedSettings
from common.config.schema import Config
from common.data.atomic_directory import Manifest, compute_fingerprint, open_or_build, read_manifest
from common.data.batches import Arrays
from common.data.cache import Cache
from common.data.identity import identify
from common.data.images.image_corpus import read_images
from common.errors import UserError

if TYPE_CHECKING:
    from common.data.tokenizer_source import TokenizerSource

log = logging.getLogger("lockstep")

FORMAT = 1  # raise it whenever the files change, so that caches of the old format are built again


class ImageManifest(Manifest):
    """Manifest of an image cache.

    `mean` and `standard_deviation` are over all pixels of the training images, divided by `largest`.
    """

    classes: list[str]
    largest: int  # largest value that a pixel may have
    mean: float
    standard_deviation: float


@dataclass(frozen=True)
class ImageSplit:
    """A split of images in memory-mapped arrays. `ids` are indices of n examples."""

    images: np.ndarray
    labels: np.ndarray
    pixel_values: np.ndarray  # the numbers in a batch for the stored values 0 to 255, float32 [256]

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def example_shapes(self) -> dict[str, tuple[int | None, ...]]:
        """The shapes of an image and its label."""
        return {"images": self.images.shape[1:], "labels": ()}

    def lengths(self, ids: np.ndarray) -> np.ndarray:
        """Return zeros: images have no tokens."""
        return np.zeros(len(ids), np.int64)

    def weights(self, ids: np.ndarray) -> np.ndarray:
        """Return ones: all examples have the same weight."""
        return np.ones(len(ids))

    def loss_counts(self, ids: np.ndarray) -> np.ndarray:
        """Return ones: an image has one label."""
        return np.ones(len(ids))

    def gather(self, ids: np.ndarray, batch: np.ndarray) -> Arrays:
        """Return `images` float32 [n, height, width, channels] and `labels` int32 [n]."""
        return {"images": self.pixel_values[self.images[ids]], "labels": self.labels[ids]}

    def gather_unpadded(self, ids: np.ndarray) -> Arrays:
        """Return the same as `gather`: images have no padding."""
        return self.gather(ids, ids)

    def count_tokens(self, arrays: Arrays) -> int:
        """Return 0: images have no tokens."""
        return 0


@dataclass(frozen=True)
class ImageCache(Cache):
    """An opened image cache."""

    @property
    def image_shape(self) -> tuple[int, ...]:
        """Shape of an image: (height, width, channels)."""
        return cast(tuple[int, ...], self.train.example_shapes["images"])


def open_cache(config: Config, source: "TokenizerSource | None") -> ImageCache:
    """Open the image cache of a config. Build the cache first if it is missing or damaged.

    A pixel b is normalized to (b / largest - mean) / standard_deviation, with the entries of the manifest. If the
    config has transforms, they receive pixels from 0 to 1, and the transform `normalize` does the rest.

    Args:
        config: The config of the run.
        source: Not used, because images have no tokenizer.

    Raises:
        UserError: If the corpus is wrong.
    """
    key = compute_fingerprint({"format": FORMAT, "corpus": identify(config.data)})
    directory = Path(config.cache_dir) / f"images-{key}"
    manifest = open_or_build(directory, lambda partial: _build(partial, config))
    return _open(config, directory, manifest)


def reopen_cache(config: Config, directory: Path) -> ImageCache:
    """Open the image cache at a path that an earlier `open_cache` has verified.

    Raises:
        UserError: If the manifest cannot be read.
    """
    return _open(config, directory, cast(ImageManifest, read_manifest(directory)))


def _open(config: Config, directory: Path, manifest: ImageManifest) -> ImageCache:
    values, normalization = np.arange(256) / manifest["largest"], None
    if isinstance(config.data, TransformedSettings) and config.data.transforms:
        normalization = {"mean": [manifest["mean"]], "std": [manifest["standard_deviation"]]}
    else:
        values = (values - manifest["mean"]) / manifest["standard_deviation"]
    return ImageCache(
        directory=directory,
        fingerprint=compute_fingerprint(manifest["checksums"]),
        train=_open_split(directory, "train", values.astype(np.float32)),
        validation=_open_split(directory, "validation", values.astype(np.float32)),
        classes=manifest["classes"],
        normalization=normalization,
    )


def _open_split(directory: Path, name: str, values: np.ndarray) -> ImageSplit:
    images, labels = (np.load(directory / f"{name}.{array}.npy", mmap_mode="r") for array in ("images", "labels"))
    return ImageSplit(images, labels, values)


def _build(directory: Path, config: Config) -> ImageManifest:
    corpus = read_images(config.data)
    log.info("building the image cache of %d examples", len(corpus.train.labels) + len(corpus.validation.labels))
    for name, split in (("train", corpus.train), ("validation", corpus.validation)):
        np.save(directory / f"{name}.images.npy", split.images)
        np.save(directory / f"{name}.labels.npy", split.labels)
    scaled = np.arange(256) / corpus.largest
    counts = np.bincount(corpus.train.images.reshape(-1), minlength=256)  # training pixels of each value
    if np.count_nonzero(counts) == 1:
        raise UserError(
            f"data={config.data.kind}: all pixels of the images to train on have the same value; check them"
        )
    mean = float(np.average(scaled, weights=counts))
    variance = float(np.average((scaled - mean) ** 2, weights=counts))
    return {"classes": corpus.classes, "largest": corpus.largest, "mean": mean, "standard_deviation": variance**0.5}
