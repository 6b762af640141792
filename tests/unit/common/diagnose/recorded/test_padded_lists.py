"""Tests of lists with an array for each example, which another script may pad."""

from pathlib import Path

import numpy as np
import pytest

from common.diagnose.recorded.padded_lists import join_lists
from common.errors import UserError
from tests.unit.common.diagnose.recorded.test_followed_batches import write_steps

RNG = np.random.default_rng(0)
IMAGES = RNG.normal(size=(3, 8, 8)).astype(np.float32)
BOXES = [RNG.random((length, 4)).astype(np.float32) for length in (2, 1, 3)]
CLASSES = [np.full(len(boxes), 5, np.int64) for boxes in BOXES]
LISTS: dict[str, np.ndarray] = {f"1.{row}.boxes": boxes for row, boxes in enumerate(BOXES)}
LISTS |= {f"1.{row}.classes": classes for row, classes in enumerate(CLASSES)}
OWN_BOXES = np.full((3, 4, 4), 0.5, np.float32)  # the padding of a script is a box of its own
OWN_CLASSES = np.full((3, 4), -1, np.int32)


def _pad(boxes: np.ndarray, classes: np.ndarray, lengths: tuple[int, ...]) -> dict[str, np.ndarray]:
    """Return arrays of a script with some objects of its own."""
    boxes, classes = boxes.copy(), classes.copy()
    for row, length in enumerate(lengths):
        boxes[row, :length], classes[row, :length] = RNG.random((length, 4)), 5
    return {"1.boxes": boxes, "1.classes": classes}


def test_lists_are_joined_with_their_lengths() -> None:
    joined, lengths = join_lists({"0": IMAGES, **LISTS})
    assert {name: array.shape for name, array in joined.items()} == {
        "0": (3, 8, 8), "1.*.boxes": (3, 3, 4), "1.*.classes": (3, 3)
    }  # fmt: skip
    assert lengths["1.*.boxes"].tolist() == [2, 1, 3]
    assert np.array_equal(joined["1.*.boxes"][1, :1], BOXES[1])
    assert not joined["1.*.boxes"][1, 1:].any()


def test_a_script_gets_the_lists_of_a_record(tmp_path: Path) -> None:
    arrays = {"batch/0/input/0": IMAGES, **{f"batch/0/other/{name}": array for name, array in LISTS.items()}}
    batches = write_steps(tmp_path, "torch", [arrays], micro_batches=1)
    batch = {"0": IMAGES + 1, **{name: np.zeros((2, *array.shape[1:]), array.dtype) for name, array in LISTS.items()}}
    filled = batches.fill(batch, 0, 1)
    assert filled is not None
    assert all(np.array_equal(filled[name], array) for name, array in {"0": IMAGES, **LISTS}.items())


def test_a_script_gets_the_lists_of_a_record_with_its_own_padding(tmp_path: Path) -> None:
    arrays = {"batch/0/input/0": IMAGES, **{f"batch/0/other/{name}": array for name, array in LISTS.items()}}
    batches = write_steps(tmp_path, "torch", [arrays], micro_batches=1)
    filled = batches.fill({"0": IMAGES + 1, **_pad(OWN_BOXES, OWN_CLASSES, (1, 2, 1))}, 0, 1)
    assert filled is not None
    assert (filled["1.boxes"].shape, filled["1.classes"].dtype) == ((3, 4, 4), np.int32)
    for row, length in enumerate((2, 1, 3)):
        assert np.array_equal(filled["1.boxes"][row, :length], BOXES[row])
        assert (filled["1.boxes"][row, length:] == 0.5).all()
        assert filled["1.classes"][row].tolist() == [5] * length + [-1] * (4 - length)


def test_the_padding_of_a_record_is_cut_off_for_lists(tmp_path: Path) -> None:
    """The classes of the last objects are equal, too: only boxes and classes together show the padding."""
    steps = []
    for lengths in ((2, 4, 3), (4, 4, 4)):  # in the second step nothing is padded
        padded = _pad(OWN_BOXES, OWN_CLASSES, lengths)
        named = {"input/0": IMAGES, "label/1.boxes": padded["1.boxes"], "label/1.classes": padded["1.classes"]}
        steps.append({f"batch/0/{name}": array for name, array in named.items()})
    batches = write_steps(tmp_path, "tensorflow", steps, micro_batches=1)
    for lengths in ((2, 4, 3), (4, 4, 4)):
        filled = batches.fill({"0": IMAGES, **LISTS}, 0, 1)
        assert filled is not None
        for row, length in enumerate(lengths):
            assert filled[f"1.{row}.boxes"].shape == (length, 4)
            assert filled[f"1.{row}.classes"].tolist() == [5] * length


def test_lists_of_another_number_of_examples_are_refused(tmp_path: Path) -> None:
    arrays = {"batch/0/input/0": IMAGES, **{f"batch/0/other/{name}": array for name, array in LISTS.items()}}
    batches = write_steps(tmp_path, "torch", [arrays], micro_batches=1)
    more = {f"1.3.{name}": LISTS[f"1.0.{name}"] for name in ("boxes", "classes")}
    with pytest.raises(UserError, match=r"has 3 examples for the 4 of 1\.\*\.boxes; use batches of that size"):
        batches.fill({"0": np.repeat(IMAGES, 2, 0)[:4], **LISTS, **more}, 0, 1)
