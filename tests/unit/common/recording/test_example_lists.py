"""Tests of lists in a batch with an array for each example."""

import numpy as np
import pytest

from common.recording.example_lists import find_lists

BOXES = {f"2.{row}.boxes": np.ones((length, 4), np.float32) for row, length in enumerate((2, 1, 3))}
IMAGES = np.ones((3, 8, 8), np.float32)


def test_the_boxes_of_each_image_are_one_list() -> None:
    assert find_lists({"0": IMAGES, **BOXES}) == {"2.*.boxes": [*BOXES]}
    assert find_lists(BOXES, counts={3}) == {"2.*.boxes": [*BOXES]}


@pytest.mark.parametrize(
    "arrays",
    [
        BOXES,  # nothing else shows the number of examples
        {"0": IMAGES[:2], **BOXES},
        {"0": IMAGES, **{name: x for name, x in BOXES.items() if "1" not in name}},
        {
            "0": IMAGES,
            "2.0": np.ones((3, 4)),
            "2.1": np.ones((3, 4)),
            "2.2": np.ones((3, 4)),
        },  # three arrays of a batch
        {"0": IMAGES, "2.0": np.ones((5, 4)), "2.1": np.ones((5, 3)), "2.2": np.ones((5, 2))},
        {"0.0": np.ones((4, 8)), "1.0": np.ones((2, 8)), "0.1": np.ones(4), "1.1": np.ones(2)},  # of two loaders
    ],
)
def test_other_arrays_are_no_lists(arrays: dict[str, np.ndarray]) -> None:
    assert find_lists(arrays) == {}
