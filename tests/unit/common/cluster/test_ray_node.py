import signal
import subprocess
from pathlib import Path

import pytest

from common.cluster.ray_node import NodeActor
from tests.conftest import ROOT

MODULE = """
import os, sys, time
unset = [os.environ.get(name) for name in ("OMP_NUM_THREADS", "SLURM_PROCID")]
print("said", sys.argv[1:], os.getcwd(), os.environ["ITS"], *unset, flush=True)
print("an error", file=sys.stderr, flush=True)
if "wait" in sys.argv:
    time.sleep(60)
sys.exit(3)
"""


@pytest.fixture
def environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    (tmp_path / "its_module.py").write_text(MODULE)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("SLURM_PROCID", "1")  # srun has started Ray on the nodes
    return {"PYTHONPATH": f"{ROOT}:{tmp_path}", "ITS": "value"}


def test_it_yields_what_the_command_prints_and_its_exit_code(tmp_path: Path, environment: dict[str, str]) -> None:
    output = list(NodeActor().run("its_module", ["a=1"], str(tmp_path), environment))
    assert sorted(output[:-1]) == [(False, f"said ['a=1'] {tmp_path} value None None\n"), (True, "an error\n")]
    assert output[-1] == 3


def test_a_line_that_is_no_text_does_not_end_the_others(tmp_path: Path, environment: dict[str, str]) -> None:
    (tmp_path / "its_module.py").write_text("import os\nos.write(1, b'\\xff\\n')\nprint('more')")
    output = list(NodeActor().run("its_module", [], str(tmp_path), environment))
    assert output == [(False, "\N{REPLACEMENT CHARACTER}\n"), (False, "more\n"), 0]


def test_a_signal_reaches_the_command(tmp_path: Path, environment: dict[str, str]) -> None:
    node = NodeActor()
    output = node.run("its_module", ["wait"], str(tmp_path), environment)
    lines = [next(output), next(output)]
    assert {is_error for is_error, _ in lines} == {True, False}  # type: ignore[misc]
    node.stop(signal.SIGTERM)
    assert list(output) == [143]


def test_a_signal_before_the_start_reaches_it_too(tmp_path: Path, environment: dict[str, str]) -> None:
    node = NodeActor()
    node.stop(signal.SIGTERM)
    assert list(node.run("its_module", ["wait"], None, environment))[-1] == 143


def test_a_directory_that_the_node_lacks(tmp_path: Path) -> None:
    output = list(NodeActor().run("its_module", [], str(tmp_path / "none"), {}))
    error = f"error: {tmp_path / 'none'}: no such directory on this node; start in a directory that all nodes have\n"
    assert output == [(True, error), 2]


def test_the_command_is_of_a_group_of_its_own(tmp_path: Path, environment: dict[str, str]) -> None:
    """The whole group can then be ended, and Ctrl-C reaches only the driver."""
    node = NodeActor()
    output = node.run("its_module", ["wait"], str(tmp_path), environment)
    next(output)
    assert isinstance(node.child, subprocess.Popen)
    status = Path(f"/proc/{node.child.pid}/stat").read_text().rpartition(")")[2].split()
    assert int(status[2]) == node.child.pid  # the process group
    node.stop(signal.SIGKILL)
    assert list(output)[-1] == 137
