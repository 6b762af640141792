"""Faults of storage: incomplete checkpoints, full disks, changed data, read-only and shared run directories."""

import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from common.run.checkpoint import find_newest_checkpoint, open_checkpoint
from common.training.rows import read_rows
from tests.conftest import SMALL_MODEL, wait_until
from tests.faults.conftest import (
    CHECKPOINT_EVERY,
    DDP,
    ROOT,
    ROUND,
    TEXT,
    RecordFigures,
    Start,
    assert_same_curve,
    terminate,
)
from tests.unit.common.run.test_checkpoint import flip_a_byte, mix_steps, truncate

pytestmark = pytest.mark.faults

Mount = Callable[[int], Path]

# Saves checkpoints until it is killed, and prints the step of each complete one.
WRITER = """
import sys
from pathlib import Path
import numpy as np
from common.run.checkpoint import find_newest_checkpoint
from common.run.checkpoint_writer import CheckpointWriter
from common.run.context import open_context
from common.training.state import Position, State

run_dir = Path(sys.argv[1])
checkpoint = find_newest_checkpoint(run_dir)
checkpoints = CheckpointWriter(open_context(run_dir, "torch", True))
first = checkpoint.position.step if checkpoint else 0
for step in range(first + 1, first + 1000):
    state = State({"a": np.full(2_000_000, step, np.float32)}, {"exp_avg.a": np.full(2_000_000, step, np.float32)})
    checkpoints.save(state, Position(step, step))
    checkpoints.finish()
    print(step, flush=True)
"""


@pytest.mark.survives("SIGKILL while a checkpoint is written")
def test_killed_while_it_writes_a_checkpoint(start: Start, record_figures: RecordFigures) -> None:
    """Kill the writer at 8 random moments. Every finished checkpoint exists, and every existing one is complete."""
    run = start("torch", "train.steps=1", "train.checkpoint_every=null", "train.keep_checkpoints=2")
    assert run.wait_for_end() and run.process.returncode == 0
    shutil.rmtree(run.run_dir / "checkpoints")
    command = [sys.executable, "-c", WRITER, str(run.run_dir)]
    moments = np.random.default_rng(ROUND).uniform(0, 0.3, 8)
    finished = 0
    for moment in moments:
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT) as writer:
            assert writer.stdout is not None
            finished = int(writer.stdout.readline())  # the writer is running
            time.sleep(moment)  # any moment is right
            writer.kill()
            finished = max([finished, *map(int, writer.stdout.read().split())])
        checkpoint = find_newest_checkpoint(run.run_dir)
        assert checkpoint is not None and checkpoint.position.step in (finished, finished + 1)
        state = checkpoint.load()
        assert (state.weights["a"] == checkpoint.position.step).all()
        assert (state.slots["exp_avg.a"] == checkpoint.position.step).all()
    record_figures(tried=len(moments))


@pytest.mark.parametrize(
    "damage",
    [flip_a_byte, *(pytest.param(damage, marks=pytest.mark.matrix) for damage in (truncate, mix_steps))],
    ids=lambda damage: damage.__name__,
)
@pytest.mark.survives("a checkpoint truncated, a byte of it flipped, files of two mixed")
def test_a_damaged_checkpoint(
    start: Start,
    reference_rows: list[dict[str, Any]],
    fault_step: int,
    record_figures: RecordFigures,
    damage: Callable[[Path], str],
) -> None:
    run = start("torch").wait_for_step(fault_step)
    wait_until(lambda: len(list((run.run_dir / "checkpoints").glob("step-*0"))) >= (2 if fault_step > 20 else 1))
    terminate(run)  # the run saves another checkpoint
    *_, previous, last = sorted((run.run_dir / "checkpoints").iterdir())
    rows, checkpoint = read_rows(run.run_dir / "metrics.jsonl"), open_checkpoint(previous)
    problem = damage(last)
    refused = start("torch", f"resume={last}", name="from-a-damaged-checkpoint")
    output = refused.wait_for_end()
    assert refused.process.returncode == 2 and output.count("\n") == 1
    assert f"{last}: {problem}" in output and "does not match its checksum" in output
    resumed = start("torch", "resume=auto", name=run.run_dir.name)
    seconds, lost = resumed.wait_for_recovery()
    output = resumed.wait_for_end()
    assert f"{last}: {problem}" in output and "does not match its checksum" in output
    assert_same_curve(resumed, reference_rows, output)
    assert resumed.summary["resumed_from"] == checkpoint.position.step == len(rows) - lost
    record_figures(seconds, lost)


@pytest.mark.survives("a disk that checkpoints fill")
def test_the_disk_is_full_while_it_trains(start: Start, mount: Mount, record_figures: RecordFigures) -> None:
    """The files written before are intact. The run is resumed once there is space."""
    run_dir = mount(24) / "run"
    run = start("torch", *TEXT, "train.checkpoint_every=5", "train.keep_checkpoints=99", f"run_dir={run_dir}")
    output = run.wait_for_end()
    assert run.process.returncode == 1
    assert "No space left on device" in output.splitlines()[-1] and "Traceback" not in output
    assert [row["step"] for row in run.rows] == list(range(1, run.step + 1))
    checkpoint = find_newest_checkpoint(run_dir)
    assert checkpoint is not None and checkpoint.position.step >= 5
    assert not list((run_dir / "checkpoints").glob("*.partial"))
    shutil.rmtree(run_dir / "checkpoints" / "step-00000005")
    (run_dir / "summary.json").unlink(missing_ok=True)
    resumed = start("torch", *TEXT, "train.keep_checkpoints=1", "resume=auto", f"run_dir={run_dir}")
    seconds, lost = resumed.wait_for_recovery()
    output = resumed.wait_for_end()
    assert resumed.process.returncode == 0, output
    assert [row["step"] for row in resumed.rows] == list(range(1, 61))
    record_figures(seconds, lost)


@pytest.mark.survives("a disk that something else fills, while metrics are written")
def test_the_disk_is_full_of_metrics(start: Start, mount: Mount) -> None:
    disk = mount(12)
    run = start("torch", "train.checkpoint_every=null", "train.steps=1000000", f"run_dir={disk / 'run'}").wait_for_step(
        6
    )
    with contextlib.suppress(OSError), (disk / "filler").open("wb") as filler:
        while True:
            filler.write(b"x" * 4096)
            filler.flush()
    output = run.wait_for_end()
    assert run.process.returncode == 1
    assert "cannot be written (No space left on device)" in output and "Traceback" not in output, output
    assert [row["step"] for row in run.rows] == list(range(1, run.step + 1))


@pytest.mark.survives("a disk that the token cache fills")
def test_the_disk_is_full_of_the_cache(start: Start, mount: Mount) -> None:
    disk = mount(1)
    run = start("torch", *TEXT, "data.train_examples=24000", f"cache_dir={disk / 'cache'}")
    output = run.wait_for_end()
    assert run.process.returncode == 2
    assert "cache_dir=" in output and "cannot be written" in output and output.count("\n") == 2, output
    assert not list((disk / "cache").glob("tokens-*.partial"))


def read_files(directory: Path) -> dict[str, bytes]:
    """Return the contents of all files below a directory, except locks."""
    return {
        str(path.relative_to(directory)): path.read_bytes()
        for path in directory.rglob("*")
        if path.is_file() and path.name != ".lock"
    }


@pytest.mark.survives("a corpus file that changes between run and resume")
def test_the_corpus_changes(start: Start, tmp_path: Path) -> None:
    corpus = tmp_path / "corpus.jsonl"
    rows = [{"premise": f"This is {n}.", "hypothesis": f"{n} it is.", "label": n % 2} for n in range(200)]
    corpus.write_text("".join(json.dumps(row) + "\n" for row in rows))
    files = ("data=files", f"data.train={corpus}", f"data.validation={corpus}", f"cache_dir={tmp_path / 'cache'}")
    data = (*files, *SMALL_MODEL)
    run = start("torch", *data, "train.steps=20")
    assert run.wait_for_end() and run.process.returncode == 0
    saved = json.loads((run.run_dir / "checkpoints" / "step-00000020" / "state.json").read_text())["settings"]["data"]
    rows[7]["premise"] = "This is another."
    corpus.write_text("".join(json.dumps(row) + "\n" for row in rows))
    before = read_files(run.run_dir)
    refused = start("torch", *data, "train.steps=30", "schedule.total_steps=20", "resume=auto", name=run.run_dir.name)
    output = refused.wait_for_end()
    assert refused.process.returncode == 2
    fingerprints = re.search(r"\(fingerprint (\w+), not (\w+)\)", output)
    assert fingerprints and fingerprints[1] != fingerprints[2] == saved and "data.allow_change=true" in output
    assert read_files(run.run_dir) == before
    allowed = ("data.allow_change=true", "resume=auto", "schedule.total_steps=20")
    resumed = start("torch", *data, "train.steps=30", *allowed, name=run.run_dir.name)
    output = resumed.wait_for_end()
    assert resumed.process.returncode == 0, output
    assert [row["step"] for row in resumed.rows] == list(range(1, 31))


# In all Python processes of a run, time.time() jumps an hour back or forth every 0.2 s.
JUMPING = """
import time
real, start = time.time, time.monotonic()
time.time = lambda: real() + (-3600, 0, 3600)[int((time.monotonic() - start) * 5) % 3]
"""


@pytest.mark.survives("a clock that jumps")
def test_the_clock_jumps(
    start: Start, reference_rows: list[dict[str, Any]], fault_step: int, record_figures: RecordFigures, tmp_path: Path
) -> None:
    (tmp_path / "sitecustomize.py").write_text(JUMPING)
    jumping = {"PYTHONPATH": f"{tmp_path}:{ROOT}"}
    run = start(*DDP, **jumping).wait_for_step(fault_step)
    run.process.kill()
    run.wait_for_end()
    for path in (run.run_dir / "checkpoints").rglob("*"):
        os.utime(path, (0, 0))
    resumed = start(*DDP, "resume=auto", name=run.run_dir.name, **jumping)
    seconds, lost = resumed.wait_for_recovery()
    assert_same_curve(resumed, reference_rows, resumed.wait_for_end())
    assert lost < 2 * CHECKPOINT_EVERY
    times = [row["seconds"] for row in resumed.rows]
    # A jump of the clock would show as an hour. A step of a busy machine takes much less than half an hour.
    assert all(0 < after - before < 1800 for before, after in pairwise(times))
    record_figures(seconds, lost)


@pytest.mark.survives("a read-only run directory")
def test_a_run_on_a_read_only_disk(start: Start, mount: Mount) -> None:
    disk = mount(1)
    subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
    run = start("torch", f"run_dir={disk / 'run'}")
    output = run.wait_for_end()
    assert run.process.returncode == 2
    assert "run_dir=" in output and "cannot be written (Read-only file system)" in output and output.count("\n") == 1


@pytest.mark.survives("a read-only run directory")
def test_a_run_in_a_directory_that_has_become_read_only(start: Start, mount: Mount) -> None:
    disk = mount(24)
    run = start("torch", "train.steps=12", "train.keep_checkpoints=1", f"run_dir={disk / 'run'}")
    assert run.wait_for_end() and run.process.returncode == 0
    subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
    files = read_files(disk)
    resumed = start("torch", "resume=auto", f"run_dir={disk / 'run'}")
    output = resumed.wait_for_end()
    assert resumed.process.returncode == 2
    assert "run_dir=" in output and "cannot be written" in output and output.count("\n") == 1, output
    assert read_files(disk) == files


@pytest.mark.survives("two runs with the same `run_dir`")
def test_two_runs_of_one_directory(start: Start) -> None:
    run = start("torch", "train.steps=1000000", name="shared").wait_for_step(5)
    second = start("torch", "resume=auto", name="shared")
    output = second.wait_for_end()
    assert second.process.returncode == 2
    assert "in use by another run" in output and output.count("\n") == 1
    run.wait_for_step(run.step + 5)
    third = start("torch", name="shared")
    output = third.wait_for_end()
    assert third.process.returncode == 2
    assert "not empty" in output and output.count("\n") == 1
    run.wait_for_step(run.step + 5)
