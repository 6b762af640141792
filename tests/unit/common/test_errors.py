import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from hydra.errors import HydraException
from omegaconf import OmegaConf

from common.errors import explain, one_line_errors
from tests.conftest import ROOT

SCRIPT = """
import sys
from common.errors import UserError, one_line_errors

with one_line_errors(["single"]):
    print(sys.argv[1:])
    raise KIND("data.train: no such file: x.csv")
"""
Script = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def script(tmp_path: Path) -> Script:
    """Run a script that raises an error of a kind."""

    def run(kind: str, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        path = tmp_path / "script.py"
        path.write_text(SCRIPT.replace("KIND", kind))
        clean = {name: value for name, value in os.environ.items() if name != "HYDRA_FULL_ERROR"}
        env = {**clean, "PYTHONPATH": str(ROOT), **environment}
        return subprocess.run([sys.executable, path, *arguments], capture_output=True, text=True, env=env)

    return run


def test_a_users_error_is_one_line(script: Script) -> None:
    done = script("UserError", "a=1")
    assert (done.returncode, done.stderr) == (2, "error: data.train: no such file: x.csv\n")
    assert done.stdout == "['a=1']\n"


def test_any_other_error_shows_where_it_comes_from(script: Script) -> None:
    done = script("RuntimeError")
    assert done.returncode == 1
    assert done.stderr.startswith("Traceback")


@pytest.mark.parametrize("how", ["--debug", "HYDRA_FULL_ERROR"])
def test_debug_shows_the_stack_trace(script: Script, how: str) -> None:
    done = script("UserError", "--debug", "a=1") if how == "--debug" else script("UserError", "a=1", **{how: "1"})
    assert done.returncode == 2
    assert "Traceback" in done.stderr
    assert done.stderr.endswith("error: data.train: no such file: x.csv\n")
    assert done.stdout == "['a=1']\n", "Hydra does not know --debug"


def test_what_cannot_be_told_better_is_joined_to_one_line() -> None:
    assert explain(HydraException("something\n  went\nwrong"), []) == "something went wrong"


def test_an_interpolation_that_fails_names_its_key() -> None:
    config = OmegaConf.create({"data": {"train": "${nowhere}"}})
    with pytest.raises(Exception) as raised:
        _ = config.data.train
    text = explain(raised.value, [])
    assert text.startswith("data.train: ") and "nowhere" in text and "\n" not in text


def test_the_environment_is_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HYDRA_FULL_ERROR", raising=False)
    with one_line_errors(()):
        assert os.environ["HYDRA_FULL_ERROR"] == "1"
    assert "HYDRA_FULL_ERROR" not in os.environ
