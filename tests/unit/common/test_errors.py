import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from hydra.errors import HydraException, MissingConfigException
from omegaconf import OmegaConf

import common.config.compose  # noqa: F401  it registers what configs interpolate
from common.errors import CONF_DIRECTORY, Interrupted, UserError, cannot_be_written, explain, one_line_errors
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


def test_any_other_text_is_joined_to_one_line() -> None:
    assert explain(HydraException("something\n  went\nwrong"), []) == "something went wrong"


def test_an_interpolation_that_fails_names_its_key() -> None:
    config = OmegaConf.create({"data": {"train": "${nowhere}"}})
    with pytest.raises(Exception) as raised:
        _ = config.data.train
    text = explain(raised.value, [])
    assert text.startswith("data.train: ") and "nowhere" in text and "\n" not in text


def test_a_users_error_in_an_interpolation_is_shown_as_it_is() -> None:
    config = OmegaConf.create({"model": {"checkpoint": "${package_directory:no_such_thing}"}})
    with pytest.raises(Exception) as raised:
        _ = config.model.checkpoint
    assert explain(raised.value, []) == (
        "model.checkpoint: the package no-such-thing is not installed; pip install no-such-thing"
    )


def test_a_missing_choice_lists_those_that_there_are() -> None:
    """Of the strategies those of this side, and those that an extension has added."""
    found = [path.stem for path in sorted(CONF_DIRECTORY.glob("strategy/*.yaml"))]
    assert {"ddp", "mirrored"} <= set(found)
    error = MissingConfigException("no such file", "strategy/horovod", [*found, "mine"])
    assert explain(error, ["single", "ddp"]) == "strategy=horovod: no such choice; there are single, ddp, mine"
    error = MissingConfigException("no such file", "data/cifar", ["digits", "mine"])
    assert explain(error, ["single"]) == "data=cifar: no such choice; there are digits, mine"


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (OSError(28, "No space left on device"), "No space left on device"),
        (OSError("3 requested and\n 2 written"), "3 requested and 2 written"),
        (ValueError("too large"), "too large"),
    ],
)
def test_what_cannot_be_written(error: Exception, reason: str) -> None:
    assert (
        str(cannot_be_written("a/b", error)) == f"a/b: cannot be written ({reason}); make space or choose another place"
    )


@pytest.mark.parametrize(
    ("raised", "exit_code", "printed"),
    [
        (UserError("a: wrong"), 2, "error: a: wrong\n"),
        (KeyboardInterrupt(), 130, "interrupted\n"),
        (Interrupted(15), 143, "interrupted: stopped by SIGTERM\n"),
    ],
)
def test_exit_codes(raised: BaseException, exit_code: int, printed: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left, one_line_errors(()):
        raise raised
    assert left.value.code == exit_code
    assert capsys.readouterr().err == printed


def test_the_environment_is_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HYDRA_FULL_ERROR", raising=False)
    with one_line_errors(()):
        assert os.environ["HYDRA_FULL_ERROR"] == "1"
    assert "HYDRA_FULL_ERROR" not in os.environ
