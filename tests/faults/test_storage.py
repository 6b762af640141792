"""What a run writes and reads: checkpoints half written, full disks, changed data, places that are not its own."""

import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from common.run.checkpoint import find_newest_checkpoint, open_checkpoint
from common.training.rows import read_rows
from tests.conftest import wait_until
from tests.faults.conftest import (
    CHECKPOINT_EVERY,
    DDP,
    ROOT,
    ROUND,
    Measured,
    Start,
    assert_undisturbed,
    terminate,
)
from tests.unit.common.run.test_checkpoint import flip_a_byte, mix_steps, truncate

pytestmark = pytest.mark.faults

Mount = Callable[[int], Path]

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
def test_killed_while_it_writes_a_checkpoint(start: Start, measured: Measured) -> None:
    """At 20 random moments: what was finished is there, and what is there is whole."""
    run = start("torch", "train.steps=1", "train.checkpoint_every=null", "train.keep_checkpoints=2")
    assert run.end() and run.process.returncode == 0
    shutil.rmtree(run.run_dir / "checkpoints")
    command = [sys.executable, "-c", WRITER, str(run.run_dir)]
    moments = np.random.default_rng(ROUND).uniform(0, 0.3, 20)
    finished = 0
    for moment in moments:
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT) as writer:
            assert writer.stdout is not None
            finished = int(writer.stdout.readline())  # it is under way
            time.sleep(moment)
            writer.kill()
            finished = max([finished, *map(int, writer.stdout.read().split())])
        checkpoint = find_newest_checkpoint(run.run_dir)
        assert checkpoint is not None and checkpoint.position.step in (finished, finished + 1)
        state = checkpoint.load()
        assert (state.weights["a"] == checkpoint.position.step).all()
        assert (state.slots["exp_avg.a"] == checkpoint.position.step).all()
    measured(tried=len(moments))


@pytest.mark.parametrize(
    "damage",
    [flip_a_byte, *(pytest.param(damage, marks=pytest.mark.matrix) for damage in (truncate, mix_steps))],
    ids=lambda damage: damage.__name__,
)
@pytest.mark.survives("a checkpoint truncated, a byte of it flipped, files of two mixed")
def test_a_damaged_checkpoint(
    start: Start,
    undisturbed: list[dict[str, Any]],
    moment: int,
    measured: Measured,
    damage: Callable[[Path], str],
) -> None:
    run = start(*DDP).at(moment)
    wait_until(lambda: len(list((run.run_dir / "checkpoints").glob("step-*0"))) >= (2 if moment > 20 else 1))
    terminate(run)  # which saves another one
    *_, older, last = sorted((run.run_dir / "checkpoints").iterdir())
    before, kept = read_rows(run.run_dir / "metrics.jsonl"), open_checkpoint(older)
    problem = damage(last)
    refused = start(*DDP, f"resume={last}", name="of-a-damaged-one")
    said = refused.end(60)
    assert refused.process.returncode == 2 and said.count("\n") == 1
    assert f"{last}: {problem}" in said and "does not match its checksum" in said
    again = start(*DDP, "resume=auto", name=run.run_dir.name)
    seconds, lost = again.recover()
    said = again.end()
    assert f"{last}: {problem}" in said and "does not match its checksum" in said
    assert_undisturbed(again, undisturbed, said)
    assert again.summary["resumed_from"] == kept.position.step == len(before) - lost
    measured(seconds, lost)


@pytest.mark.survives("a disk that checkpoints fill")
def test_the_disk_is_full_while_it_trains(start: Start, mount: Mount, measured: Measured) -> None:
    """What was written before is intact, and once there is space the run is resumed."""
    run_dir = mount(24) / "run"
    run = start("torch", "train.checkpoint_every=5", "train.keep_checkpoints=99", f"run_dir={run_dir}")
    said = run.end()
    assert run.process.returncode == 1
    assert "No space left on device" in said.splitlines()[-1] and "Traceback" not in said
    assert [row["step"] for row in run.rows] == list(range(1, run.step + 1))
    checkpoint = find_newest_checkpoint(run_dir)
    assert checkpoint is not None and checkpoint.position.step >= 5
    assert not list((run_dir / "checkpoints").glob("*.partial"))
    shutil.rmtree(run_dir / "checkpoints" / "step-00000005")
    (run_dir / "summary.json").unlink(missing_ok=True)
    again = start("torch", "train.keep_checkpoints=1", "resume=auto", f"run_dir={run_dir}")
    seconds, lost = again.recover()
    said = again.end()
    assert again.process.returncode == 0, said
    assert [row["step"] for row in again.rows] == list(range(1, 61))
    measured(seconds, lost)


@pytest.mark.survives("a disk that something else fills, while metrics are written")
def test_the_disk_is_full_of_metrics(start: Start, mount: Mount) -> None:
    place = mount(12)
    run = start("torch", "train.checkpoint_every=null", "train.steps=1000000", f"run_dir={place / 'run'}").at(6)
    with contextlib.suppress(OSError), (place / "filler").open("wb") as filler:
        while True:
            filler.write(b"x" * 4096)
            filler.flush()
    said = run.end(60)
    assert run.process.returncode == 1
    assert "cannot be written (No space left on device)" in said and "Traceback" not in said, said
    assert [row["step"] for row in run.rows] == list(range(1, run.step + 1))


@pytest.mark.survives("a disk that the token cache fills")
def test_the_disk_is_full_of_the_cache(start: Start, mount: Mount) -> None:
    place = mount(1)
    run = start("torch", "data.train_examples=24000", f"cache_dir={place / 'cache'}")
    said = run.end()
    assert run.process.returncode == 2
    assert "cache_dir=" in said and "cannot be written" in said and said.count("\n") == 2, said
    assert not list((place / "cache").glob("tokens-*.partial"))


def contents(directory: Path) -> dict[str, bytes]:
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
    data = ("data=files", f"data.train={corpus}", f"data.validation={corpus}", f"cache_dir={tmp_path / 'cache'}")
    run = start(*DDP, *data, "train.steps=20")
    assert run.end() and run.process.returncode == 0
    saved = json.loads((run.run_dir / "checkpoints" / "step-00000020" / "state.json").read_text())["settings"]["data"]
    rows[7]["premise"] = "This is another."
    corpus.write_text("".join(json.dumps(row) + "\n" for row in rows))
    before = contents(run.run_dir)
    refused = start(*DDP, *data, "train.steps=30", "schedule.total_steps=20", "resume=auto", name=run.run_dir.name)
    said = refused.end(60)
    assert refused.process.returncode == 2
    told = re.search(r"\(fingerprint (\w+), not (\w+)\)", said)
    assert told and told[1] != told[2] == saved and "data.allow_change=true" in said
    assert contents(run.run_dir) == before
    allowed = ("data.allow_change=true", "resume=auto", "schedule.total_steps=20")
    again = start(*DDP, *data, "train.steps=30", *allowed, name=run.run_dir.name)
    said = again.end()
    assert again.process.returncode == 0, said
    assert [row["step"] for row in again.rows] == list(range(1, 31))


# Seen by all Python processes of a run: time.time() jumps an hour back or forth, every 0.2 s.
JUMPING = """
import time
real, start = time.time, time.monotonic()
time.time = lambda: real() + (-3600, 0, 3600)[int((time.monotonic() - start) * 5) % 3]
"""


@pytest.mark.survives("a clock that jumps")
def test_the_clock_jumps(
    start: Start, undisturbed: list[dict[str, Any]], moment: int, measured: Measured, tmp_path: Path
) -> None:
    (tmp_path / "sitecustomize.py").write_text(JUMPING)
    jumping = {"PYTHONPATH": f"{tmp_path}:{ROOT}"}
    run = start(*DDP, **jumping).at(moment)
    run.process.kill()
    run.end()
    for path in (run.run_dir / "checkpoints").rglob("*"):
        os.utime(path, (0, 0))
    again = start(*DDP, "resume=auto", name=run.run_dir.name, **jumping)
    seconds, lost = again.recover()
    assert_undisturbed(again, undisturbed, again.end())
    assert lost < 2 * CHECKPOINT_EVERY
    times = [row["seconds"] for row in again.rows]
    assert all(0 < after - before < 60 for before, after in zip(times, times[1:], strict=False))
    measured(seconds, lost)


@pytest.mark.survives("a read-only run directory")
def test_a_read_only_place(start: Start, mount: Mount) -> None:
    place = mount(1)
    subprocess.run(["mount", "-o", "remount,ro", str(place)], check=True)
    run = start("torch", f"run_dir={place / 'run'}")
    said = run.end(60)
    assert run.process.returncode == 2
    assert "run_dir=" in said and "cannot be written (Read-only file system)" in said and said.count("\n") == 1


@pytest.mark.survives("a read-only run directory")
def test_a_run_in_a_directory_that_has_become_read_only(start: Start, mount: Mount) -> None:
    place = mount(24)
    run = start("torch", "train.steps=12", "train.keep_checkpoints=1", f"run_dir={place / 'run'}")
    assert run.end() and run.process.returncode == 0
    subprocess.run(["mount", "-o", "remount,ro", str(place)], check=True)
    before = contents(place)
    again = start("torch", "resume=auto", f"run_dir={place / 'run'}")
    said = again.end(60)
    assert again.process.returncode == 2
    assert "run_dir=" in said and "cannot be written" in said and said.count("\n") == 1, said
    assert contents(place) == before


@pytest.mark.survives("two runs that are given the same `run_dir`")
def test_two_runs_of_one_directory(start: Start) -> None:
    run = start(*DDP, "train.steps=1000000", name="shared").at(5)
    second = start(*DDP, "resume=auto", name="shared")
    said = second.end(60)
    assert second.process.returncode == 2
    assert "in use by another run" in said and said.count("\n") == 1
    run.at(run.step + 5)
    third = start(*DDP, name="shared")
    said = third.end(60)
    assert third.process.returncode == 2
    assert "not empty" in said and said.count("\n") == 1
    run.at(run.step + 5)
