"""The benchmark with its real contestants: each of them survives being stopped, and none is left behind."""

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from common.bench.options import load_options
from tests.conftest import ROOT, SMALL_CORPUS, SMALL_MODEL, wait_until
from tests.unit.common.bench.test_contestant import find_processes

SCRIPTS = ["hf_trainer", "accelerate", "plain_ddp", "keras_fit", "plain_tf"]
OURS = ["torch_ddp", "torch_core_8", "tf_multiworker"]
SHORT = ["bench.rounds=1", "bench.block_seconds=0.5", "bench.warmup_steps=2", "bench.reference=torch_ddp"]

pytestmark = pytest.mark.slow


def bench(directory: Path, *overrides: str) -> list[str]:
    small = [*SMALL_CORPUS, *SMALL_MODEL, f"cache_dir={directory / 'cache'}", f"bench.output={directory / 'out'}"]
    return [sys.executable, "-m", "common.bench", *small, *SHORT, *overrides]


def ends_of_logs(directory: Path) -> str:
    return "\n".join(f"{path.name}:\n{path.read_text()[-3000:]}" for path in sorted(directory.glob("*.log")))


ALL = ["tf_multiworker", *SCRIPTS, "link_rate", *(name for name in OURS if name != "tf_multiworker")]


def test_every_script_has_a_contestant_here() -> None:
    options, _ = load_options([])
    assert {definition.script for definition in options.definitions.values() if definition.script} <= {
        options.definitions[name].script for name in ALL
    }


@pytest.mark.parametrize(
    "names",
    [
        pytest.param(["tf_multiworker", "accelerate", "plain_tf", "link_rate", "torch_ddp"], id="some"),
        pytest.param(ALL, id="all", marks=pytest.mark.matrix),
    ],
)
def test_every_contestant_takes_its_turns(names: list[str], tmp_path: Path) -> None:
    """The first to start is stopped the longest, while all others start: its workers must not give one another up."""
    command = bench(tmp_path, f"bench.contestants=[{','.join(names)}]")
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stdout + done.stderr + ends_of_logs(tmp_path / "out")
    result = json.loads((tmp_path / "out" / "bench.json").read_text())
    found = {each["name"]: each for each in result["contestants"]}
    assert set(found) == {*names} - {"link_rate"}
    for each in found.values():
        assert each["examples_per_second"] > 0 and each["tokens_per_second"] > 0
        assert (each["utilisation"] is None) == (each["name"] == "torch_core_8")
    assert not find_processes(tmp_path)


def test_nothing_is_left_after_an_interruption(tmp_path: Path) -> None:
    command = bench(tmp_path, "bench.contestants=[torch_ddp,hf_trainer]", "bench.rounds=1000")
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    wait_until(lambda: (tmp_path / "out" / "hf_trainer" / "metrics.jsonl").exists(), 300)
    time.sleep(3.0)  # into the rounds
    assert len(find_processes(tmp_path)) > 4
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert (process.returncode, errors) == (130, "interrupted\n")
    assert not find_processes(tmp_path)
