import csv
import gzip
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.config.schema import BuiltinNli, Files, Hub
from common.data.text.corpus import Corpus, identity, read_corpus
from common.errors import UserError

PAIRS = [("A cat sleeps.", "An animal sleeps.", 0), ('He said "no", twice', "", 2), ("", "ünï → 漢", 1)]
SUFFIXES = [".jsonl", ".json", ".csv", ".tsv", ".jsonl.gz", ".json.gz", ".csv.gz", ".tsv.gz", ".parquet"]


def write(path: Path, rows: list[tuple], columns: tuple[str, ...] = ("premise", "hypothesis", "label")) -> str:
    """Write rows in the format that the suffix names."""
    if path.suffix == ".parquet":
        pq.write_table(pa.table({name: [row[i] for row in rows] for i, name in enumerate(columns)}), path)
        return str(path)
    with (
        gzip.open(path, "wt", encoding="utf-8", newline="")
        if path.suffix == ".gz"
        else open(path, "w", encoding="utf-8", newline="") as file
    ):
        if ".json" in path.name:
            file.writelines(json.dumps(dict(zip(columns, row, strict=True))) + "\n" for row in rows)
        elif ".csv" in path.name:
            csv.writer(file).writerows([columns, *rows])
        else:
            file.writelines("\t".join(map(str, row)) + "\n" for row in [columns, *rows])
    return str(path)


def files(train: str | Path, validation: str | Path | None = None, **keys: Any) -> Files:
    defaults: dict[str, Any] = {"premise": "premise", "hypothesis": "hypothesis", "label": "label", "classes": None}
    return Files("files", False, str(train), str(validation or train), **{**defaults, **keys})


def read_text(path: Path, text: str | bytes, checkpoint: list[str] | None = None, **keys: Any) -> Corpus:
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return read_corpus(files(path, **keys), checkpoint)


def message(raised: pytest.ExceptionInfo[UserError]) -> str:
    text = str(raised.value)
    assert "\n" not in text
    return text


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


def test_single_sentences_and_null_labels(tmp_path: Path) -> None:
    path = write(tmp_path / "f.parquet", [("x", 1), ("y", None), ("z", 0)], ("premise", "label"))
    corpus = read_corpus(files(path, hypothesis=None))
    assert corpus.train.hypotheses is None
    assert (corpus.train.premises, corpus.train.labels, corpus.train.dropped) == (["x", "z"], [1, 0], 1)


text = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\r\x00"), max_size=20)


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


@pytest.mark.parametrize(
    ("labels", "keys", "checkpoint", "expected"),
    [
        (["0", "2"], {}, None, ([0, 2], ["0", "1", "2"])),  # CSV: they all read as integers
        (["0", "x"], {}, None, ([0, 1], ["0", "x"])),
        (["no", "yes"], {"classes": ["yes", "no"]}, None, ([1, 0], ["yes", "no"])),
        (["1", "2"], {"classes": ["1", "2"]}, None, ([0, 1], ["1", "2"])),  # a name comes before an index
        (["1", "0"], {"classes": ["a", "b", "c"]}, None, ([1, 0], ["a", "b", "c"])),
        (["1", "0"], {}, ["a", "b", "c"], ([1, 0], ["a", "b", "c"])),
        (["c", "a"], {}, ["c", "b", "a"], ([0, 2], ["c", "b", "a"])),
        (["0", "2"], {"classes": ["a", "b", "c"]}, ["c", "b", "a"], ([2, 0], ["c", "b", "a"])),  # met by name
        (["a", "c"], {"classes": ["a", "b", "c"]}, ["LABEL_0", "LABEL_1", "LABEL_2"], ([0, 2], None)),  # by position
    ],
)
def test_classes(tmp_path: Path, labels: list[str], keys: dict, checkpoint: list[str] | None, expected: tuple) -> None:
    lines = "".join(f"p,h,{label}\n" for label in labels)
    corpus = read_text(tmp_path / "f.csv", f"premise,hypothesis,label\n{lines}", checkpoint, **keys)
    assert (corpus.train.labels, corpus.classes) == (expected[0], expected[1] or checkpoint)


def test_classes_that_cannot_meet_the_checkpoints(tmp_path: Path) -> None:
    with pytest.raises(UserError) as raised:
        read_text(tmp_path / "f.csv", "premise,hypothesis,label\np,h,a\n", ["x", "y"], classes=["a", "b"])
    assert message(raised).startswith(
        "data.classes: the data's classes ['a', 'b'] are not among the checkpoint's ['x', 'y']"
    )


HEADER = "premise,hypothesis,label\n"
OBJECT = '{"premise": "p", "hypothesis": "h", "label": 0}\n'


@pytest.mark.parametrize(
    ("name", "content", "keys", "expected"),
    [
        ("f.jsonl", OBJECT + "\n{oops\n", {}, "{path}:3: not JSON (Expecting property name"),
        ("f.jsonl", "[1, 2]\n", {}, "{path}:1: a list, not an object; write one object per line"),
        (
            "f.jsonl",
            OBJECT + '{"premise": "p", "label": 0}\n',
            {},
            "{path}:2: no column 'hypothesis'; set data.hypothesis",
        ),
        ("f.jsonl", OBJECT.replace('"p"', "7"), {}, "{path}:1: 'premise' (data.premise) is int, not a string"),
        (
            "f.jsonl",
            OBJECT.replace('"h"', "null"),
            {},
            "{path}:1: 'hypothesis' (data.hypothesis) is null, not a string",
        ),
        (
            "f.jsonl",
            OBJECT.replace('"h"', r'"\ud800"'),
            {},
            "{path}:1: 'hypothesis' (data.hypothesis) has a lone surrogate",
        ),
        ("f.jsonl", OBJECT.replace("0}", "0.5}"), {}, "{path}:1: 'label' (data.label) is float, not an integer"),
        ("f.jsonl", OBJECT.replace("0}", "true}"), {}, "{path}:1: 'label' (data.label) is bool, not an integer"),
        ("f.jsonl", OBJECT + OBJECT.replace("0}", '"x"}'), {}, "{path}:2: integers and strings are mixed in 'label'"),
        (
            "f.jsonl",
            OBJECT.replace("0}", "3}"),
            {"classes": ["a", "b"]},
            "{path}:1: label 3 is not one of the 2 classes",
        ),
        ("f.jsonl", OBJECT.replace("0}", "-2}"), {}, "{path}:1: label -2 is not one of the 0 classes"),
        ("f.jsonl", OBJECT.replace("0}", '"z"}'), {"classes": ["a", "b"]}, "{path}:1: label 'z' is not one of the 2"),
        ("f.jsonl", OBJECT.replace("0}", "123456789}"), {}, "data.label: 123456790 classes in data.train"),
        ("f.jsonl", OBJECT.encode() + b'{"premise": "\xff"}\n', {}, "{path}:2: not UTF-8 at byte 14 of the line"),
        ("f.jsonl", OBJECT.replace("0}", "-1}"), {}, "data.train: no example with a gold label (1 rows without one)"),
        ("f.jsonl", "\n", {}, "data.train: no example with a gold label (0 rows without one)"),
        ("f.csv", HEADER + '"two\nlines",h,0\np,h\n', {}, "{path}:4: 2 columns where the header has 3"),
        ("f.csv", HEADER + 'p,h,0\n"p,h,0\n', {}, "{path}:3: unexpected end of data"),
        ("f.csv", HEADER.encode() + b"p,h,0\np,\xe9,0\n", {}, "{path}:3: not UTF-8 at byte 3 of the line"),
        ("f.csv", "a,b,c\n", {}, "{path}:1: no column 'label'; set data.label to one of ['a', 'b', 'c']"),
        ("f.csv", HEADER, {"label": "gold"}, "{path}:1: no column 'gold'; set data.label to one of ['premise', 'hyp"),
        ("f.csv", HEADER, {}, "data.train: no example with a gold label (0 rows without one)"),
        ("f.tsv", "premise\thypothesis\tlabel\np\th\t0\textra\n", {}, "{path}:2: 4 columns where the header has 3"),
        ("f.csv.gz", b"not gzip", {}, "{path}: cannot be read: Not a gzipped file"),
        ("f.csv.gz", gzip.compress(HEADER.encode())[:-12], {}, "{path}: cannot be read: Compressed file ended before"),
        ("f.parquet", b"not parquet", {}, "{path}: cannot be read: ArrowInvalid: Parquet magic bytes not found"),
        ("f.jsonl", "", {}, "data.train: empty file: {path}"),
        (
            "f.txt",
            "x",
            {},
            "data.train: unknown suffix: {path}; use .jsonl, .json, .csv, .tsv (each also + .gz) or .parquet",
        ),
        ("f.parquet.gz", "x", {}, "data.train: unknown suffix: {path}; use .jsonl"),
    ],
)
def test_errors(tmp_path: Path, name: str, content: str | bytes, keys: dict, expected: str) -> None:
    path = tmp_path / name
    with pytest.raises(UserError) as raised:
        read_text(path, content, **keys)
    assert message(raised).startswith(expected.replace("{path}", str(path)))


def test_parquet_errors_name_the_row(tmp_path: Path) -> None:
    path = write(tmp_path / "f.parquet", [("p", "h", 0), ("p", None, 0)])
    with pytest.raises(UserError) as raised:
        read_corpus(files(path))
    assert message(raised) == f"{path}: row 2: 'hypothesis' (data.hypothesis) is null, not a string"
    with pytest.raises(UserError) as raised:
        read_corpus(files(path, premise="text"))
    assert message(raised).startswith(f"{path}: no column 'text'; set data.premise to one of ['premise', 'hypothesis'")


def test_validation_is_checked_like_train(tmp_path: Path) -> None:
    train = write(tmp_path / "train.jsonl", [("p", "h", "a"), ("p", "h", "b")])
    other = write(tmp_path / "validation.jsonl", [("p", "h", "a"), ("p", "h", "c")])
    unlabelled = write(tmp_path / "unlabelled.jsonl", [("p", "h", "-")] * 3)
    with pytest.raises(UserError) as raised:
        read_corpus(files(train, other))
    assert message(raised) == f"{other}:2: label 'c' is not one of the 2 classes ['a', 'b']; see data.classes"
    with pytest.raises(UserError, match="^data.validation: no example with a gold label .3 rows"):
        read_corpus(files(train, unlabelled))
    for call in (read_corpus, identity):
        with pytest.raises(UserError, match="^data.validation: no such file: .*missing.csv$"):
            call(files(train, tmp_path / "missing.csv"))
        with pytest.raises(UserError, match="^data.validation: not a file: "):
            call(files(train, tmp_path))


def test_identity_of_files(tmp_path: Path) -> None:
    train = write(tmp_path / "train.jsonl", PAIRS)
    first = identity(files(train))
    assert first == identity(files(f"{tmp_path}/../{tmp_path.name}/train.jsonl"))
    assert first["train"]["path"] == str(tmp_path.resolve() / "train.jsonl")
    assert json.loads(json.dumps(first)) == first
    assert first != identity(files(train, label="gold"))
    assert first != identity(files(train, classes=["a", "b", "c"]))
    os.utime(train, ns=(1, 1))
    assert first != identity(files(train))


def test_identity_of_hub_and_builtin() -> None:
    hub = Hub("hub", False, "owner/name", None, "0" * 40, "train", "validation", "premise", None, "label", None)
    assert identity(hub)["revision"] == "0" * 40
    builtin = identity(BuiltinNli("builtin_nli", False, seed=3, train_examples=30, validation_examples=6))
    assert {"version", "seed", "train_examples", "validation_examples"} <= builtin.keys()


def test_builtin() -> None:
    data = BuiltinNli("builtin_nli", False, seed=3, train_examples=30, validation_examples=6)
    corpus = read_corpus(data)
    assert (len(corpus.train.premises), len(corpus.validation.labels), corpus.train.dropped) == (30, 6, 0)
    reversed_classes = corpus.classes[::-1]
    assert read_corpus(data, reversed_classes).train.labels == [2 - label for label in corpus.train.labels]
    with pytest.raises(UserError, match="^data.train_examples"):
        read_corpus(BuiltinNli("builtin_nli", False, seed=3, train_examples=0, validation_examples=6))


def test_importing_is_light() -> None:
    heavy = ["torch", "tensorflow", "keras", "datasets", "pyarrow", "huggingface_hub"]
    code = f"import sys, common.data.text.corpus; print([name for name in {heavy} if name in sys.modules])"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout == "[]\n"
