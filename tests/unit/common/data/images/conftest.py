"""A corpus of images in IDX files."""

from pathlib import Path

import numpy as np
import pytest

from common.config.schema import Config
from tests.conftest import MakeConfig
from tests.unit.common.data.images.idx_samples import write_idx

RANDOM = np.random.default_rng(0)
TRAIN = RANDOM.integers(0, 256, (20, 6, 5), np.uint8)
TEST = RANDOM.integers(0, 256, (8, 6, 5), np.uint8)


def labels_of(images: np.ndarray) -> np.ndarray:
    return (np.arange(len(images)) % 3).astype(np.uint8)


@pytest.fixture
def idx_config(make_config: MakeConfig, tmp_path: Path) -> Config:
    """Return a config of the images above in IDX files."""
    for prefix, images in (("train", TRAIN), ("t10k", TEST)):
        write_idx(tmp_path, prefix, images, labels_of(images), zipped=prefix == "train")
    return make_config("model=convnet", "data=idx", f"data.directory={tmp_path}")
