"""The command common.diagnose for two records: its arguments, its report and its exit code."""

import json
from pathlib import Path

import pytest

from common.diagnose.__main__ import main
from common.diagnose.recorded.record_arguments import parse_record_arguments
from common.diagnose.recorded.walk import diagnose_records
from common.errors import UserError
from tests.unit.common.recording.numpy_script import NumpyScript, draw_batches


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    old, new = NumpyScript().write(tmp_path / "old"), NumpyScript(rate=0.02, batches=draw_batches(steps=2))
    output = f"output={tmp_path}/report"
    assert main([str(old), str(old), output]) == 0
    assert "no difference" in capsys.readouterr().out
    assert main([str(old), str(new.write(tmp_path / "new")), output]) == 1
    printed = capsys.readouterr().out
    assert "learning rate: 0.01, 0.01 in A and 0.02, 0.02 in B" in printed
    assert "note: A has 3 steps and B 2; the 2 common ones are compared" in printed
    report = json.loads((tmp_path / "report/diagnosis.json").read_text())
    assert report["causes"][0]["cause"] == "learning_rate"
    assert any("noise was not measured" in note for note in report["notes"])
    assert "noise was not measured" in (tmp_path / "report/diagnosis.html").read_text()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["old"], "old: got 1 directory; pass two records"),
        (["old", "old", "old"], "old: got 3 directories; pass two records"),
        (["old", "."], "not a record, but the other directory is one; to compare a run with a record, use"),
        (["old", "old", "steps=2"], "steps=2: not an option for records, .*; use map or output"),
    ],
)
def test_wrong_arguments(arguments: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    NumpyScript(batches=draw_batches(steps=1)).write(Path("old"))
    with pytest.raises(UserError, match=message):
        parse_record_arguments(arguments)


def test_records_that_cannot_be_compared(tmp_path: Path) -> None:
    old = NumpyScript().write(tmp_path / "old")
    with pytest.raises(UserError, match="map=x.yaml: both records are of one framework; remove it"):
        diagnose_records(old, old, Path("x.yaml"))
