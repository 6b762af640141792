"""Errors of files of text: they are one line, and name the file and the line or row."""

import gzip
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from common.data.identity import identify
from common.data.text.utf8_files import read_lines
from common.errors import UserError
from tests.unit.common.data.text.text_samples import files, message, read_corpus, read_text, write

HEADER = "premise,hypothesis,label\n"
OBJECT = '{"premise": "p", "hypothesis": "h", "label": 0}\n'


@pytest.mark.parametrize(
    ("name", "content", "keys", "expected"),
    [
        ("f.jsonl", OBJECT + "\n{oops\n", {}, "{path}:3: not JSON (Expecting property name"),
        ("f.jsonl", OBJECT + "[1, 2]\n", {}, "{path}:2: list, not an object; write one object per row"),
        ("f.jsonl", "[1, 2]\n", {}, "{path}: row 1: int, not an object; write one object per row"),
        ("f.json", f"[{OBJECT}, oops]", {}, "{path}: not JSON (Expecting value at line 2, column 3); write one object"),
        ("f.json", "[]", {}, "data.train: no examples; add rows, or set it to another file"),
        ("f.json", f"[{OBJECT}, {{}}]", {}, "{path}: row 2: no column 'label'; set data.label to one of []"),
        ("f.json", f"[{OBJECT.replace('0}', '[]}')}]", {}, "{path}: row 1: 'label' (data.label) is list; set"),
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
        (
            "f.jsonl",
            OBJECT.replace("0}", "0.5}"),
            {},
            "{path}:1: 'label' (data.label) is 0.5; set data.label to a column",
        ),
        (
            "f.jsonl",
            OBJECT.replace("0}", "{}}"),
            {},
            "{path}:1: 'label' (data.label) is dict; set data.label to a column",
        ),
        ("f.jsonl", OBJECT + OBJECT.replace("0}", "true}"), {}, "{path}:2: booleans and integers are mixed in 'label'"),
        ("f.csv", HEADER + "p,h,1\np,h,1.5\n", {}, "{path}:3: label '1.5' is not a whole number; set data.label to a"),
        ("f.jsonl", OBJECT + OBJECT.replace("0}", '"x"}'), {}, "{path}:2: integers and strings are mixed in 'label'"),
        (
            "f.jsonl",
            OBJECT.replace("0}", "3}"),
            {"classes": ["a", "b"]},
            "{path}:1: label 3 is not one of the 2 classes",
        ),
        (
            "f.jsonl",
            OBJECT.replace("0}", "-2}"),
            {},
            "{path}:1: label -2 is not one of the classes; see data.classes (integers",
        ),
        ("f.jsonl", OBJECT.replace("0}", '"z"}'), {"classes": ["a", "b"]}, "{path}:1: label 'z' is not one of the 2"),
        ("f.jsonl", OBJECT.replace("0}", "123456789}"), {}, "data.label: 123456790 classes in data.train"),
        ("f.jsonl", OBJECT.encode() + b'{"premise": "\xff"}\n', {}, "{path}:2: not UTF-8 at byte 14 of the line"),
        ("f.jsonl", OBJECT.replace("0}", "-1}"), {}, "data.train: no example with a gold label (1 rows without one)"),
        ("f.jsonl", "\n", {}, "data.train: no examples; add rows, or set it to another file"),
        ("f.csv", HEADER + '"two\nlines",h,0\np,h\n', {}, "{path}:4: 2 columns, but the header has 3"),
        ("f.csv", HEADER + 'p,h,0\n"p,h,0\n', {}, "{path}:3: unexpected end of data"),
        ("f.csv", HEADER.encode() + b"p,h,0\np,\xe9,0\n", {}, "{path}:3: not UTF-8 at byte 3 of the line"),
        ("f.csv", "a,b,c\n", {}, "{path}:1: no column 'label'; set data.label to one of ['a', 'b', 'c']"),
        ("f.csv", "a;b|c;d\n", {}, "{path}:1: no column 'label'; set data.label to one of ['a', 'b|c', 'd']"),
        ("f.csv", "premise;label\n", {}, "{path}:1: no column 'hypothesis'; set data.hypothesis to one of ['prem"),
        ("f.csv.gz", gzip.compress(b"", mtime=0), {}, "{path}:1: an empty line; the first line must name"),
        ("f.csv", HEADER, {"label": "gold"}, "{path}:1: no column 'gold'; set data.label to one of ['premise', 'hyp"),
        (
            "f.csv",
            "premise,hypothesis,premise,label\np,h,q,0\n",
            {},
            "{path}:1: 2 columns 'premise' (data.premise); rename or remove all but one",
        ),
        ("f.tsv", "label\tpremise\tlabel\n0\tp\t1\n", {"hypothesis": None}, "{path}:1: 2 columns 'label' (data.label)"),
        ("f.csv", HEADER, {}, "data.train: no examples; add rows, or set it to another file"),
        ("f.csv", "\n" + HEADER, {}, "{path}:1: an empty line; the first line must name the columns"),
        (
            "f.csv",
            HEADER.replace("\n", "\r") + "p,h,0\r",
            {},
            "{path}:1: a carriage return within a line; save it with",
        ),
        ("f.csv", HEADER + '"p" q,h,0\n', {}, "{path}:2: ',' expected after '\"'; close each quote, and write a quote"),
        ("f.csv", HEADER + "p,q,h,0\n", {}, "{path}:2: 4 columns, but the header has 3; put quotes around a text"),
        ("f.csv", HEADER.encode("utf-16"), {}, "{path}: UTF-16, or not a text file; save it as UTF-8 (in Excel: CSV"),
        ("f.csv", HEADER.encode("utf-16-le"), {}, "{path}: UTF-16, or not a text file; save it as UTF-8"),
        ("f.tsv", "premise\thypothesis\tlabel\np\th\t0\textra\n", {}, "{path}:2: 4 columns, but the header has 3"),
        ("f.csv.gz", b"not gzip", {}, "{path}: cannot be read: Not a gzipped file"),
        (
            "f.csv.gz",
            gzip.compress(HEADER.encode(), mtime=0)[:-12],
            {},
            "{path}: cannot be read: Compressed file ended before",
        ),
        ("f.parquet", b"not parquet", {}, "{path}: cannot be read: ArrowInvalid: Parquet magic bytes not found"),
        ("f.jsonl", "", {}, "data.train: empty file: {path}"),
        (
            "f.txt",
            "x",
            {},
            "data.train: unknown suffix: {path}; use .jsonl, .json, .csv, .tsv (each also + .gz) or .parquet",
        ),
        ("f.PARQUET.GZ", "x", {}, "data.train: unknown suffix: {path}; use .jsonl"),
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
    assert (
        message(raised)
        == f"{path}: row 2: 'hypothesis' (data.hypothesis) is null, not a string; remove the row or fill it in"
    )
    with pytest.raises(UserError) as raised:
        read_corpus(files(path, premise="text"))
    assert message(raised).startswith(f"{path}: no column 'text'; set data.premise to one of ['premise', 'hypothesis'")


def test_a_column_twice_in_parquet_is_refused(tmp_path: Path) -> None:
    table = pa.Table.from_arrays([pa.array(["p"]), pa.array(["q"]), pa.array([0])], ["premise", "premise", "label"])
    pq.write_table(table, tmp_path / "f.parquet")
    with pytest.raises(UserError) as raised:
        read_corpus(files(tmp_path / "f.parquet", hypothesis=None))
    assert message(raised).startswith(f"{tmp_path / 'f.parquet'}: 2 columns 'premise' (data.premise); rename")


def test_a_column_that_is_not_read_may_be_there_twice(tmp_path: Path) -> None:
    corpus = read_text(tmp_path / "f.csv", "id,premise,id,hypothesis,label\n1,p,2,h,0\n")
    assert (corpus.train.premises, corpus.train.hypotheses) == (["p"], ["h"])


def test_validation_is_checked_like_train(tmp_path: Path) -> None:
    train = write(tmp_path / "train.jsonl", [("p", "h", "a"), ("p", "h", "b")])
    other = write(tmp_path / "validation.jsonl", [("p", "h", "a"), ("p", "h", "c")])
    unlabelled = write(tmp_path / "unlabelled.jsonl", [("p", "h", "-")] * 3)
    with pytest.raises(UserError) as raised:
        read_corpus(files(train, other))
    assert message(raised) == f"{other}:2: label 'c' is not one of the 2 classes ['a', 'b']; see data.classes"
    with pytest.raises(UserError, match=r"^data.validation: no example with a gold label .3 rows"):
        read_corpus(files(train, unlabelled))
    for call in (read_corpus, identify):
        with pytest.raises(UserError, match=r"^data.validation: no such file: .*missing.csv$"):
            call(files(train, tmp_path / "missing.csv"))


@pytest.mark.parametrize("name", ["f.jsonl", "f.jsonl.gz"])
def test_a_line_that_does_not_fit_into_memory_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr("common.data.text.utf8_files.MAX_LINE_BYTES", 1 << 20)
    path, content = tmp_path / name, (OBJECT + "x" * (1 << 21)).encode()
    path.write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
    with pytest.raises(UserError, match=r"f\.jsonl.*:2: the line has more than 1 MiB; split it$"):
        list(read_lines(path))
