import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from hydra.errors import HydraException, MissingConfigException
from omegaconf import OmegaConf
from omegaconf.errors import ConfigAttributeError

from common.config.command_line import FIRST_ERROR_SECONDS, explain_error, report_user_errors
from common.config.compose import CONF
from common.errors import Interrupted, UserError
from tests.conftest import ROOT

SCRIPT = """
import sys
from common.config.command_line import report_user_errors
from common.errors import UserError

with report_user_errors(["single"]):
    print(sys.argv[1:])
    raise KIND("data.train: no such file: x.csv")
"""
RunScript = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def run_script(tmp_path: Path) -> RunScript:
    """Run a script that raises an error of the class `kind`."""

    def run(kind: str, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        path = tmp_path / "script.py"
        path.write_text(SCRIPT.replace("KIND", kind))
        inherited = {name: value for name, value in os.environ.items() if name != "HYDRA_FULL_ERROR"}
        env = {**inherited, "PYTHONPATH": str(ROOT), **environment}
        return subprocess.run([sys.executable, path, *arguments], capture_output=True, text=True, env=env)

    return run


@pytest.mark.slow
def test_a_user_error_is_one_line(run_script: RunScript) -> None:
    done = run_script("UserError", "a=1")
    assert (done.returncode, done.stderr) == (2, "error: data.train: no such file: x.csv\n")
    assert done.stdout == "['a=1']\n"


@pytest.mark.slow
def test_other_errors_show_the_stack_trace(run_script: RunScript) -> None:
    done = run_script("RuntimeError")
    assert done.returncode == 1
    assert done.stderr.startswith("Traceback")


@pytest.mark.slow
@pytest.mark.parametrize("option", ["--debug", "HYDRA_FULL_ERROR"])
def test_debug_shows_the_stack_trace(run_script: RunScript, option: str) -> None:
    done = (
        run_script("UserError", "--debug", "a=1")
        if option == "--debug"
        else run_script("UserError", "a=1", **{option: "1"})
    )
    assert done.returncode == 2
    assert "Traceback" in done.stderr
    assert done.stderr.endswith("error: data.train: no such file: x.csv\n")
    assert done.stdout == "['a=1']\n", "Hydra receives no --debug"


def test_other_texts_are_joined_to_one_line() -> None:
    assert explain_error(HydraException("something\n  went\nwrong"), []) == "something went wrong"


def test_a_failed_interpolation_names_its_key() -> None:
    config = OmegaConf.create({"data": {"train": "${nowhere}"}})
    with pytest.raises(Exception) as raised:
        _ = config.data.train
    text = explain_error(raised.value, [])
    assert text.startswith("data.train: ") and "nowhere" in text and "\n" not in text


def test_a_user_error_in_an_interpolation_is_shown() -> None:
    config = OmegaConf.create({"model": {"checkpoint": "${package_directory:no_such_thing}"}})
    with pytest.raises(Exception) as raised:
        _ = config.model.checkpoint
    assert explain_error(raised.value, []) == (
        "model.checkpoint: the package no-such-thing is not installed; pip install no-such-thing"
    )


def test_a_missing_choice_lists_the_choices() -> None:
    """The strategies are those of the framework and those that an extension has added."""
    strategies = [path.stem for path in sorted(Path(CONF, "strategy").glob("*.yaml"))]
    assert {"ddp", "mirrored"} <= set(strategies)
    error = MissingConfigException("no such file", "strategy/horovod", [*strategies, "mine"])
    assert explain_error(error, ["single", "ddp"]) == "strategy=horovod: no such choice; there are single, ddp, mine"
    error = MissingConfigException("no such file", "data/cifar", ["digits", "mine"])
    assert explain_error(error, ["single"]) == "data=cifar: no such choice; there are digits, mine"


@pytest.mark.parametrize(
    ("raised", "exit_code", "printed"),
    [
        (UserError("a: wrong"), 2, "error: a: wrong\n"),
        (KeyboardInterrupt(), 130, "interrupted\n"),
        (Interrupted(15), 143, "interrupted: stopped by SIGTERM\n"),
    ],
)
def test_exit_codes(raised: BaseException, exit_code: int, printed: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_info, report_user_errors(()):
        raise raised
    assert exit_info.value.code == exit_code
    assert capsys.readouterr().err == printed


def test_the_environment_is_restored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HYDRA_FULL_ERROR", raising=False)
    with report_user_errors(()):
        assert os.environ["HYDRA_FULL_ERROR"] == "1"
    assert "HYDRA_FULL_ERROR" not in os.environ


def test_a_misspelt_key_gets_a_suggestion() -> None:
    for name, suggestion in (
        ("trian.steps", "train.steps"),
        ("steps", "train.steps"),
        ("batch_size", "train.global_batch_size"),
    ):
        text = explain_error(ConfigAttributeError(f"Could not override '{name}'.\nKey is not in struct"), [])
        assert text.startswith(f"{name}: no such key here; did you mean {suggestion}"), text
    assert "did you mean" not in explain_error(ConfigAttributeError("Could not override 'xyzzy'."), [])


@pytest.mark.parametrize(("rank", "expected_pauses"), [("0", []), ("1", [FIRST_ERROR_SECONDS])])
def test_later_ranks_of_torchrun_report_after_the_first_rank(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], rank: str, expected_pauses: list[float]
) -> None:
    """torchrun ends the later ranks while they wait. A later rank that fails alone reports its error after the wait."""
    pauses: list[float] = []
    monkeypatch.setenv("LOCAL_RANK", rank)
    monkeypatch.setattr(time, "sleep", pauses.append)
    with pytest.raises(SystemExit) as exit_info, report_user_errors(()):
        raise UserError("a: wrong")
    assert (exit_info.value.code, pauses) == (2, expected_pauses)
    assert capsys.readouterr().err == "error: a: wrong\n"


JOB = "is_sweep_job() and describe_job()"
SWEEP = """
import sys
import hydra
from common.config.command_line import describe_job, is_sweep_job, list_arguments_without, run_command, run_job
from common.config.compose import CONF
from common.errors import UserError

@hydra.main(version_base="1.3", config_path=CONF, config_name="train")
@run_job(["single"])
def main(composed):
    if composed.train.seed == 2:
        raise UserError("two: is wrong")
    if composed.train.seed == 4:
        sys.exit(143)
    print(is_sweep_job() and describe_job())

with run_command(["single"]):
    main()
"""


@pytest.mark.slow
def test_a_sweep_continues_after_a_failed_job(tmp_path: Path) -> None:
    done = run_sweep(tmp_path, "train.steps=9", "-m", "train.seed=1,2,3")
    assert done.stdout.splitlines() == ["job 0: seed=1", "seed=1", "job 1: seed=2", "job 2: seed=3", "seed=3"]
    assert done.stderr.splitlines() == ["error: two: is wrong", "error: 1 of the sweep's jobs failed: seed=2"]
    assert done.returncode == 1


@pytest.mark.slow
def test_a_sweep_ends_with_an_interrupted_job(tmp_path: Path) -> None:
    done = run_sweep(tmp_path, "-m", "train.seed=4,1")
    assert (done.returncode, done.stdout) == (143, "job 0: seed=4\n")


@pytest.mark.slow
def test_a_single_job_is_not_a_sweep(tmp_path: Path) -> None:
    assert run_sweep(tmp_path, "train.seed=1").stdout == "False\n"
    assert run_sweep(tmp_path, "train.seed=2").stderr == "error: two: is wrong\n"


@pytest.mark.slow
def test_arguments_without_some_keys(tmp_path: Path) -> None:
    """The arguments of a job of a sweep have the values of the job."""
    flags = ["--config-dir", str(tmp_path)]
    overrides = ["strategy=ddp", "cluster=hosts", "+cluster.x=1", "run_name='a b'", "run_dir=x", "train.max_restarts=1"]
    done = run_sweep(tmp_path, *overrides, *flags, printed=ARGUMENTS)
    assert done.stdout == f"{[*flags, 'strategy=ddp', overrides[3]]}\n", done.stderr
    swept = run_sweep(tmp_path, "-m", "train.seed=1,3", "strategy=ddp", printed=ARGUMENTS)
    assert swept.stdout.splitlines()[1::2] == [f"['train.seed={seed}', 'strategy=ddp']" for seed in (1, 3)]


ARGUMENTS = "list_arguments_without('cluster', 'run_dir', 'train.max_restarts')"


def run_sweep(folder: Path, *arguments: str, printed: str = "") -> subprocess.CompletedProcess[str]:
    (folder / "sweep.py").write_text(SWEEP.replace(JOB, printed or JOB))
    command = [sys.executable, "sweep.py", *arguments]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True)
