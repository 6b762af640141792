import json
import re
import signal
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any, Self

import pytest

from common.config import compose as configs
from common.errors import Interrupted, UserError
from common.run.directory import find_chief_run_dir, open_run_dir
from tests.conftest import MakeConfig
from tests.unit.common.run.conftest import MakeRun, resume

NAME = re.compile(r"\d{8}-\d{6}-")


def test_a_run_has_its_own_directory(make_config: MakeConfig) -> None:
    config = make_config("strategy=ddp", "strategy.replicas=3")
    with open_run_dir(config, "torch") as run_dir:
        assert run_dir.is_dir()
        assert configs.load_config(run_dir / "config.yaml") == replace(config, run_dir=str(run_dir))
    assert run_dir.parent == Path("runs")
    assert NAME.sub("", run_dir.name) == "torch-ddp"
    with open_run_dir(make_config("run_name=try it"), "torch") as run_dir:
        assert NAME.sub("", run_dir.name) == "try it"


def test_a_name_that_is_taken(make_config: MakeConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    class Noon(datetime):
        @classmethod
        def now(cls, tz: Any = None) -> Self:
            return cls(2026, 1, 2, 12)

    monkeypatch.setattr("common.run.directory.datetime", Noon)
    names = []
    for _ in range(3):
        with open_run_dir(make_config("run_name=n"), "tf") as run_dir:
            names.append(run_dir.name)
    assert names == ["20260102-120000-n", "20260102-120000-n-2", "20260102-120000-n-3"]


@pytest.mark.parametrize("exists", [False, True])
def test_a_directory_that_is_named(make_config: MakeConfig, tmp_path: Path, exists: bool) -> None:
    wanted = tmp_path / "a" / "b"
    if exists:
        wanted.mkdir(parents=True)
    with open_run_dir(make_config(f"run_dir={wanted}"), "torch") as run_dir:
        assert run_dir == wanted
    assert sorted(path.name for path in wanted.iterdir()) == [".lock", "config.yaml"]
    with pytest.raises(UserError, match=f"^run_dir={wanted}: not empty; choose a new directory"):
        open_run_dir(make_config(f"run_dir={wanted}"), "torch").__enter__()


def test_other_hosts_have_directories_beside_the_first_ones(make_config: MakeConfig, tmp_path: Path) -> None:
    config = make_config(f"run_dir={tmp_path / 'run'}")
    for node, name in ((0, "run"), (1, "run-node1"), (12, "run-node12")):
        with open_run_dir(config, "torch", node) as run_dir:
            assert run_dir == tmp_path / name
            assert find_chief_run_dir(run_dir, node) == tmp_path / "run"
    with open_run_dir(make_config("run_name=n"), "torch", 2) as run_dir:
        assert NAME.sub("", run_dir.name) == "n-node2"


def a_file(path: Path) -> str:
    (path / "file").touch()
    return f"run_dir={path / 'file'}"


def below_a_file(path: Path) -> str:
    return a_file(path) + "/run"


def runs_is_a_file(path: Path) -> str:
    Path("runs").touch()
    return "run_name=n"


@pytest.mark.parametrize("place", [a_file, below_a_file, runs_is_a_file])
def test_a_place_that_cannot_be_written(make_config: MakeConfig, tmp_path: Path, place: Callable[[Path], str]) -> None:
    config = make_config(place(tmp_path))
    with pytest.raises(UserError) as raised, open_run_dir(config, "torch"):
        pass
    named = re.escape(config.run_dir or "runs/")
    assert re.match(rf"run_dir={named}.*: cannot be written \([\w ]+\); pass run_dir=PATH$", str(raised.value))


def test_it_is_removed_on_a_users_error(make_config: MakeConfig) -> None:
    with pytest.raises(UserError, match=r"^no such file$"), open_run_dir(make_config(), "torch"):
        raise UserError("no such file")
    assert not Path("runs").exists()
    with pytest.raises(UserError), open_run_dir(make_config(), "torch") as run_dir:
        (run_dir / "prepared.json").touch()
        raise UserError("no such file")
    assert sorted(path.name for path in run_dir.iterdir()) == [".lock", "config.yaml", "prepared.json"]


def test_a_directory_that_was_there_is_kept_on_a_users_error(make_config: MakeConfig, tmp_path: Path) -> None:
    with pytest.raises(UserError), open_run_dir(make_config(f"run_dir={tmp_path / 'here'}"), "torch"):
        raise UserError("no such file")
    assert (tmp_path / "here").is_dir()


def test_an_interruption_is_recorded(make_config: MakeConfig, tmp_path: Path) -> None:
    config = make_config(f"run_dir={tmp_path / 'run'}")
    with pytest.raises(Interrupted), open_run_dir(config, "torch"):
        signal.raise_signal(signal.SIGTERM)
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert (summary["status"], summary["error"], summary["steps"]) == ("interrupted", "stopped by SIGTERM", 0)


def test_a_directory_that_is_no_runs(small_config: MakeConfig, tmp_path: Path) -> None:
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "thesis.tex").touch()
    with pytest.raises(UserError, match=r"not empty; choose a new directory$"):
        resume(small_config(f"run_dir={mine}", "resume=auto"))
    assert [path.name for path in mine.iterdir()] == ["thesis.tex"]


def test_without_resume_a_run_is_not_overwritten(make_run: MakeRun, small_config: MakeConfig) -> None:
    with pytest.raises(UserError, match=r"not empty; .*, or resume this run with resume=auto$"):
        resume(small_config(f"run_dir={make_run('run')}"))


@pytest.mark.slow
def test_two_runs_in_one_directory(
    make_run: MakeRun, small_config: MakeConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("common.run.directory.LOCK_SECONDS", 0.1)
    config = small_config(f"run_dir={make_run('run')}", "resume=auto")
    with (
        open_run_dir(config, "torch"),
        pytest.raises(UserError, match=r"in use by another run; choose another directory, or end that run first$"),
    ):
        resume(small_config(f"run_dir={config.run_dir}", "resume=auto"))
    assert resume(config) == 4
