"""The digits of scikit-learn."""

import numpy as np
import pytest

from common.data.images.image_cache import open_cache
from tests.conftest import MakeConfig

pytestmark = pytest.mark.slow


def test_digits(make_config: MakeConfig) -> None:
    cache = open_cache(make_config("model=convnet"), None)
    assert (str(cache), cache.image_shape) == ("1437 training and 360 validation examples", (8, 8, 1))
    assert cache.classes == [str(digit) for digit in range(10)]
    everything = np.arange(len(cache.train))
    images = cache.train.gather(everything, everything)["images"].astype(np.float64)
    assert abs(images.mean()) < 1e-6 and images.std() == pytest.approx(1, abs=1e-6)
    assert len(np.unique(images)) == 17
    assert set(cache.validation.labels.tolist()) == set(range(10))
