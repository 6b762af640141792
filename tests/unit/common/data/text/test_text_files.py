"""Files of every format as a source of text."""

import csv
import gzip
import json
import logging
import os
from pathlib import Path
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.data.identity import FileIdentity, identify
from common.data.text import text_corpus, text_rows
from common.data.text.text_files import find_files
from common.errors import UserError
from tests.unit.common.data.text.text_samples import files, message, read_corpus, read_text, write

PAIRS = [("A cat sleeps.", "An animal sleeps.", 0), ('He said "no", twice', "", 2), ("", "ünï → 漢", 1)]
SUFFIXES = [".jsonl", ".json", ".csv", ".tsv", ".jsonl.gz", ".json.gz", ".csv.gz", ".tsv.gz", ".parquet"]


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_every_format_gives_the_same_corpus(tmp_path: Path, suffix: str) -> None:
    train = write(tmp_path / f"train{suffix}", [*PAIRS, ("no", "label", -1)])
    validation = write(tmp_path / f"validation{suffix}", PAIRS[:1])
    corpus = read_corpus(files(train, validation))
    assert corpus.train.premises == [premise for premise, _, _ in PAIRS]
    assert corpus.train.hypotheses == [hypothesis for _, hypothesis, _ in PAIRS]
    assert corpus.train.labels == [0, 2, 1]
    assert (corpus.train.dropped, corpus.validation.dropped) == (1, 0)
    assert corpus.validation.labels == [0]
    assert corpus.classes == ["0", "1", "2"]


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_string_labels_and_column_names(tmp_path: Path, suffix: str) -> None:
    rows = [("1", "x", "a", "yes"), ("2", "y", "b", "no"), ("3", "z", "c", "-"), ("4", "w", "d", "")]
    path = write(tmp_path / f"f{suffix}", rows, ("id", "sentence1", "sentence2", "gold"))
    corpus = read_corpus(files(path, premise="sentence1", hypothesis="sentence2", label="gold"))
    assert (corpus.train.premises, corpus.train.hypotheses) == (["x", "y"], ["a", "b"])
    assert (corpus.train.labels, corpus.classes, corpus.train.dropped) == ([1, 0], ["no", "yes"], 2)


@pytest.mark.parametrize("suffix", [*(suffix.upper() for suffix in SUFFIXES), ".Parquet", ".Csv.GZ"])
def test_suffixes_may_be_in_upper_case(tmp_path: Path, suffix: str) -> None:
    path = write(tmp_path / f"f{suffix.lower()}", PAIRS)
    corpus = read_corpus(files(Path(path).rename(tmp_path / f"F{suffix}")))
    assert corpus.train.premises == [premise for premise, _, _ in PAIRS]


@pytest.mark.parametrize("indent", [None, 1])
@pytest.mark.parametrize("suffix", [".json", ".jsonl", ".json.gz"])
def test_json_may_be_one_array(tmp_path: Path, suffix: str, indent: int | None) -> None:
    rows = [dict(zip(("premise", "hypothesis", "label"), pair, strict=True)) for pair in PAIRS]
    text = ("\ufeff\n " + json.dumps(rows, indent=indent)).encode()
    corpus = read_text(tmp_path / f"f{suffix}", gzip.compress(text, mtime=0) if suffix.endswith(".gz") else text)
    assert corpus == read_corpus(files(write(tmp_path / "lines.jsonl", PAIRS)))


def test_single_sentences_and_null_labels(tmp_path: Path) -> None:
    path = write(tmp_path / "f.parquet", [("x", 1), ("y", None), ("z", 0)], ("premise", "label"))
    corpus = read_corpus(files(path, hypothesis=None))
    assert corpus.train.hypotheses is None
    assert (corpus.train.premises, corpus.train.labels, corpus.train.dropped) == (["x", "z"], [1, 0], 1)


text = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\r\x00"), max_size=20)


@pytest.mark.slow
@given(rows=st.lists(st.tuples(text, text, st.integers(0, 3)), min_size=1, max_size=8))
@pytest.mark.parametrize("suffix", [".jsonl", ".csv", ".parquet"])
def test_round_trip(tmp_path_factory: pytest.TempPathFactory, suffix: str, rows: list[tuple[str, str, int]]) -> None:
    path = tmp_path_factory.getbasetemp() / f"round_trip{suffix}"
    split = read_corpus(files(write(path, rows))).train
    assert split.hypotheses is not None
    assert list(zip(split.premises, split.hypotheses, split.labels, strict=True)) == rows


def test_quotes_in_csv_and_tsv(tmp_path: Path) -> None:
    corpus = read_text(tmp_path / "f.csv", '\ufeffpremise,hypothesis,label\r\n"two\nlines, ""q""",h,0\r\n\r\nb,h,1\r\n')
    assert corpus.train.premises == ['two\nlines, "q"', "b"]
    corpus = read_text(tmp_path / "f.tsv", 'premise\thypothesis\tlabel\n"stray\tb"c\t0\n"d"\t\t1\n')
    assert (corpus.train.premises, corpus.train.hypotheses) == (['"stray', '"d"'], ['b"c', ""])


@pytest.mark.parametrize("suffix", [".csv", ".tsv"])
def test_a_field_may_have_any_length(tmp_path: Path, suffix: str) -> None:
    book = "word " * 100_000
    corpus = read_corpus(files(write(tmp_path / f"f{suffix}", [(book, "h", 0), ("p", book, 1)])))
    assert (corpus.train.premises, corpus.train.hypotheses) == ([book, "p"], ["h", book])


@pytest.mark.parametrize(("delimiter", "name"), [(";", "semicolons"), ("\t", "tabs"), ("|", "vertical bars")])
def test_another_delimiter_is_recognised_by_the_header(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, delimiter: str, name: str
) -> None:
    path = tmp_path / "f.csv"
    with path.open("w", encoding="utf-8-sig", newline="") as file:
        csv.writer(file, delimiter=delimiter).writerows([("premise", "hypothesis", "label"), *PAIRS, ("a,b", "c;d", 0)])
    with caplog.at_level(logging.INFO, "lockstep"):
        corpus = read_corpus(files(path))
    assert corpus.train.premises == [*(premise for premise, _, _ in PAIRS), "a,b"]
    assert corpus.train.hypotheses == [*(hypothesis for _, hypothesis, _ in PAIRS), "c;d"]
    assert f"{path}: read as CSV separated by {name}" in caplog.messages


def test_a_tsv_that_is_csv(tmp_path: Path) -> None:
    quoted = '"premise"\t"hypothesis"\t"label"\n"p\t""q"""\t"h"\t"0"\n'
    assert read_text(tmp_path / "f.tsv", quoted).train.premises == ['p\t"q"']
    assert read_text(tmp_path / "f.tsv", 'premise,hypothesis,label\n"p, q",h,0\n').train.premises == ["p, q"]


@pytest.mark.slow
@given(rows=st.lists(st.tuples(text, text, st.integers(0, 3)), min_size=1, max_size=8))
def test_commas_are_no_other_delimiter(
    tmp_path_factory: pytest.TempPathFactory, rows: list[tuple[str, str, int]]
) -> None:
    """A file that can be read with commas is read with commas, even if its texts contain other delimiters."""
    path = tmp_path_factory.getbasetemp() / "commas.csv"
    names = ("a,x", "b;y;z;w|c;d|e\tg;h", "label")
    split = read_corpus(files(write(path, rows, names), premise=names[0], hypothesis=names[1])).train
    assert split.hypotheses is not None
    assert list(zip(split.premises, split.hypotheses, split.labels, strict=True)) == rows


def test_a_missing_hypothesis_may_be_meant(tmp_path: Path) -> None:
    with pytest.raises(UserError) as raised:
        read_text(tmp_path / "f.csv", "premise,label\np,0\n")
    assert message(raised).endswith(
        "set data.hypothesis to one of ['premise', 'label'], or to null for single sentences"
    )


def test_the_same_file_twice_is_warned_of(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    train = write(tmp_path / "train.csv", PAIRS)
    read_corpus(files(train, f"{tmp_path}/../{tmp_path.name}/train.csv"))
    assert caplog.messages == ["data.validation is the same file as data.train: it shows nothing about new examples"]
    caplog.clear()
    read_corpus(files(train, write(tmp_path / "validation.csv", PAIRS)))
    assert not caplog.messages


def test_empty_texts_are_warned_of(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    train = write(tmp_path / "train.csv", [("p", " ", 0), ("", "", 2)])
    read_corpus(files(train, write(tmp_path / "validation.csv", PAIRS)))
    assert caplog.messages == ["data.train: every text of 'hypothesis' (data.hypothesis) is empty"]


def test_identity_of_files(tmp_path: Path) -> None:
    train = write(tmp_path / "train.jsonl", PAIRS)
    first = identify(files(train))
    assert first == identify(files(f"{tmp_path}/../{tmp_path.name}/train.jsonl"))
    assert [file["path"] for file in cast(list[FileIdentity], first["train"])] == [
        str(tmp_path.resolve() / "train.jsonl")
    ]
    assert json.loads(json.dumps(first)) == first
    assert first != identify(files(train, label="gold"))
    assert first != identify(files(train, classes=["a", "b", "c"]))
    os.utime(train, ns=(1, 1))
    assert first != identify(files(train))


# Several files


def shards(directory: Path, suffix: str = ".jsonl") -> list[str]:
    """Write PAIRS to three files, not in the order of their names, and return the sorted paths."""
    directory.mkdir(exist_ok=True)
    paths = [write(directory / f"part-{i}{suffix}", PAIRS[i : i + 1]) for i in (2, 0, 1)]
    return sorted(paths)


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize("name", ["", "/", "/part-*", "/part-[0-9]*", "/**/p*"])
def test_a_directory_and_a_glob_are_one_corpus(tmp_path: Path, suffix: str, name: str) -> None:
    whole = read_corpus(files(write(tmp_path / f"whole{suffix}", PAIRS)))
    shards(tmp_path / "shards", suffix)
    validation = write(tmp_path / f"v{suffix}", PAIRS)
    assert read_corpus(files(f"{tmp_path / 'shards'}{name}", validation)) == whole


def test_of_a_directory_only_data_is_read(tmp_path: Path) -> None:
    directory = tmp_path / "shards"
    paths = shards(directory)
    for other in ("README.md", "_SUCCESS", ".hidden.jsonl", ".part-0.jsonl.crc"):
        (directory / other).write_text("no data")
    (directory / "nested.csv").mkdir()
    with pytest.raises(UserError, match=r"^data.train: not a file: .*/nested.csv$"):
        find_files("data.train", str(directory))
    (directory / "nested.csv").rmdir()
    assert [str(path) for path in find_files("data.train", str(directory))] == paths


def test_a_file_with_the_characters_of_a_glob_is_itself(tmp_path: Path) -> None:
    path = write(tmp_path / "a[1].jsonl", PAIRS)
    write(tmp_path / "a1.jsonl", PAIRS[:1])
    assert find_files("data.train", path) == [Path(path)]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("empty", "data.train: no data files in {name}; use .jsonl, .json, .csv, .tsv (each also + .gz) or .parquet"),
        ("*.csv", "data.train: no file matches {name}; use .jsonl"),
        ("README*", "data.train: unknown suffix: {name}; use .jsonl"),
        ("shards/*", "data.train: empty file: {directory}/shards/part-9.jsonl"),
        ("mixed", "data.train: {directory}/mixed/b.csv has labels of text, {directory}/mixed/a.jsonl has typed labels"),
        ("wrong", "{directory}/wrong/part-1.jsonl:2: 'premise' (data.premise) is null, not a string; remove the row"),
        ("types", "{directory}/types/part-1.jsonl:1: integers and strings are mixed in 'label' (data.label); use one"),
    ],
)
def test_errors_of_several_files(tmp_path: Path, name: str, expected: str) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "README.md").write_text("no data")
    shards(tmp_path / "shards")
    (tmp_path / "shards" / "part-9.jsonl").touch()
    for directory in ("mixed", "wrong", "types"):
        (tmp_path / directory).mkdir()
    write(tmp_path / "mixed" / "a.jsonl", PAIRS)
    write(tmp_path / "mixed" / "b.csv", PAIRS)
    write(tmp_path / "wrong" / "part-0.jsonl", PAIRS)
    write(tmp_path / "wrong" / "part-1.jsonl", [("p", "h", 0), (None, "h", 0)])
    write(tmp_path / "types" / "part-0.jsonl", PAIRS)
    write(tmp_path / "types" / "part-1.jsonl", [("p", "h", "x")])
    with pytest.raises(UserError) as raised:
        read_corpus(files(tmp_path / name, write(tmp_path / "validation.jsonl", PAIRS)))
    assert message(raised).startswith(expected.format(name=tmp_path / name, directory=tmp_path))


def test_files_of_both_splits_are_warned_of(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    paths = shards(tmp_path / "shards")
    read_corpus(files(tmp_path / "shards", paths[0]))
    assert caplog.messages == ["data.validation has 1 of the files of data.train: it shows nothing about new examples"]


def test_identity_of_several_files(tmp_path: Path) -> None:
    paths = shards(tmp_path / "shards")
    validation = write(tmp_path / "validation.jsonl", PAIRS)
    first = identify(files(tmp_path / "shards", validation))
    assert [file["path"] for file in cast(list[FileIdentity], first["train"])] == paths
    assert first == identify(files(f"{tmp_path}/shards/*", validation))
    os.utime(paths[1], ns=(1, 1))
    assert first != identify(files(tmp_path / "shards", validation))


def test_a_file_that_changes_after_it_was_checked(tmp_path: Path) -> None:
    path = write(tmp_path / "f.jsonl", PAIRS)
    for changed in (PAIRS[:2], [*PAIRS, PAIRS[0]], [*PAIRS[:2], ("p", "h", 7)]):
        write(tmp_path / "f.jsonl", PAIRS)
        split = text_corpus.read_corpus(files(path)).train
        assert len(list(split)) == len(list(split)) == 3, "every iteration reads the files"
        write(tmp_path / "f.jsonl", changed)
        with pytest.raises(UserError, match=r"^data.train: has changed since it was checked; start the command again$"):
            list(split)


def test_a_column_of_ids_is_not_held(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text_rows, "MAX_LABELS", 10)
    path = write(tmp_path / "f.jsonl", [("p", "h", str(i)) for i in range(20)])
    with pytest.raises(UserError) as raised:
        read_corpus(files(path))
    assert message(raised).startswith("data.label: more than 10 classes in data.train; set it to the column that holds")
