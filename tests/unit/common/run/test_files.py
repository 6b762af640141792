import json
from pathlib import Path

import pytest

from common.errors import UserError
from common.run.files import drop_rows_after, replace_text
from common.training.rows import append_rows, read_rows
from common.training.state import Position
from tests.unit.common.run.conftest import evaluation, record, recorded, step


@pytest.mark.parametrize(
    ("left", "rows"), [('{"step": 1}\n{"step": 2}\n{"step"', 2), ('{"step": 1', 0), ("", 0), (None, 0)]
)
def test_a_line_that_a_killed_writer_left_unfinished(tmp_path: Path, left: str | None, rows: int) -> None:
    path = tmp_path / "metrics.jsonl"
    if left is not None:
        path.write_text(left)
    assert read_rows(path) == [{"step": number} for number in range(1, rows + 1)]


def test_appended_rows_are_there_at_once(tmp_path: Path) -> None:
    with (tmp_path / "rows").open("ab") as file:
        append_rows(file, [{"step": 1, "a": 0.1 + 0.2}])
        append_rows(file, [{"step": 2, "a": None}, {"step": 3, "a": [1]}])
        assert [row["a"] for row in read_rows(tmp_path / "rows")] == [0.1 + 0.2, None, [1]]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
def test_a_full_disk() -> None:
    with (
        pytest.raises(UserError, match=r"^/dev/full: cannot be written \(No space left on device\); make space"),
        Path("/dev/full").open("ab", buffering=0) as file,
    ):
        append_rows(file, [{"a": 1}])


@pytest.mark.parametrize(
    ("position", "kept"),
    [
        (Position(), [[], []]),
        (Position(2, validation={"loss": 0.5, "accuracy": 0.5}), [[1, 2], [2]]),
        (Position(2), [[1, 2], []]),  # a signal came before the evaluation, which is made again
        (Position(3), [[1, 2, 3], [2]]),
        (Position(9), [[1, 2, 3, 4], [2, 4]]),
    ],
)
def test_rows_after_a_position_are_dropped(run_dir: Path, position: Position, kept: list[list[int]]) -> None:
    record(run_dir, [step(number, 0.1) for number in (1, 2, 3, 4)], [evaluation(2), evaluation(4)])
    rows = drop_rows_after(run_dir, position)
    assert recorded(run_dir) == [*kept, []]
    assert [row["step"] for row in rows] == [*kept[0], *kept[1]]
    assert not (run_dir / "traffic.jsonl").exists()


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("\0" * 9, "not a valid JSON row"),
        ("[2]", "a row must be a JSON object with a whole number 'step', found None"),
        ('{"step": "2"}', "a row must be a JSON object with a whole number 'step', found 2"),
        ('{"step": 2}', "'loss' must be a number, found None"),
        (json.dumps({**step(2, 0.1), "loss": "x"}), "'loss' must be a number, found x"),
        (json.dumps({**step(2, 0.1), "staleness": "x"}), "'staleness' must be a number, found x"),
    ],
)
def test_a_damaged_row_before_the_position_is_refused(run_dir: Path, line: str, problem: str) -> None:
    record(run_dir, [step(number, 0.1) for number in (1, 2, 3)], [])
    path = run_dir / "metrics.jsonl"
    lines = path.read_text().splitlines()
    path.write_text("\n".join([lines[0], line, lines[2], ""]))
    with pytest.raises(UserError) as raised:
        drop_rows_after(run_dir, Position(3))
    assert str(raised.value).startswith(f"{path}:2: {problem}")
    path.write_text("\n".join([lines[0], lines[2], line, ""]))
    drop_rows_after(run_dir, Position(1))  # what lies after the position is not read
    assert path.read_text() == lines[0] + "\n"


def test_a_line_that_does_not_fit_into_memory_is_refused(tmp_path: Path) -> None:
    with (tmp_path / "metrics.jsonl").open("wb") as file:
        file.truncate(1 << 40)  # a sparse file
    with pytest.raises(UserError, match=r"metrics\.jsonl:1: .*more than 16 MiB"):
        read_rows(tmp_path / "metrics.jsonl")


def test_a_text_is_replaced(tmp_path: Path) -> None:
    for text in ("old", "new"):
        replace_text(tmp_path / "file", text)
        assert (tmp_path / "file").read_text() == text
    assert [path.name for path in tmp_path.glob("file*")] == ["file"]
