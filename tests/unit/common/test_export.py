import sys
from pathlib import Path

import pytest

from common.export.__main__ import main


def test_command_with_a_users_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["export", str(tmp_path), str(tmp_path / "out"), "--best"])
    with pytest.raises(SystemExit) as left:
        main()
    assert left.value.code == 2
    assert capsys.readouterr().err == f"error: {tmp_path}: has no checkpoints/; pass a run directory\n"


def test_the_path_to_create_has_no_key(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        main(["bundle=run", "out=run.zip"])
    assert left.value.code == 2
    assert capsys.readouterr().err == "error: out=run.zip: the path has no key; write run.zip\n"
