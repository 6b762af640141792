"""The handwritten digits that scikit-learn comes with as a source of images."""

from typing import Any

import numpy as np

from common.config.data import DigitsSettings
from common.data.identity import collect_source_keys
from common.data.images.image_corpus import ImageCorpus, LabelledImages

DIGITS_TO_TRAIN_ON = 1437  # of 1797, in scikit-learn's order; the last fifth is for validation


def read(data: DigitsSettings) -> ImageCorpus:
    """Both splits. A pixel's largest value is 16."""
    from sklearn.datasets import load_digits

    digits = load_digits()
    images, labels = digits.images.astype(np.uint8)[..., None], digits.target.astype(np.int32)
    splits = slice(DIGITS_TO_TRAIN_ON), slice(DIGITS_TO_TRAIN_ON, None)
    train, validation = (LabelledImages(images[split], labels[split], "digits", "digits") for split in splits)
    return ImageCorpus(train, validation, [str(name) for name in digits.target_names], largest=16)


def identify(data: DigitsSettings) -> dict[str, Any]:
    """What names the corpus: its kind."""
    return collect_source_keys(data)
