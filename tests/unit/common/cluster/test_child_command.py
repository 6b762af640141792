import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT

MODULE = """
import sys, time
print(__name__, sys.argv[1:], flush=True)
time.sleep(60)
"""


def block() -> None:
    """Set the signal mask of commands of Ray's actors, and the ignored SIGHUP of a raylet that nohup started."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    signal.signal(signal.SIGHUP, signal.SIG_IGN)


@pytest.mark.parametrize("signum", [None, signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_it_runs_a_module_that_ends_with_its_parent_or_by_a_signal(tmp_path: Path, signum: int | None) -> None:
    (tmp_path / "its_module.py").write_text(MODULE)
    with subprocess.Popen(
        [sys.executable, "-m", "common.cluster.child_command", "its_module", "a=1"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env={"PYTHONPATH": f"{ROOT}:{tmp_path}"},
        start_new_session=True,
        preexec_fn=block,
    ) as child:
        assert child.stdin is not None and child.stdout is not None
        assert child.stdout.readline() == "__main__ ['a=1']\n"
        if signum is None:
            child.stdin.close()
        else:
            child.send_signal(signum)
        assert child.wait(20) == -(signum or signal.SIGKILL)
