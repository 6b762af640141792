"""Tests of columns of a table that are arrays of their own in one script and one matrix in the other."""

import numpy as np

from common.diagnose.recorded.columns import adapt_columns, join_columns, split_columns

RNG = np.random.default_rng(0)
NUMBERS = {name: RNG.normal(size=(6, 1)).astype(np.float32) for name in ("age", "height", "weight")}
CODES = {name: RNG.integers(0, 5, 6) for name in ("city", "job")}
MATRICES = {
    "numbers": np.concatenate([*NUMBERS.values()], axis=1),
    "codes": np.stack([*CODES.values()], axis=1),
}
LABEL = RNG.normal(size=6).astype(np.float32)


def test_columns_are_joined_by_kind_and_in_their_order() -> None:
    joined = join_columns({**NUMBERS, **CODES}, MATRICES)
    assert [*joined] == ["age to weight", "city to job"]
    for array, matrix in zip(joined.values(), MATRICES.values(), strict=True):
        assert np.array_equal(array, matrix)


def test_columns_are_joined_without_those_that_the_other_script_has() -> None:
    joined = join_columns({**NUMBERS, "y": LABEL}, {"x": MATRICES["numbers"], "y": LABEL})
    assert [*joined] == ["age to weight", "y"]


def test_matrices_are_split_before_the_labels() -> None:
    split = split_columns({"x": MATRICES["numbers"], "y": LABEL}, {**NUMBERS, "label": LABEL})
    assert [*split] == ["x[:, 0]", "x[:, 1]", "x[:, 2]", "y"]
    assert np.array_equal(split["x[:, 1]"], NUMBERS["height"][:, 0])


def test_other_numbers_of_columns_stay() -> None:
    arrays: dict[str, np.ndarray] = {**NUMBERS, **CODES}
    others: dict[str, np.ndarray] = {"numbers": MATRICES["numbers"][:, :2]}
    assert join_columns(arrays, others) == arrays
    assert split_columns(others, arrays) == others


def test_columns_may_have_the_name_of_the_matrix() -> None:
    """PyTorch names the first argument "0", be it a table or its first column."""
    joined = join_columns({"0": CODES["city"], "1": CODES["job"]}, {"0": MATRICES["codes"]})
    assert [*joined] == ["0 to 1"]
    assert np.array_equal(joined["0 to 1"], MATRICES["codes"])


def test_offsets_of_bags_are_no_table() -> None:
    offsets = np.repeat(np.arange(6)[:, None], 2, axis=1)
    split = split_columns({"offsets": offsets, "x": MATRICES["codes"]}, CODES)
    assert [*split] == ["offsets", "x[:, 0]", "x[:, 1]"]


BLOCKS: dict[str, np.ndarray] = {**CODES, "numbers": MATRICES["numbers"]}
TABLE = np.concatenate([MATRICES["codes"].astype(np.float32), MATRICES["numbers"]], axis=1)


def test_a_table_joins_columns_of_all_kinds() -> None:
    joined = join_columns({**BLOCKS, "y": LABEL[:, None]}, {"x": TABLE, "label": LABEL})
    assert [*joined] == ["city to numbers", "y"]
    assert np.array_equal(joined["city to numbers"], TABLE)


def test_a_table_is_split_into_columns_of_their_kinds() -> None:
    split = split_columns({"x": TABLE, "y": LABEL}, {**BLOCKS, "label": LABEL})
    assert [*split] == ["x (city)", "x (job)", "x (numbers)", "y"]
    for array, expected in zip(split.values(), BLOCKS.values(), strict=False):
        assert np.array_equal(array, expected)
        assert array.dtype == expected.dtype


def test_a_table_with_another_number_of_columns_stays() -> None:
    arrays = {"x": TABLE[:, 1:], "y": LABEL}
    assert split_columns(arrays, {**BLOCKS, "label": LABEL}) == arrays


def test_labels_that_a_loss_cuts_from_one_array_are_joined_without_it() -> None:
    """The array that the followed script cuts is recorded, too."""
    target, weight, whole = NUMBERS["age"], NUMBERS["weight"], RNG.normal(size=(6, 8)).astype(np.float32)
    arrays = {"label target": target, "label sample_weight": weight, "other 1": whole}
    joined = join_columns(arrays, {"y": np.concatenate([target, weight], axis=1)})
    assert [*joined] == ["label target to label sample_weight", "other 1"]
    assert np.array_equal(joined["label target to label sample_weight"][:, 1:], weight)


def test_columns_are_joined_and_split_beside_a_label_that_is_of_integers_in_one_script_only() -> None:
    classes = np.arange(6) % 2
    columns, table = {**NUMBERS, "label": classes.astype(np.float32)}, {"x": MATRICES["numbers"], "y": classes}
    joined = join_columns(columns, table)
    assert [*joined] == ["age to weight", "label"]
    assert np.array_equal(joined["age to weight"], MATRICES["numbers"])
    assert [*split_columns(table, columns)] == ["x[:, 0]", "x[:, 1]", "x[:, 2]", "y"]


def test_a_script_gets_the_columns_as_its_batch_has_them_and_a_note() -> None:
    notes: list[str] = []
    arrays, table = {**NUMBERS, "y": LABEL}, {"x": MATRICES["numbers"], "label": LABEL}
    assert [*adapt_columns(arrays, table, notes.append)] == ["age to weight", "y"]
    assert [*adapt_columns(table, arrays, notes.append)] == ["x[:, 0]", "x[:, 1]", "x[:, 2]", "label"]
    assert len(notes) == 2 and all(note.startswith("batches: the columns of a table are one array") for note in notes)
    assert adapt_columns(arrays, arrays, notes.append) == arrays
    assert len(notes) == 2
