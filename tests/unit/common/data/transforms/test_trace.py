"""The trace of a batch ends with the arrays that the batch has."""

import numpy as np
import pytest

from common.data.batches import GlobalBatch
from common.data.transforms.trace import trace_transforms
from tests.unit.common.data.transforms.samples import HERE, IMAGE_SPLIT, IMAGES, transformed

IDS = np.array([5, 2, 11, 7])


@pytest.mark.parametrize(
    ("transforms", "places"),
    [
        (
            ({"random_crop": 2}, f"{HERE}:jitter"),
            ["before the transforms", "after random_crop", f"after {HERE}:jitter"],
        ),
        ((f"{HERE}:brighten_in_place",), ["before the transforms", f"after {HERE}:brighten_in_place"]),
        (("horizontal_flip", {"mixup": 0.3}), ["before the transforms", "after horizontal_flip", "after mixing"]),
    ],
)
def test_the_last_examples_are_those_of_the_batch(transforms: tuple[object, ...], places: list[str]) -> None:
    split = transformed(*transforms).select_batch(1, 3, IDS)
    trace = trace_transforms(GlobalBatch(3, IDS, split, "global"))
    assert [place for place, _ in trace] == places
    assert all([*examples] == IDS.tolist() for _, examples in trace)
    expected = split.gather(IDS, IDS)
    for name, array in expected.items():
        np.testing.assert_array_equal(np.stack([trace[-1][1][number][name] for number in IDS.tolist()]), array)
    np.testing.assert_array_equal(trace[0][1][11]["images"], IMAGES[11])


def test_data_without_transforms_have_no_trace() -> None:
    assert trace_transforms(GlobalBatch(1, IDS, IMAGE_SPLIT, "global")) == []
