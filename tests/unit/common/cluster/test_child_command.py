import signal
import subprocess
import sys
from pathlib import Path

from tests.conftest import ROOT

MODULE = """
import signal, sys, time
print(__name__, sys.argv[1:], signal.getsignal(signal.SIGINT) is signal.default_int_handler, flush=True)
time.sleep(60)
"""


def test_it_runs_a_module_that_ends_with_its_parent(tmp_path: Path) -> None:
    (tmp_path / "its_module.py").write_text(MODULE)
    ignoring = lambda: signal.signal(signal.SIGINT, signal.SIG_IGN)  # noqa: E731
    with subprocess.Popen(
        [sys.executable, "-m", "common.cluster.child_command", "its_module", "a=1"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={"PYTHONPATH": f"{ROOT}:{tmp_path}"},
        start_new_session=True,
        preexec_fn=ignoring,
    ) as child:
        assert child.stdin is not None and child.stdout is not None
        assert child.stdout.readline() == "__main__ ['a=1'] True\n"
        child.stdin.close()
        assert child.wait(20) == -9
