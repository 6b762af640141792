import gc
import subprocess
import sys
from pathlib import Path

import pytest

from common.cluster.processes import RUN_TOKEN, exit_if_interrupted, pause_garbage_collection, read_run_token
from tests.conftest import ROOT, Python, StartPython, wait_until

CHILD = """
import time
from common.cluster.processes import die_with_parent
die_with_parent()
print("ready", flush=True)
time.sleep(60)
"""


def test_a_child_ends_when_its_standard_input_closes() -> None:
    command = [sys.executable, "-c", CHILD]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=ROOT, start_new_session=True
    ) as child:
        assert child.stdin is not None and child.stdout is not None
        assert child.stdout.readline() == b"ready\n"
        assert child.poll() is None
        child.stdin.close()
        assert child.wait(20) == -9


PARENT = f"""
import os, subprocess, sys
from common.cluster.processes import open_temporary_directory
with open_temporary_directory() as (directory, variable):
    (directory / "rendezvous").touch()
    child = subprocess.Popen(
        [sys.executable, "-c", {CHILD!r}],
        stdin=subprocess.PIPE,
        env={{**os.environ, **variable}},
        start_new_session=True,
    )
    print(directory, flush=True)
    child.wait()
"""


def test_the_temporary_directory_of_a_killed_command_is_removed(start_python: StartPython) -> None:
    command = start_python(PARENT)
    assert command.stdout is not None
    lines = {command.stdout.readline().strip() for _ in range(2)}  # of the command and its child, in any order
    (directory,) = lines - {"ready"}
    assert Path(directory, "rendezvous").exists()
    command.kill()
    wait_until(lambda: not Path(directory).exists())


def test_nothing_is_searched_for_garbage_while_a_framework_is_imported_and_what_is_imported_never() -> None:
    frozen = gc.get_freeze_count()
    try:
        with pytest.raises(ImportError), pause_garbage_collection():
            assert not gc.isenabled()
            raise ImportError
        assert gc.isenabled()
        assert gc.get_freeze_count() > frozen
    finally:
        gc.unfreeze()


def test_an_interrupted_process_ends_at_once_and_another_does_not(python: Python) -> None:
    code = "import sys\nfrom common.cluster.processes import exit_if_interrupted as end\nprint(end(int(sys.argv[1])))"
    assert exit_if_interrupted(0) == 0 and exit_if_interrupted(2) == 2
    assert python(code, 128) == "128\n"
    ended = subprocess.run([sys.executable, "-c", code, "143"], cwd=ROOT, capture_output=True, text=True)
    assert (ended.returncode, ended.stdout, ended.stderr) == (143, "", "")


def test_a_run_without_a_token_warns(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setenv(RUN_TOKEN, "secret")
    assert read_run_token() == "secret"
    assert not caplog.messages
    monkeypatch.delenv(RUN_TOKEN)
    assert read_run_token() == ""
    assert "LOCKSTEP_TOKEN is not set, so any process" in caplog.text
