"""Labels as pandas, Excel and others write them."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from common.errors import UserError
from tests.unit.common.data.text.text_samples import CorpusLists, files, message, read_corpus, write

SUFFIXES = [".jsonl", ".csv", ".tsv", ".parquet"]
TEXT_SUFFIXES = [".csv", ".tsv"]


def read(
    directory: Path, suffix: str, labels: list[Any], validation: list[Any] | None = None, **keys: Any
) -> CorpusLists:
    """Write files with these labels and read them."""
    splits = {"train": labels, "validation": labels if validation is None else validation}
    paths = [
        write(directory / f"{name}{suffix}", [("p", "h", label) for label in split]) for name, split in splits.items()
    ]
    return read_corpus(files(*paths, **keys))


@pytest.mark.slow
@pytest.mark.parametrize("suffix", SUFFIXES)
@settings(max_examples=20)
@given(labels=st.lists(st.integers(0, 9), min_size=1, max_size=9))
def test_whole_floats_are_integers(tmp_path_factory: pytest.TempPathFactory, suffix: str, labels: list[int]) -> None:
    directory = tmp_path_factory.getbasetemp()
    as_integers = read(directory, suffix, labels)
    assert read(directory, suffix, [float(label) for label in labels], labels) == as_integers
    assert read(directory, suffix, labels, [float(label) for label in labels]) == as_integers
    assert as_integers.classes == [str(i) for i in range(max(labels) + 1)]


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize("labels", [[True, False, True], [True, True], [False]])
def test_booleans_are_two_classes(tmp_path: Path, suffix: str, labels: list[bool]) -> None:
    corpus = read(tmp_path, suffix, labels)
    assert (corpus.train.labels, corpus.classes) == ([int(label) for label in labels], ["False", "True"])


@pytest.mark.parametrize("suffix", TEXT_SUFFIXES)
@pytest.mark.parametrize("words", [["true", "false"], ["TRUE", "FALSE"]])
def test_booleans_keep_the_words_of_the_file(tmp_path: Path, suffix: str, words: list[str]) -> None:
    corpus = read(tmp_path, suffix, words)
    assert (corpus.train.labels, corpus.classes) == ([1, 0], words[::-1])


def test_validation_may_write_booleans_in_another_way(tmp_path: Path) -> None:
    corpus = read(tmp_path, ".csv", ["true", "false"], ["TRUE", "False", "True"])
    assert (corpus.validation.labels, corpus.classes) == ([1, 0, 1], ["false", "true"])
    corpus = read(tmp_path, ".csv", ["True", "False"], ["0", "1.0"])
    assert corpus.validation.labels == [0, 1]
    corpus = read(tmp_path, ".csv", ["True", "True", "true"], ["FALSE"])
    assert (corpus.train.labels, corpus.validation.labels, corpus.classes) == ([1, 1, 1], [0], ["False", "True"])


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize(
    ("classes", "expected"), [(["no", "yes"], [1, 0]), (["True", "False"], [0, 1]), (["true", "false"], [0, 1])]
)
def test_booleans_are_matched_by_name_before_their_index(
    tmp_path: Path, suffix: str, classes: list[str], expected: list[int]
) -> None:
    assert read(tmp_path, suffix, [True, False], classes=classes).train.labels == expected


def test_words_are_no_booleans_beside_others(tmp_path: Path) -> None:
    corpus = read(tmp_path, ".csv", ["True", "False", "maybe"], ["False", "True"])
    assert (corpus.train.labels, corpus.validation.labels) == ([1, 0, 2], [0, 1])
    assert corpus.classes == ["False", "True", "maybe"]


def test_strings_that_look_like_something_else_are_names_in_json(tmp_path: Path) -> None:
    assert read(tmp_path, ".jsonl", ["1.0", "0.5", "nan", "true"]).classes == ["0.5", "1.0", "nan", "true"]


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize("missing", [float("nan"), -1.0, -1])
def test_rows_without_a_gold_label_are_dropped_and_counted(tmp_path: Path, suffix: str, missing: float) -> None:
    labels = [1.0, float(missing), 0.0, float("nan")]
    corpus = read(tmp_path, suffix, labels)
    assert (corpus.train.labels, corpus.train.dropped, len(corpus.train.premises)) == ([1, 0], 2, 2)
    assert corpus.classes == ["0", "1"]


@pytest.mark.parametrize("suffix", TEXT_SUFFIXES)
def test_missing_labels_as_pandas_writes_them(tmp_path: Path, suffix: str) -> None:
    corpus = read(tmp_path, suffix, ["1.0", "", "0.0", "NaN", "nan", "-1.0"])
    assert (corpus.train.labels, corpus.train.dropped) == ([1, 0], 4)


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_a_label_that_is_not_whole_is_refused(tmp_path: Path, suffix: str) -> None:
    with pytest.raises(UserError) as raised:
        read(tmp_path, suffix, [1.0, 1.5, 2.0])
    row = {".jsonl": ":2", ".parquet": ": row 2"}.get(suffix, ":3")
    assert message(raised).startswith(f"{tmp_path / f'train{suffix}'}{row}: ")
    assert "1.5" in message(raised)
    assert "set data.label to a column of integers or strings" in message(raised)


@pytest.mark.parametrize("suffix", TEXT_SUFFIXES)
def test_numbers_that_are_not_whole_may_be_named(tmp_path: Path, suffix: str) -> None:
    corpus = read(tmp_path, suffix, [1.5, 1.0, 0.5], classes=["0.5", "1.0", "1.5"])
    assert corpus.train.labels == [2, 1, 0]


@pytest.mark.parametrize("suffix", TEXT_SUFFIXES)
def test_whole_floats_are_matched_by_name_like_integers(tmp_path: Path, suffix: str) -> None:
    corpus = read(tmp_path, suffix, [2.0, 1.0], [1, 2], classes=["1", "2"])
    assert (corpus.train.labels, corpus.validation.labels) == ([1, 0], [0, 1])


@pytest.mark.parametrize("suffix", TEXT_SUFFIXES)
def test_long_numbers_stay_names(tmp_path: Path, suffix: str) -> None:
    long = "1" * 25
    assert read(tmp_path, suffix, [long, "2"]).classes == [long, "2"]


def test_json_may_have_nan(tmp_path: Path) -> None:
    path = tmp_path / "f.jsonl"
    rows = [{"premise": "p", "hypothesis": "h", "label": label} for label in (1, float("nan"), 0)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert "NaN" in path.read_text()
    assert read_corpus(files(path)).train.labels == [1, 0]


def test_classes_that_differ_only_in_spaces_or_case_are_warned_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    read(tmp_path, ".csv", ["yes", "no", "Yes", "no ", "maybe"], ["yes"])
    assert caplog.messages == [
        "data.label: the classes ['Yes', 'no', 'no ', 'yes'] differ only in spaces or case; write each in one way"
    ]


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize("word", ["NA", "n/a", "None", "null"])
def test_a_word_that_may_mean_no_label(tmp_path: Path, suffix: str, word: str) -> None:
    """It is a class only if the config says so: "none" is one of stance detection."""
    for labels in (["yes", word, "no"], ["0", word, "1"]):
        with pytest.raises(UserError, match=rf"train{suffix}.*[23]: label '{word}' may be a class or mark"):
            read(tmp_path, suffix, labels)
    corpus = read(tmp_path, suffix, ["yes", word, "no"], classes=["no", word, "yes"])
    assert (corpus.train.labels, corpus.classes) == ([2, 1, 0], ["no", word, "yes"])
