"""JSON arrays are read in pieces, with the errors of a parser that sees the whole text."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.data.text import utf8_files
from common.data.text.json_rows import is_json_array, read_json_array
from common.errors import UserError

COLUMNS = [("data.label", "x")]

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=12),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)


def written(directory: Path, text: str) -> Path:
    path = directory / "f.json"
    path.write_text(text, encoding="utf-8")
    return path


@pytest.mark.slow
@given(rows=st.lists(values, max_size=8), piece=st.integers(1, 40), indent=st.none() | st.just(1), raw=st.booleans())
def test_whatever_the_pieces_are(
    tmp_path_factory: pytest.TempPathFactory, rows: list[Any], piece: int, indent: int | None, raw: bool
) -> None:
    objects = [{"x": row} for row in rows]
    path = written(tmp_path_factory.getbasetemp(), json.dumps(objects, indent=indent, ensure_ascii=raw))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(utf8_files, "PIECE", piece)
        assert is_json_array(path)
        assert list(read_json_array(path, COLUMNS)) == [(number, [row]) for number, row in enumerate(rows, 1)]


BAD = [
    '[{"x": 1}, oops]',
    '[{"x": 1},\n\n  {"x": tru }]',
    '[{"x": 1}\n {"x": 2}]',
    '[{"x": 1}]\n]',
    '[{"x": "unfinished',
    '[{"x": "\n"}]',
    '[{"x": "\\q"}]',
    '[{"x" 1}]',
    '[{"x": 1}',
    "[",
]


@pytest.mark.parametrize("text", BAD)
@pytest.mark.parametrize("piece", [1, 3, 7, 1000])
@pytest.mark.parametrize("rows", [0, 3])
def test_errors_are_those_of_the_whole_text(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, piece: int, rows: int
) -> None:
    text = "[" + '{"x":\n0}, ' * rows + text[1:]
    monkeypatch.setattr(utf8_files, "PIECE", piece)
    with pytest.raises(json.JSONDecodeError) as expected:
        json.loads(text)
    with pytest.raises(UserError) as raised:
        list(read_json_array(written(tmp_path, text), COLUMNS))
    error = expected.value
    place = f"{f'line {error.lineno}, ' if error.lineno > 1 else ''}column {error.colno}"
    assert f"/f.json: not JSON ({error.msg} at {place}); write" in str(raised.value)


def test_a_long_array_is_not_held(tmp_path: Path) -> None:
    path = written(tmp_path, "[" + ", ".join(['{"x": "' + "a" * 1000 + '"}'] * 4000) + ", oops]")
    rows = read_json_array(path, COLUMNS)
    assert next(rows) == (1, ["a" * 1000]), "what is wrong at the end is not seen at the start"
    with pytest.raises(UserError, match="column 4044002"):
        list(rows)


def test_an_error_in_the_encoding_names_the_line(tmp_path: Path) -> None:
    path = tmp_path / "f.json"
    path.write_bytes(b'[{"x": 1},\n{"x": "\xff"}]')
    with pytest.raises(UserError, match=r"f.json:2: not UTF-8 at byte 8 of the line; save the file as UTF-8$"):
        list(read_json_array(path, COLUMNS))
