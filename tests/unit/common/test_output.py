import os
import pty
import subprocess
import sys

import pytest

from tests.conftest import ROOT

SCRIPT = """
import sys, time
from common.output import survive_closed_output
survive_closed_output()
survive_closed_output()
print("first", flush=True)
sys.stdin.readline()
for _ in range(3):
    print("x" * 100_000)
    print("lost", file=sys.stderr, flush=True)
with open(sys.argv[1], "w") as file:
    file.write("done")
"""


def start(stdout: int, path: str) -> subprocess.Popen[bytes]:
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", SCRIPT, path]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=stdout, stderr=stdout, env=env)


@pytest.mark.parametrize("kind", ["pipe", "terminal"])
def test_nobody_reads_any_more(tmp_path_factory: pytest.TempPathFactory, kind: str) -> None:
    reading, writing = os.pipe() if kind == "pipe" else pty.openpty()
    path = tmp_path_factory.mktemp("output") / "done"
    process = start(writing, str(path))
    os.close(writing)
    assert os.read(reading, 5) == b"first"
    os.close(reading)
    process.communicate(b"\n", timeout=30)
    assert (process.returncode, path.read_text()) == (0, "done")


def test_what_is_read_arrives(tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.mktemp("output") / "done"
    process = start(subprocess.PIPE, str(path))
    output, errors = process.communicate(b"\n", timeout=30)
    assert (output.count(b"x"), errors.split()) == (300_000, [b"lost"] * 3)


def test_a_full_disk_is_an_error() -> None:
    process = start(os.open("/dev/full", os.O_WRONLY), "/dev/null")
    process.communicate(b"\n", timeout=30)
    assert process.returncode != 0
