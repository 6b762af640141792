"""The command, with contestants that only sleep: from overrides to files."""

import json
from pathlib import Path

import pytest

from common.bench import __main__ as command
from common.bench.options import BenchOptions, ContestantDefinition
from common.bench.plan import PlannedContestant
from tests.conftest import MakeConfig, Python
from tests.unit.common.bench.test_contestant import fake_command

SHORT = ["bench.rounds=2", "bench.block_seconds=0.3", "bench.warmup_steps=2"]


@pytest.fixture
def fake_contestants(monkeypatch: pytest.MonkeyPatch, make_config: MakeConfig) -> None:
    """Two contestants; the second is faster."""
    config = make_config("strategy=ddp", "strategy.replicas=2")

    def plan_contestants(options: BenchOptions, overrides: list[str], output: Path) -> list[PlannedContestant]:
        assert overrides == ["model=bert_mini"]
        pauses = zip(options.contestants, (0.04, 0.01), strict=True)
        commands = [fake_command(output, name, pause) for name, pause in pauses]
        return [
            PlannedContestant(ContestantDefinition("torch"), config, command, None, None, 4) for command in commands
        ]

    monkeypatch.setattr(command, "plan_contestants", plan_contestants)


@pytest.mark.slow
@pytest.mark.usefixtures("fake_contestants")
def test_the_files_and_the_document_are_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    document, output = tmp_path / "performance.md", tmp_path / "out"
    arguments = [
        f"bench.output={output}",
        f"bench.document={document}",
        "bench.title=Two fakes",
        "bench.reference=torch_dp",
    ]
    assert command.main([*SHORT, *arguments, "bench.contestants=[torch_dp,torch_ddp]", "model=bert_mini"]) == 0
    result = json.loads((output / "bench.json").read_text())
    slow, fast = result["contestants"]
    assert len(slow["rounds"]["examples"]) == 2
    assert slow["ratio"]["median"] == 1 < fast["ratio"]["median"]
    assert "Two fakes" in (output / "bench.html").read_text()
    assert document.read_text().startswith("## Two fakes\n\n| contestant |")
    printed = capsys.readouterr().out
    assert "round 2 of 2" in printed and str(output / "bench.json") in printed


@pytest.mark.usefixtures("fake_contestants")
def test_a_directory_with_files_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(SystemExit) as raised:
        command.main([f"bench.output={tmp_path}", "model=bert_mini"])
    assert raised.value.code == 2
    assert capsys.readouterr().err == f"error: bench.output={tmp_path}: not empty; choose another directory\n"


def test_help_shows_the_keys(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as raised:
        command.main(["--help"])
    assert raised.value.code == 0
    printed = capsys.readouterr().out
    assert "contestants:" in printed and "rounds: 8" in printed and "hf_trainer:" in printed


@pytest.mark.slow
def test_the_command_needs_no_framework(python: Python) -> None:
    code = "import sys, common.bench.__main__; print({'torch', 'tensorflow', 'keras'} & sys.modules.keys())"
    assert python(code) == "set()\n"


@pytest.mark.slow
def test_a_mistake_in_the_training_config_creates_no_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as raised:
        command.main([f"bench.output={tmp_path / 'new'}", "train.step=3"])
    assert raised.value.code == 2
    assert capsys.readouterr().err.startswith("error: train.step: no such key here; did you mean train.steps?")
    assert not (tmp_path / "new").exists()
