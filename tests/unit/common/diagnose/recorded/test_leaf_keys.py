"""Tests of arrays that get their counterpart by the keys and the structure of the followed script's batch."""

from pathlib import Path

import numpy as np
import pytest

from common.errors import UserError
from tests.unit.common.diagnose.recorded.test_followed_batches import write_steps

RNG = np.random.default_rng(0)
NOISY, NOISE, CLEAN, SECOND = RNG.normal(size=(4, 6, 8)).astype(np.float32)
NODES, EDGES = RNG.normal(size=(20, 5)).astype(np.float32), RNG.integers(0, 20, (2, 30))


def test_an_array_gets_that_of_its_key_and_not_a_computed_one(tmp_path: Path) -> None:
    """The model receives noisy images that the script computes, and the noise is a label."""
    arrays = {"input/0": NOISY, "label/target": NOISE, "other/clean": CLEAN}
    named = {f"batch/0/{name}": array for name, array in arrays.items()}
    batches = write_steps(tmp_path, "torch", [named], {"label/target": "noise"}, micro_batches=1)
    filled = batches.fill({"0.clean": CLEAN + 1, "0.noise": NOISE + 1}, 0, 1)
    assert filled is not None
    assert np.array_equal(filled["0.noise"], NOISE)
    assert np.array_equal(filled["0.clean"], CLEAN)


def test_arrays_get_those_in_their_places_if_both_batches_have_one_structure(tmp_path: Path) -> None:
    arrays = {"input/0": NOISY, "label/0": CLEAN, "label/2": NOISE, "other/1": SECOND}
    named = {f"batch/0/{name}": array for name, array in arrays.items()}
    batches = write_steps(tmp_path, "tensorflow", [named], {"label/0": "0", "label/2": "2"}, micro_batches=1)
    filled = batches.fill({name: NOISY for name in "012"}, 0, 1)
    assert filled is not None
    for name, array in (("0", CLEAN), ("1", SECOND), ("2", NOISE)):
        assert np.array_equal(filled[name], array)


def test_lengths_that_the_model_computes_come_after_those_of_the_batch(tmp_path: Path) -> None:
    """A CTC loss receives the lengths of outputs and of targets."""
    lengths, outputs = np.array([3, 1, 2, 4, 2, 3]), np.array([9, 7, 8, 9, 9, 8])
    arrays = {"input/0": NOISY, "label/input_lengths": outputs, "label/target_lengths": lengths}
    named = {f"batch/0/{name}": array for name, array in arrays.items()}
    keys = {"input/0": "0", "label/target_lengths": "1"}
    batches = write_steps(tmp_path, "torch", [named], keys, micro_batches=1)
    filled = batches.fill({"0.0": NOISY, "1.1": lengths + 1}, 0, 1)
    assert filled is not None
    assert np.array_equal(filled["1.1"], lengths)


def test_lengths_are_no_shares(tmp_path: Path) -> None:
    named = {"batch/0/input/0": NOISY, "batch/0/label/lengths": np.array([3, 1, 2, 4, 2, 3])}
    batches = write_steps(tmp_path, "torch", [named], micro_batches=1)
    with pytest.raises(UserError, match=r"has nothing for 1 float32\[6\] of the script's batch"):
        batches.fill({"0": NOISY, "1": np.linspace(0.1, 1, 6, dtype=np.float32)}, 0, 1)


@pytest.mark.parametrize("names", [("0", "1", "2", "3"), ("0.0", "1", "0.1", "0.2")])
def test_a_part_of_a_graph_is_handed_over_as_it_is(names: tuple[str, ...], tmp_path: Path) -> None:
    """It has nodes, labels and edges, whose numbers change in each step; the edges may come before the labels."""
    labels = np.arange(9)
    arrays: dict[str, np.ndarray] = {
        "input/0": NODES,
        "label/target": labels,
        "input/1": EDGES,
        "input/2": EDGES[:, :12],
    }
    named = {f"batch/0/{name}": array for name, array in arrays.items()}
    keys = dict(zip(arrays, ("0", "1", "2", "3"), strict=True))
    batches = write_steps(tmp_path, "torch", [named], keys, micro_batches=1)
    batch: dict[str, np.ndarray] = dict(zip(names, (NODES[:17], labels[:6], EDGES[:, :25], EDGES[:, :7]), strict=True))
    filled = batches.fill(batch, 0, 1)
    assert filled is not None
    for name, array in zip(names, arrays.values(), strict=True):
        assert np.array_equal(filled[name], array)
    assert batches.notes[0].startswith("batches: their arrays have no row for each example")
    assert batches.fill(batch, 0, 1) is None


def test_an_array_without_a_row_for_each_example_is_handed_over_or_refused(tmp_path: Path) -> None:
    """The states after the steps of an agent that did not end an episode are fewer than the steps."""
    mask = np.array([True, True, False, True, True, False])
    arrays = {"input/0": NOISY, "other/1": mask, "other/2": CLEAN[mask]}
    for name, recorded in (("complete", arrays), ("without", {k: x for k, x in arrays.items() if k != "other/2"})):
        named = {f"batch/0/{key}": array for key, array in recorded.items()}
        batches = write_steps(tmp_path / name, "torch", [named], micro_batches=1)
        batch = {"0": NOISY, "1": ~mask, "rest": CLEAN[:2], "2": CLEAN[:3]}
        if name == "without":
            with pytest.raises(UserError, match="has nothing for rest float32"):
                batches.fill(batch, 0, 1)
            continue
        del batch["rest"]
        filled = batches.fill(batch, 0, 1)
        assert filled is not None
        assert np.array_equal(filled["2"], CLEAN[mask])


def test_whole_numbers_fit_a_place_whatever_their_type(tmp_path: Path) -> None:
    """The followed script has classes and weights as floats, and this one has integers in the place of the classes."""
    classes, weights = np.array([0, 1, 1, 0, 1, 0], np.float32), np.array([0.5, 2, 1.5, 1, 0.3, 0.7], np.float32)
    arrays = {"input/0": NOISY, "label/target": classes, "label/weight": weights}
    named = {f"batch/0/{name}": array for name, array in arrays.items()}
    keys = {"input/0": "0", "label/target": "1", "label/weight": "2"}
    batches = write_steps(tmp_path, "torch", [named], keys, micro_batches=1)
    filled = batches.fill({"0": NOISY, "1": classes.astype(np.int64), "2": weights[::-1]}, 0, 1)
    assert filled is not None
    assert np.array_equal(filled["1"], classes)
    assert filled["1"].dtype == np.int64
    assert np.array_equal(filled["2"], weights)


def test_smoothed_labels_do_not_replace_one_hot_ones(tmp_path: Path) -> None:
    classes = np.arange(6) % 3
    one_hot = np.eye(3, dtype=np.float32)[classes]
    arrays = {"input/0": NOISY, "label/operand_0": 0.9 * one_hot + 0.1 / 3, "other/1": classes}
    named = {f"batch/0/{name}": array for name, array in arrays.items()}
    batches = write_steps(tmp_path, "torch", [named], {"input/0": "0"}, micro_batches=1)
    filled = batches.fill({"0": NOISY, "1": one_hot[::-1]}, 0, 1)
    assert filled is not None
    assert np.array_equal(filled["1"], one_hot)


def test_constant_labels_without_counterpart_keep_their_values(tmp_path: Path) -> None:
    images = np.concatenate([NOISY] * 3)
    batches = write_steps(tmp_path, "tensorflow", [{"batch/0/input/0": images}], micro_batches=1)
    filled = batches.fill({"0": images + 1, "1": np.zeros(18, np.int64)}, 0, 1)
    assert filled is not None
    assert [*filled] == ["0"]
    assert batches.notes == ["batches: 1 of the script's batch is not replaced: its numbers are all the same"]


def test_a_copy_of_another_array_gets_its_values(tmp_path: Path) -> None:
    """The labels of a model with two outputs may be one array, which its data set returns twice."""
    named = {"batch/0/input/0": NOISY, "batch/0/label/operand_0": CLEAN}
    batches = write_steps(tmp_path, "torch", [named], {"input/0": "0"}, micro_batches=1)
    filled = batches.fill({"0": NOISY, "1.0": SECOND, "1.1": SECOND}, 0, 1)
    assert filled is not None
    assert np.array_equal(filled["1.0"], CLEAN)
    assert np.array_equal(filled["1.1"], CLEAN)


def test_arrays_of_two_loaders_are_handed_over_though_the_script_joins_them_for_its_model(tmp_path: Path) -> None:
    """Take labelled images, and two views of more unlabelled ones, as FixMatch does, in each framework's layout."""
    stream = np.random.default_rng(0)
    images, views = stream.normal(size=(2, 6, 6, 3)), stream.normal(size=(2, 4, 6, 6, 3))
    labels = np.array([1, 2])
    named = {
        "batch/0/input/0": np.concatenate([images, *views]), "batch/0/other/0.0": images, "batch/0/other/0.1": labels,
        "batch/0/other/1.0": views[0], "batch/0/other/1.1": views[1],
    }  # fmt: skip
    batches = write_steps(tmp_path, "tensorflow", [named], {}, micro_batches=1)
    shapes = {"0.0": (2, 3, 6, 6), "0.1": (2,), "1.0": (4, 3, 6, 6), "1.1": (4, 3, 6, 6)}
    leaves = {name: np.zeros(shape, int if name == "0.1" else float) for name, shape in shapes.items()}
    filled = batches.fill(leaves, 0, 1)
    assert filled is not None
    assert np.array_equal(filled["0.1"], labels)
    for name, array in (("0.0", images), ("1.0", views[0]), ("1.1", views[1])):
        assert np.array_equal(filled[name], np.moveaxis(array, -1, 1))
