"""A kind of data: generated images of stripes. The class of an image is the angle of its stripes.

The fields of the settings are config keys, such as data.angles=3. `source` names the module with `read` and `identify`.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from common.config.data import DATA, ImageSettings
from common.config.keys import SOURCE, key
from common.data.identity import collect_source_keys
from common.data.images.image_corpus import ImageCorpus, LabelledImages

ANGLES = (0, 90, 45, 135)  # degrees


@dataclass(frozen=True)
class StripesSettings(ImageSettings):
    """Settings of the data."""

    source = __name__

    angles: int = key(SOURCE, at_least=2, at_most=4)
    train_examples: int = key(SOURCE, at_least=1)
    validation_examples: int = key(SOURCE, at_least=1)


DATA["stripes"] = StripesSettings


def read(data: StripesSettings) -> ImageCorpus:
    """Return both splits and the names of the classes."""
    train = _draw_split(data.angles, data.train_examples, seed=0)
    validation = _draw_split(data.angles, data.validation_examples, seed=1)
    return ImageCorpus(train, validation, [str(angle) for angle in ANGLES[: data.angles]])


def identify(data: StripesSettings) -> dict[str, Any]:
    """Return what identifies the images: the keys. A reader of files adds their sizes and modification times."""
    return collect_source_keys(data)


def _draw_split(angles: int, count: int, seed: int) -> LabelledImages:
    """Draw `count` images of 8 x 8 pixels. The angles take turns, and each image has a random phase."""
    labels = np.arange(count, dtype=np.int32) % angles
    angle = np.radians(np.array(ANGLES)[labels])[:, None, None]
    phase = np.random.Generator(np.random.PCG64(seed)).uniform(0, 2 * np.pi, [count, 1, 1])
    y, x = np.mgrid[:8, :8]
    waves = np.cos((x * np.cos(angle) + y * np.sin(angle)) * np.pi / 2 + phase)
    images = np.round((waves + 1) * 127.5).astype(np.uint8)[..., None]  # from 0 to 255, [n, height, width, channels]
    return LabelledImages(images, labels, "stripes", "stripes")  # the last two name images and labels in errors
