"""The benchmark with its real contestants: each one survives its pauses, and no process is left at the end."""

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from common.bench.options import load_options
from examples.lstm import data as lstm
from tests.conftest import ROOT, SMALL_CORPUS, SMALL_MODEL, wait_until
from tests.unit.common.bench.test_contestant import find_processes

SCRIPTS = ["hf_trainer", "accelerate", "plain_ddp", "keras_fit", "plain_tf"]
LOCKSTEP = ["torch_ddp", "torch_core_8", "tf_multiworker"]
CUSTOM = ["custom_ddp", "custom_fit", "custom_tf"]
SHORT = ["bench.rounds=1", "bench.block_seconds=0.5", "bench.warmup_steps=2", "bench.reference=torch_ddp"]

pytestmark = pytest.mark.slow


def make_command(directory: Path, *overrides: str) -> list[str]:
    """Return the command of a short benchmark."""
    small = [*SMALL_CORPUS, *SMALL_MODEL, f"cache_dir={directory / 'cache'}", f"bench.output={directory / 'out'}"]
    return [sys.executable, "-m", "common.bench", *small, *SHORT, *overrides]


def read_log_ends(directory: Path) -> str:
    """Return the end of each contestant's log."""
    return "\n".join(f"{path.name}:\n{path.read_text()[-3000:]}" for path in sorted(directory.glob("*.log")))


ALL = ["tf_multiworker", *SCRIPTS, "link_rate", *(name for name in LOCKSTEP if name != "tf_multiworker")]


def test_every_script_has_a_contestant_here() -> None:
    options, _ = load_options([])
    assert {definition.script for definition in options.definitions.values() if definition.script} <= {
        options.definitions[name].script for name in (*ALL, *CUSTOM)
    }


def test_a_users_own_model_takes_its_turns(tmp_path: Path) -> None:
    """The examples have different lengths."""
    lstm.write(tmp_path)
    files = [f"data.{split}={tmp_path}/{split}.npz" for split in ("train", "validation")]
    factories = [
        f"model.{side}=examples.lstm.model_{name}:build" for side, name in (("torch", "torch"), ("tf", "keras"))
    ]
    model = ["model=custom", *factories, "model.prove=false", "data=arrays", *files]
    places = [f"cache_dir={tmp_path / 'cache'}", f"bench.output={tmp_path / 'out'}"]
    names = [f"bench.contestants=[{','.join(CUSTOM)}]", "bench.reference=custom_ddp"]
    command = [sys.executable, "-m", "common.bench", *model, *places, *SHORT, *names]
    completed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600)
    assert completed.returncode == 0, completed.stdout + completed.stderr + read_log_ends(tmp_path / "out")
    result = json.loads((tmp_path / "out" / "bench.json").read_text())
    assert [contestant["name"] for contestant in result["contestants"]] == CUSTOM
    assert all(contestant["examples_per_second"] > 0 for contestant in result["contestants"])


@pytest.mark.parametrize(
    "names",
    [
        pytest.param(["tf_multiworker", "link_rate", "torch_ddp"], id="some"),
        pytest.param(ALL, id="all", marks=pytest.mark.matrix),
    ],
)
def test_every_contestant_takes_its_turns(names: list[str], tmp_path: Path) -> None:
    """The first contestant is paused the longest, while all others start. Its workers must not time out."""
    command = make_command(tmp_path, f"bench.contestants=[{','.join(names)}]")
    completed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=900)
    assert completed.returncode == 0, completed.stdout + completed.stderr + read_log_ends(tmp_path / "out")
    result = json.loads((tmp_path / "out" / "bench.json").read_text())
    contestants = {contestant["name"]: contestant for contestant in result["contestants"]}
    assert set(contestants) == {*names} - {"link_rate"}
    for name, contestant in contestants.items():
        assert contestant["examples_per_second"] > 0 and contestant["tokens_per_second"] > 0
        assert (contestant["utilisation"] is None) == (name == "torch_core_8")
    assert not find_processes(tmp_path)


@pytest.mark.matrix  # CI interrupts contestants that only sleep
def test_nothing_is_left_after_an_interruption(tmp_path: Path) -> None:
    command = make_command(tmp_path, "bench.contestants=[torch_ddp,plain_ddp]", "bench.rounds=1000")
    output = tmp_path / "output"
    with output.open("w") as file:
        process = subprocess.Popen(command, cwd=ROOT, stdout=file, stderr=subprocess.PIPE, text=True)
    wait_until(lambda: "round 2 of 1000" in output.read_text() or process.poll() is not None, 600)
    assert len(find_processes(tmp_path)) > 4
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=180)
    assert (process.returncode, errors) == (130, "interrupted\n")
    assert not find_processes(tmp_path)
