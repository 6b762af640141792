"""The handwritten digits of scikit-learn as a source of images."""

import numpy as np

from common.config.data import DigitsSettings
from common.data.identity import Identity, collect_source_keys
from common.data.images.image_corpus import ImageCorpus, LabelledImages

TRAINING_EXAMPLES = 1437  # the first of 1797, in scikit-learn's order; the last fifth is for validation


def read(data: DigitsSettings) -> ImageCorpus:
    """Return both splits. The pixels of these images are from 0 to 16."""
    from sklearn.datasets import load_digits

    digits = load_digits()
    images, labels = digits.images.astype(np.uint8)[..., None], digits.target.astype(np.int32)
    splits = slice(TRAINING_EXAMPLES), slice(TRAINING_EXAMPLES, None)
    train, validation = (LabelledImages(images[split], labels[split], "digits", "digits") for split in splits)
    return ImageCorpus(train, validation, [str(name) for name in digits.target_names], largest=16)


def identify(data: DigitsSettings) -> Identity:
    """Return the config keys."""
    return collect_source_keys(data)
