"""What every corpus of images is checked for."""

from pathlib import Path

import numpy as np
import pytest

from common.config.data import IdxSettings
from common.config.schema import Config
from common.data.images.image_corpus import read_images
from common.errors import UserError
from tests.unit.common.data.images.conftest import TEST, labels_of
from tests.unit.common.data.images.idx_samples import write_idx


@pytest.mark.parametrize(
    ("images", "labels", "expected"),
    [
        (TEST[:, :5], labels_of(TEST), "t10k-images-idx3-ubyte: images of 5 x 5 x 1, but those to train on are 6"),
        (TEST, labels_of(TEST) + 1, "t10k-labels-idx1-ubyte: label 3 of image 3 is not one of the 3 classes"),
    ],
)
def test_splits_that_do_not_fit(idx_config: Config, images: np.ndarray, labels: np.ndarray, expected: str) -> None:
    assert isinstance(idx_config.data, IdxSettings)
    write_idx(Path(idx_config.data.directory), "t10k", images, labels, zipped=False)
    with pytest.raises(UserError) as raised:
        read_images(idx_config.data)
    assert expected in str(raised.value)
