import subprocess
import sys

from common.cluster.processes import python as python_command
from tests.conftest import ROOT

CHILD = """
import time
from common.cluster.processes import die_with_parent
die_with_parent()
print("ready", flush=True)
time.sleep(60)
"""


def test_python_runs_a_module() -> None:
    assert python_command("a.b", "c") == [sys.executable, "-m", "a.b", "c"]


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
