"""Tests of the batches of a record in the structure of the batches of the script that follows it."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.diagnose.recorded.followed_batches import FollowedBatches
from common.diagnose.recorded.matched_arrays import match_by_values
from common.diagnose.recorded.recorded_side import RecordedSide
from common.errors import UserError
from common.recording.record_format import REFUSED, Environment
from common.recording.record_reader import open_record
from common.recording.record_writer import RecordWriter

ENVIRONMENT: Environment = {"versions": {}, "device": "cpu", "flags": {}}
EXAMPLES = 12
IMAGES = np.arange(EXAMPLES * 4 * 5 * 3, dtype=np.float32).reshape(EXAMPLES, 4, 5, 3)
LABELS = np.arange(EXAMPLES) % 3


def write_steps(
    directory: Path,
    framework: str,
    steps: Sequence[dict[str, np.ndarray]],
    keys: dict[str, str] | None = None,
    micro_batches: int = 2,
) -> FollowedBatches:
    """Write a record of these steps with some micro-batches each, and return its batches."""
    writer = RecordWriter(str(directory), framework, ENVIRONMENT)
    writer.write_start({})
    for step, arrays in enumerate(steps, 1):
        facts = {
            "step": step, "micro_batches": micro_batches, "losses": [0.0] * micro_batches, "rates": [0.1],
            "loss_scale": None, "skipped": False, "max_norm": None, "keys": keys or {},
        }  # fmt: skip
        writer.write_step(facts, arrays)  # type: ignore[arg-type]
    writer.close(complete=True)
    return FollowedBatches(RecordedSide("a", open_record(directory)))


def write_record(
    directory: Path,
    inputs: dict[str, np.ndarray],
    labels: dict[str, np.ndarray],
    others: dict[str, np.ndarray] | None = None,
) -> FollowedBatches:
    """Write a record whose second step has other values."""
    arrays = {
        f"batch/{number}/{kind}/{name}": np.split(array, 2)[number]
        for number in range(2)
        for kind, named in (("input", inputs), ("label", labels), ("other", others or {}))
        for name, array in named.items()
    }
    return write_steps(directory, "tensorflow", [arrays, {name: array + 1 for name, array in arrays.items()}])


def test_labels_that_follow_from_an_input_are_those_of_the_record(tmp_path: Path) -> None:
    """They look like the weights of a class, but the record has an array for each array of the script."""
    groups = np.arange(EXAMPLES, dtype=np.int64)[:, None] % 2
    batches = write_record(tmp_path, {"0": groups}, {"y_true": 2.5 - groups[:, 0]})
    batch = batches.fill({"0": groups, "1": 7.5 * groups[:, 0] + 1}, 0, 1)
    assert batch is not None
    assert np.array_equal(batch["1"], 2.5 - groups[:, 0])


def test_a_number_that_a_script_passes_beside_its_batch_is_no_label(tmp_path: Path) -> None:
    """A `tf.function` receives the weight of a term of the loss, which is recorded as an array without axes."""
    inputs = np.arange(EXAMPLES * 3.0).reshape(EXAMPLES, 3)
    arrays = {"batch/0/input/0": inputs, "batch/0/label/y_true": LABELS, "batch/0/other/2": np.array(0.5)}
    batches = write_steps(tmp_path, "tensorflow", [arrays], micro_batches=1)
    batch = batches.fill({"0": inputs + 1, "1": LABELS * 0}, 0, 1)
    assert batch is not None
    assert np.array_equal(batch["0"], inputs)
    assert np.array_equal(batch["1"], LABELS)


@given(size=st.integers(1, EXAMPLES), world_size=st.integers(1, 3))
def test_all_processes_together_take_every_example_once(
    size: int, world_size: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    directory = tmp_path_factory.mktemp("record")
    ranks = [write_record(directory, {"0": IMAGES}, {"y_true": LABELS}) for _ in range(world_size)]
    template: dict[str, np.ndarray] = {"0": np.zeros((size, 3, 4, 5), np.float32), "1": np.zeros(size, np.int64)}
    if EXAMPLES % (size * world_size) and EXAMPLES % (size * world_size) < world_size:
        return  # some process would get no example
    taken: list[dict[str, np.ndarray]] = []
    while (batch := ranks[0].fill(template, 0, world_size)) is not None:
        others = [ranks[rank].fill(template, rank, world_size) for rank in range(1, world_size)]
        taken += [batch, *(other for other in others if other is not None)]
    images, labels = (np.concatenate([batch[name] for batch in taken]) for name in ("0", "1"))
    np.testing.assert_array_equal(images, np.concatenate([IMAGES, IMAGES + 1]).transpose(0, 3, 1, 2))
    np.testing.assert_array_equal(labels, np.concatenate([LABELS, LABELS + 1]))
    assert labels.dtype == np.int64


@pytest.mark.parametrize(
    ("recorded", "template"),
    [
        (LABELS, np.eye(3, dtype=np.float32)[LABELS[:4]]),
        (np.eye(3, dtype=np.float32)[LABELS], np.zeros(4, np.int64)),
        (LABELS[:, None], np.zeros(4, np.int64)),
        (LABELS, np.zeros((4, 1), np.int32)),
    ],
)
def test_labels_take_the_form_of_the_script(recorded: np.ndarray, template: np.ndarray, tmp_path: Path) -> None:
    batches = write_record(tmp_path, {"0": IMAGES}, {"y_true": recorded})
    filled = batches.fill({"0": np.zeros((4, 4, 5, 3), np.float32), "1": template}, 0, 1)
    assert filled is not None
    expected = np.eye(3)[LABELS[:4]] if template.shape[1:] == (3,) else LABELS[:4].reshape(template.shape)
    np.testing.assert_array_equal(filled["1"], expected)
    assert filled["1"].dtype == template.dtype


def test_inputs_of_a_language_model_are_paired_by_name_whatever_their_length(tmp_path: Path) -> None:
    tokens = np.arange(EXAMPLES * 7).reshape(EXAMPLES, 7)
    mask = np.ones_like(tokens)
    batches = write_record(tmp_path, {"padding_mask": mask, "token_ids": tokens}, {"y_true": LABELS})
    template = {name: np.zeros((6, 9), np.int64) for name in ("input_ids", "attention_mask")} | {
        "labels": np.zeros(6, int)
    }
    filled = batches.fill(template, 0, 1)
    assert filled is not None
    np.testing.assert_array_equal(filled["input_ids"], tokens[:6])
    np.testing.assert_array_equal(filled["attention_mask"], mask[:6])
    np.testing.assert_array_equal(filled["labels"], LABELS[:6])


def test_labels_of_all_tokens_in_one_axis_are_divided_into_examples(tmp_path: Path) -> None:
    tokens = np.arange(EXAMPLES * 7).reshape(EXAMPLES, 7)
    batches = write_record(tmp_path, {"0": tokens}, {"target": 2 * tokens.reshape(-1)})
    filled = batches.fill({"0": tokens, "1": tokens}, 0, 1)
    assert filled is not None
    np.testing.assert_array_equal(filled["1"], 2 * tokens)


def test_labels_that_the_script_flattens_stay_flat(tmp_path: Path) -> None:
    tokens = np.arange(EXAMPLES * 7).reshape(EXAMPLES, 7)
    batches = write_record(tmp_path, {"0": tokens}, {"target": 2 * tokens.reshape(-1)})
    filled = batches.fill({"0": tokens[:6], "1": tokens[:6].reshape(-1)}, 0, 1)
    assert filled is not None
    np.testing.assert_array_equal(filled["0"], tokens[:6])
    np.testing.assert_array_equal(filled["1"], 2 * tokens[:6].reshape(-1))


@pytest.mark.parametrize("flattens", [False, True])
def test_an_array_that_the_followed_script_does_not_use_is_not_replaced(flattens: bool, tmp_path: Path) -> None:
    """An autoencoder reconstructs its input, and its loader also yields classes."""
    images = IMAGES[..., :1]
    target = images.reshape(EXAMPLES, -1)
    batches = write_record(tmp_path, {"0": target if flattens else images}, {"target": target})
    filled = batches.fill({"0": images, "1": LABELS.astype(np.float32)}, 0, 1)
    assert filled is not None
    assert [*filled] == ["0"]
    np.testing.assert_array_equal(filled["0"], images)
    assert batches.notes == [
        "batches: 1 of the script's batch is not replaced: the followed script's model and loss received only "
        "input 0, label target"
    ]


def test_labels_of_the_same_shape_come_before_those_in_another_form(tmp_path: Path) -> None:
    teacher = np.full((EXAMPLES, 3), 1 / 3, np.float32)
    batches = write_record(tmp_path, {"0": IMAGES}, {"target": teacher, "target.1": LABELS})
    filled = batches.fill({"0": IMAGES, "1": LABELS}, 0, 1)
    assert filled is not None
    np.testing.assert_array_equal(filled["1"], LABELS)


@pytest.mark.parametrize(
    ("labels", "template", "message"),
    [
        (LABELS, {"0": IMAGES, "1": LABELS, "2": np.zeros(12, np.float32)}, "has nothing for 2 float32"),
        (LABELS + 0.5, {"0": IMAGES, "1": LABELS}, "do not fit 1 int64"),
        (np.full((EXAMPLES, 3), 0.3), {"0": IMAGES, "1": LABELS}, "has nothing for 1 int64"),
        (np.full((EXAMPLES, 3), 1 / 3), {"0": IMAGES, "1": LABELS}, "do not fit 1 int64"),
        (LABELS, {"0": IMAGES, "1": IMAGES + 1, "2": LABELS}, "has nothing for 1 float32"),  # a second view
        (LABELS, {"0": IMAGES, "1": np.eye(2, dtype=np.float32)[LABELS % 2]}, "do not fit 1 float32"),
        (LABELS, {"0": IMAGES, "1": np.arange(132).reshape(12, 11)}, "has nothing for 1 int64"),  # token ids
        (np.ones((EXAMPLES, 1)), {"0": IMAGES, "1": np.zeros((12, 6), np.float32)}, "has nothing for 1 float32"),
    ],
)
def test_what_does_not_fit_is_refused_by_name(
    labels: np.ndarray, template: dict[str, np.ndarray], message: str, tmp_path: Path
) -> None:
    batches = write_record(tmp_path, {"0": IMAGES}, {"y_true": labels})
    with pytest.raises(UserError, match=message) as error:
        batches.fill(template, 0, 1)
    assert batches.notes[-1] == f"{REFUSED}{error.value}"  # for the record of the script, which ends here


NUMBERS = np.linspace(0, 1, EXAMPLES, dtype=np.float32)[:, None]


def write_calls(directory: Path, labels: dict[str, np.ndarray]) -> FollowedBatches:
    """Write a record whose model is called twice in each of two micro-batches."""
    arrays = {
        name: np.split(array, 2)[number]
        for number in range(2)
        for name, array in {
            f"batch/{number}/input/0": NUMBERS,
            f"batch/{number}/call/1/input/0": NUMBERS + 1,
            **{f"batch/{number}/label/{name}": array for name, array in labels.items()},
        }.items()
    }
    return write_steps(directory, "torch", [arrays, arrays])


def test_the_inputs_of_each_call_replace_the_arrays_of_the_batch_in_order(tmp_path: Path) -> None:
    batches = write_calls(tmp_path, {})
    filled = batches.fill({"0": NUMBERS * 0.5, "1": NUMBERS + 0.9}, 0, 1)
    assert filled is not None
    np.testing.assert_array_equal(filled["0"], NUMBERS)
    np.testing.assert_array_equal(filled["1"], NUMBERS + 1)
    assert batches.notes == [
        "batches: the followed script calls its model several times: 1 gets input (call 2) 0; check this"
    ]


def test_labels_that_a_script_makes_replace_no_continuous_values(tmp_path: Path) -> None:
    """The second array is the noise of a GAN with the width of the labels."""
    ones = np.repeat([1.0, 0.0], EXAMPLES // 2)[:, None].astype(np.float32)  # of the real and of the fake images
    batches = write_record(tmp_path, {"0": IMAGES}, {"target": ones})
    filled = batches.fill({"0": IMAGES, "1": NUMBERS}, 0, 1)
    assert filled is not None
    assert [*filled] == ["0"]
    assert "1 of the script's batch is not replaced" in batches.notes[0]
    assert "label target (constant: made by the script)" in batches.notes[0]


def test_labels_of_a_loss_that_was_not_seen_are_not_taken_for_unused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="has nothing for 2 float32"):
        write_calls(tmp_path, {}).fill({"0": NUMBERS, "1": NUMBERS + 1, "2": NUMBERS[:, 0]}, 0, 1)


def test_a_script_that_updates_earlier_goes_on_with_the_next_step(tmp_path: Path) -> None:
    """A script may compute the gradients for the real and the fake images one after the other, as two micro-batches."""
    batches = write_record(tmp_path, {"0": IMAGES}, {"target": LABELS})
    half: dict[str, np.ndarray] = {"0": IMAGES[: EXAMPLES // 2], "1": LABELS[: EXAMPLES // 2]}
    for step in (1, 2):
        filled = batches.fill(half, 0, 1)
        assert filled is not None
        np.testing.assert_array_equal(filled["0"], IMAGES[: EXAMPLES // 2] + step - 1)
        batches.end_step()
    assert batches.fill(half, 0, 1) is None
    assert "the script updates after 6 examples in step 1" in batches.notes[0]


def test_a_step_with_fewer_examples_than_processes_is_refused(tmp_path: Path) -> None:
    batches = write_record(tmp_path, {"0": IMAGES}, {"y_true": LABELS})
    with pytest.raises(UserError, match="too few for 13 processes"):
        batches.fill({"0": IMAGES, "1": LABELS}, 12, 13)


def test_an_array_that_the_followed_script_did_not_use_keeps_its_values_if_the_labels_have_a_name(
    tmp_path: Path,
) -> None:
    batches = write_record(tmp_path, {"0": IMAGES}, {"y_true": LABELS})
    template = {"image": np.zeros((4, 4, 5, 3), np.float32), "length": np.full(4, 9), "label": np.zeros(4, np.int64)}
    filled = batches.fill(template, 0, 1)
    assert filled is not None
    assert {*filled} == {"image", "label"}
    np.testing.assert_array_equal(filled["label"], LABELS[:4])
    assert "length" in batches.notes[0]


def test_arrays_of_one_shape_are_told_apart_by_their_values(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    ids, segments = rng.integers(5, 100, (EXAMPLES, 8)), np.tile(np.arange(8) // 4, (EXAMPLES, 1))
    batches = write_record(tmp_path, {"0.0": ids, "0.1": segments}, {"y_true": LABELS})
    template = {"0": segments[:4], "1": rng.integers(5, 100, (4, 8)), "2": np.zeros(4, np.int64)}
    filled = batches.fill(template, 0, 1)
    assert filled is not None
    np.testing.assert_array_equal(filled["0"], segments[:4])
    np.testing.assert_array_equal(filled["1"], ids[:4])
    assert batches.notes == [
        "batches: 0 gets input 0.1, 1 gets input 0.0, because their values contradict the order; check this"
    ]


@pytest.mark.parametrize("dtype", [np.int64, np.float32])
@pytest.mark.parametrize("count", [0, 4, 8, 16])
def test_arrays_of_one_shape_and_distribution_keep_their_order(dtype: type, count: int) -> None:
    rng = np.random.default_rng(0)
    for _ in range(100):
        a, b, x, y = rng.normal(0, 9, (4, count)).astype(dtype)
        assert match_by_values({"0": x, "1": y}, {"a": a, "b": b}, lambda *_: True) == {"0": "a", "1": "b"}


def test_equal_names_come_before_synonyms(tmp_path: Path) -> None:
    rows = np.arange(EXAMPLES * 3.0).reshape(EXAMPLES, 3)
    batches = write_record(tmp_path, {"y": rows}, {"target": -rows})
    filled = batches.fill({"target": rows, "y": rows}, 0, 1)
    assert filled is not None
    np.testing.assert_array_equal(filled["target"], -rows)
    np.testing.assert_array_equal(filled["y"], rows)


def test_a_batch_that_may_have_the_time_or_the_examples_first_is_refused(tmp_path: Path) -> None:
    tokens = np.arange(EXAMPLES * 7).reshape(EXAMPLES, 7)
    batches = write_record(tmp_path, {"0": tokens}, {"target": tokens})
    batches.may_have_time_first = True
    with pytest.raises(UserError, match=r"0 int64\[7, 10\] of the script's batch may be time-first or batch-first"):
        batches.fill({"0": np.zeros((7, 10), int), "1": np.zeros((7, 10), int)}, 0, 1)
    filled = batches.fill({"0": np.zeros((7, 6), int), "1": np.zeros((7, 6), int)}, 0, 1)
    assert filled is not None
    np.testing.assert_array_equal(filled["0"], tokens[:6].T)


@pytest.mark.parametrize("has_no_labels", [True, False])
def test_an_array_that_no_loss_needs_keeps_its_values(
    has_no_labels: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A loader also yields classes, and the operations of the followed script show that its loss needs none."""
    batches = write_record(tmp_path, {"0": IMAGES}, {})
    monkeypatch.setattr(batches._matcher, "_has_no_labels", lambda: has_no_labels)
    batch: dict[str, np.ndarray] = {"0": IMAGES.transpose(0, 3, 1, 2), "1": LABELS}
    if not has_no_labels:
        with pytest.raises(UserError, match=r"has nothing for 1 int64\[12\] of the script's batch"):
            batches.fill(batch, 0, 1)
        return
    filled = batches.fill(batch, 0, 1)
    assert filled is not None and [*filled] == ["0"]
    assert "1 of the script's batch is not replaced" in batches.notes[0]


def test_a_part_of_the_labels_is_refused(tmp_path: Path) -> None:
    """The followed script cuts boxes from labels that also have classes."""
    boxes = np.random.default_rng(0).random((EXAMPLES, 6, 4)).astype(np.float32)
    batches = write_record(tmp_path, {"0": IMAGES}, {"target": boxes})
    with pytest.raises(
        UserError, match=r"its values float32\[12, 6, 4\] do not fit 1 float32\[12, 6, 5\] of the script's"
    ):
        batches.fill({"0": IMAGES, "1": np.zeros((EXAMPLES, 6, 5), np.float32)}, 0, 1)


def test_arrays_that_only_the_script_uses_are_handed_over(tmp_path: Path) -> None:
    """The weights of the examples have the shape of the labels, and a depth for each pixel the shape of no other."""
    weights, depths = np.linspace(0.5, 2, EXAMPLES, dtype=np.float32), IMAGES[..., 0] / 7
    labels = (np.arange(EXAMPLES) % 2).astype(np.float32)
    batches = write_record(tmp_path, {"0": IMAGES}, {"target": labels[:, None]}, {"2": weights, "depth": depths})
    template = {"0": IMAGES, "1": 1 - labels, "2": weights * 0.5, "depth": depths + 1}
    filled = batches.fill(template, 0, 1)
    assert filled is not None
    for name, array in (("0", IMAGES), ("1", labels), ("2", weights), ("depth", depths)):
        np.testing.assert_array_equal(filled[name], array)
    assert batches.notes == [
        "batches: depth gets other depth, 2 gets other 2: arrays of the followed script's batch that neither its model "
        "nor its loss function received; check this"
    ]


def test_a_mask_of_the_model_does_not_replace_ids(tmp_path: Path) -> None:
    """The model receives a mask of the labels' size, and the script computes one-hot labels from the ids."""
    ids = 2 + np.arange(EXAMPLES * 6).reshape(EXAMPLES, 6) % 5
    inputs = {"0": ids, "1": ids[:, None] > 3}
    batches = write_record(tmp_path, inputs, {"target": np.eye(7, dtype=np.float32)[ids]}, {"1": ids + 1})
    filled = batches.fill({"0": ids, "1": ids + 2}, 0, 1)
    assert filled is not None
    np.testing.assert_array_equal(filled["1"], ids + 1)


def test_arrays_that_the_script_uses_keep_their_place_if_the_weights_have_their_shape(tmp_path: Path) -> None:
    labels = np.linspace(-1, 1, EXAMPLES, dtype=np.float32)
    batches = write_record(tmp_path, {"0": IMAGES}, {"target": labels}, {"1": labels**2})
    filled = batches.fill({"0": IMAGES, "1": labels, "2": labels}, 0, 1)
    assert filled is not None
    np.testing.assert_array_equal(filled["1"], labels)
    np.testing.assert_array_equal(filled["2"], labels**2)


def test_views_that_a_script_joins_for_its_model_are_handed_over_one_by_one(tmp_path: Path) -> None:
    """The rows of the model's input are the first views and then the second ones of the examples of a micro-batch."""
    views = IMAGES, IMAGES[::-1]
    arrays = {
        f"batch/{number}/{name}": array
        for number in range(2)
        for parts in [[np.split(view, 2)[number] for view in views]]
        for name, array in (
            ("input/0", np.concatenate(parts)),
            ("other/0.0", parts[0]),
            ("other/0.1", parts[1]),
            ("label/target", np.split(LABELS, 2)[number]),
            ("label/operand_0", np.eye(12)),  # a mask of the pairs
        )
    }
    batches = write_steps(tmp_path, "torch", [arrays])
    template: dict[str, np.ndarray] = {name: np.zeros((6, 3, 4, 5), np.float32) for name in ("0.0", "0.1")}
    template["1"] = np.zeros(6, np.int64)
    for rows in (slice(6), slice(6, 12)):
        filled = batches.fill(template, 0, 1)
        assert filled is not None
        for name, view in zip(("0.0", "0.1"), views, strict=True):
            np.testing.assert_array_equal(filled[name], view[rows].transpose(0, 3, 1, 2))
        np.testing.assert_array_equal(filled["1"], LABELS[rows])
    assert batches.fill(template, 0, 1) is None


def test_positions_of_arguments_are_no_names_of_arrays(tmp_path: Path) -> None:
    """The argument 0 of the model is the noise, and the argument 0 of the script's step the images."""
    noise = np.linspace(0, 1, EXAMPLES * 2, dtype=np.float32).reshape(EXAMPLES, 2)
    batches = write_record(tmp_path, {"0": noise}, {"0": IMAGES})
    filled = batches.fill({"0": IMAGES + 1, "1": noise + 1}, 0, 1)
    assert filled is not None
    np.testing.assert_array_equal(filled["0"], IMAGES)
    np.testing.assert_array_equal(filled["1"], noise)


@pytest.mark.parametrize(("lengths", "is_in_order"), [((5, 9), True), ((9, 5), True), ((7, 5), False), ((5, 7), True)])
def test_sequences_that_are_padded_in_each_batch_keep_their_order(
    lengths: tuple[int, int], is_in_order: bool, tmp_path: Path
) -> None:
    """The recorded source has 5 tokens, and the target 7. A target of 5 tokens in another batch is no source."""
    source, target = (np.arange(EXAMPLES * size).reshape(EXAMPLES, size) for size in (5, 7))
    batches = write_record(tmp_path, {"0": source, "1": target}, {"target": LABELS})
    filled = batches.fill({f"{i}": np.ones((EXAMPLES, size), int) for i, size in enumerate(lengths)}, 0, 1)
    assert filled is not None
    np.testing.assert_array_equal(filled["0"], source if is_in_order else target)
    np.testing.assert_array_equal(filled["1"], target if is_in_order else source)


def test_columns_of_a_table_fill_the_matrix_of_the_script(tmp_path: Path) -> None:
    columns = {name: np.arange(EXAMPLES, dtype=np.float32)[:, None] * factor for factor, name in enumerate("abc", 1)}
    batches = write_record(tmp_path, columns, {"y_true": LABELS})
    batch = batches.fill({"0": np.zeros((EXAMPLES, 3), np.float32), "1": np.zeros(EXAMPLES, np.int64)}, 0, 1)
    assert batch is not None
    assert np.array_equal(batch["0"], np.concatenate([*columns.values()], axis=1))
    assert any("columns of a table" in note for note in batches.notes)


def test_indices_of_tables_keep_the_examples_second(tmp_path: Path) -> None:
    indices, numbers = np.arange(EXAMPLES * 2).reshape(EXAMPLES, 2) % 7, IMAGES.reshape(EXAMPLES, -1)
    batches = write_record(tmp_path, {"dense": numbers, "sparse": indices}, {"y_true": LABELS})
    offsets = np.tile(np.arange(EXAMPLES), (2, 1))
    template: dict[str, np.ndarray] = {
        "0": np.zeros_like(numbers),
        "1": offsets,
        "2": np.zeros((2, EXAMPLES), np.int64),
        "3": LABELS,
    }
    batch = batches.fill(template, 0, 1)
    assert batch is not None
    assert np.array_equal(batch["2"], indices.T)
    assert "1" not in batch
    assert any("numbers the examples" in note for note in batches.notes)


def test_a_decoder_gets_its_target_and_leaves_the_source_to_the_encoder(tmp_path: Path) -> None:
    """The target is an input of the recorded decoder and a label, and the script's batch has a source before it."""
    source, target = 1 + np.arange(EXAMPLES * 6).reshape(2, EXAMPLES, 3) % 17
    states = np.linspace(0, 1, EXAMPLES, dtype=np.float32)[:, None]
    batches = write_record(tmp_path, {"0": states, "1": target}, {"y_true": target}, {"0": source})
    filled = batches.fill({"0": target, "1": source}, 0, 1)
    assert filled is not None
    np.testing.assert_array_equal(filled["0"], source)
    np.testing.assert_array_equal(filled["1"], target)


@pytest.mark.parametrize("has_channels_last", [True, False])
def test_an_array_that_a_script_splits_into_its_calls_gets_the_inputs_of_all(
    has_channels_last: bool, tmp_path: Path
) -> None:
    arrays = {
        f"batch/{number}/{call}input/0": np.split(IMAGES + index, 2)[number]
        for number in range(2)
        for index, call in enumerate(("", "call/1/"))
    }
    batches = write_steps(tmp_path, "tensorflow", [arrays])
    expected = np.stack([IMAGES, IMAGES + 1])
    expected = expected if has_channels_last else np.moveaxis(expected, -1, 2)
    filled = batches.fill({"0": np.zeros_like(expected)}, 0, 1)
    assert filled is not None
    np.testing.assert_array_equal(filled["0"], expected)


@pytest.mark.parametrize("is_one_hot", [True, False])
def test_one_hot_labels_of_tokens_are_their_classes(is_one_hot: bool, tmp_path: Path) -> None:
    classes = np.arange(EXAMPLES * 4).reshape(EXAMPLES, 4) % 5
    codes = np.eye(5, dtype=bool)[classes]
    recorded, template = (codes, np.zeros_like(classes)) if is_one_hot else (classes, codes)
    batches = write_record(tmp_path, {"0": IMAGES}, {"y_true": recorded})
    filled = batches.fill({"0": IMAGES, "1": template}, 0, 1)
    assert filled is not None
    np.testing.assert_array_equal(filled["1"], classes if is_one_hot else codes)


def test_a_target_that_follows_from_a_column_is_no_weight(tmp_path: Path) -> None:
    ages, target = np.arange(EXAMPLES, dtype=np.float32) // 2 * 7, np.arange(EXAMPLES, dtype=np.float32) // 6
    weights = np.linspace(1, 2, EXAMPLES, dtype=np.float32)
    batches = write_record(tmp_path, {"age": ages}, {"target": target[::-1].copy(), "weight": weights[::-1].copy()})
    filled = batches.fill({"age": ages, "1": target, "2": weights}, 0, 1)
    assert filled is not None
    np.testing.assert_array_equal(filled["1"], target[::-1])
    np.testing.assert_array_equal(filled["2"], weights[::-1])


def test_shorter_micro_batches_are_handed_over_without_padding(tmp_path: Path) -> None:
    """Zeros behind the labels -100 of the shorter one would count as the class 0."""
    parts = [np.arange(12).reshape(2, 6), np.arange(8).reshape(2, 4)]
    arrays = {f"batch/{number}/input/0": part for number, part in enumerate(parts)}
    arrays |= {f"batch/{number}/label/target": np.where(part % 3, part, -100) for number, part in enumerate(parts)}
    batches = write_steps(tmp_path, "torch", [arrays])
    for part in parts:
        filled = batches.fill({"ids": parts[0], "labels": parts[0]}, 0, 1)
        assert filled is not None
        assert np.array_equal(filled["ids"], part)
        assert np.array_equal(filled["labels"], np.where(part % 3, part, -100))


@pytest.mark.parametrize("keys", [{}, {"input/0": "0"}])
def test_labels_that_the_whole_recorded_batch_lacks_are_not_replaced(keys: dict[str, str], tmp_path: Path) -> None:
    """The record has the whole batch of its script if it knows the place of an array in it."""
    batches = write_steps(tmp_path, "tensorflow", [{"batch/0/input/0": IMAGES}], keys, micro_batches=1)
    batch: dict[str, np.ndarray] = {"0": np.zeros_like(IMAGES), "1": LABELS}
    if keys:
        assert [*(batches.fill(batch, 0, 1) or {})] == ["0"]
        assert "1 of the script's batch is not replaced" in batches.notes[0]
    else:
        with pytest.raises(UserError, match="has nothing for 1 int64"):
            batches.fill(batch, 0, 1)


def test_steps_and_environments_that_the_followed_script_merges_are_two_axes(tmp_path: Path) -> None:
    states, actions = np.random.default_rng(0).normal(size=(4, 3, 2)).astype(np.float32), LABELS.reshape(4, 3)
    arrays: dict[str, np.ndarray] = {"batch/0/input/0": states.reshape(12, 2), "batch/0/other/1": actions}
    batches = write_steps(tmp_path, "tensorflow", [arrays], {"input/0": "0"}, micro_batches=1)
    filled = batches.fill({"0": np.zeros_like(states), "1": np.zeros_like(actions)}, 0, 1)
    assert filled is not None
    assert np.array_equal(filled["0"], states)
    assert np.array_equal(filled["1"], actions)


def test_a_mask_of_numbers_gets_a_mask_of_true_and_false(tmp_path: Path) -> None:
    """The followed model also receives segments of zeros and ones, which the script's batch lacks."""
    ids = 2 + np.arange(EXAMPLES * 6).reshape(EXAMPLES, 6)
    segments, mask = ids % 4 // 2, np.arange(6) < 3 + np.arange(EXAMPLES)[:, None] % 4
    batches = write_record(tmp_path, {"0": ids, "1": segments, "2": mask}, {"y_true": IMAGES})
    filled = batches.fill({"0": ids, "1": np.ones((EXAMPLES, 6), np.float32), "2": IMAGES}, 0, 1)
    assert filled is not None
    np.testing.assert_array_equal(filled["1"], mask)
    assert filled["1"].dtype == np.float32


def test_a_column_of_a_table_is_no_sequence_of_the_model(tmp_path: Path) -> None:
    """The followed script did not use the numbers of the users."""
    ids, users = np.arange(EXAMPLES * 6).reshape(EXAMPLES, 6), 5 * np.arange(EXAMPLES)[:, None] % 7
    batches = write_record(tmp_path, {"0": ids}, {"y_true": IMAGES})
    filled = batches.fill({"0": ids, "1": users, "2": IMAGES}, 0, 1)
    assert filled is not None
    assert [*filled] == ["0", "2"]
    assert any("batches: 1 of the script's batch is not replaced" in note for note in batches.notes)


def test_images_of_another_size_replace_those_of_the_script(tmp_path: Path) -> None:
    """A script may resize them otherwise; their numbers of channels agree."""
    batches = write_record(tmp_path, {"0": IMAGES}, {"y_true": IMAGES[..., :1]})
    template = {"0": np.zeros((4, 3, 8, 9), np.float32), "1": np.zeros((4, 1, 8, 9), np.float32)}
    filled = batches.fill(template, 0, 1)
    assert filled is not None
    np.testing.assert_array_equal(filled["0"], IMAGES[:4].transpose(0, 3, 1, 2))
    np.testing.assert_array_equal(filled["1"], IMAGES[:4, ..., :1].transpose(0, 3, 1, 2))
