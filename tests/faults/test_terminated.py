"""SIGTERM, as a preempted machine sends it, at any moment of a run."""

import json
import time
from pathlib import Path
from typing import Any

import pytest

from common.run.checkpoint import find_newest_checkpoint
from common.training.rows import read_rows
from tests.conftest import wait_until
from tests.faults.conftest import (
    DDP,
    MIRRORED,
    MULTIWORKER,
    ROUND,
    SYNCHRONOUS,
    Measured,
    Start,
    assert_undisturbed,
    terminate,
)

pytestmark = pytest.mark.faults
MATRIX = pytest.mark.matrix
TORCH_SERVERS, TF_SERVERS = ("torch", *SYNCHRONOUS), ("tf", *SYNCHRONOUS)


@pytest.mark.parametrize(
    "kind",
    [DDP, MIRRORED, *(pytest.param(kind, marks=MATRIX) for kind in (MULTIWORKER, TORCH_SERVERS, TF_SERVERS))],
    ids=lambda kind: f"{kind[0]}-{kind[1].partition('=')[2]}",
)
@pytest.mark.survives("SIGTERM in training, started again with `resume=auto`")
def test_it_saves_its_step_and_is_resumed(
    start: Start, undisturbed: list[dict[str, Any]], moment: int, measured: Measured, kind: tuple[str, ...]
) -> None:
    run = start(*kind).at(moment)
    terminate(run)
    checkpoint = find_newest_checkpoint(run.run_dir)
    reached = run.step
    assert checkpoint is not None and checkpoint.position.step == reached >= moment
    again = start(*kind, "resume=auto", name=run.run_dir.name)
    again.wait(lambda: again.step > reached)
    seconds = time.monotonic() - again.since
    assert_undisturbed(again, undisturbed, again.end())
    assert again.summary["resumed_from"] == reached
    measured(seconds, 0)


@pytest.mark.parametrize("framework", ["torch", pytest.param("tf", marks=MATRIX)])
@pytest.mark.survives("SIGTERM in an evaluation")
def test_in_an_evaluation(start: Start, framework: str) -> None:
    """Which takes long here; its step is saved, and the evaluation made up for."""
    long = ("model=bert_small", "data.validation_examples=4000", "train.steps=30", "train.eval_every=20")
    run = start(framework, *long).at(20)
    time.sleep(1)
    terminate(run)
    checkpoint = find_newest_checkpoint(run.run_dir)
    assert checkpoint is not None and checkpoint.position.step == 20 and checkpoint.position.validation is None
    assert not read_rows(run.run_dir / "evals.jsonl")


@pytest.mark.parametrize("seconds", [0.5, *(pytest.param(seconds, marks=MATRIX) for seconds in (2, 4, 6, 8))])
@pytest.mark.parametrize("framework", ["torch", pytest.param("tf", marks=MATRIX)])
@pytest.mark.survives("SIGTERM at start-up")
def test_while_it_starts(start: Start, framework: str, seconds: float) -> None:
    """At any moment after the config is written; which part of the start-up it interrupts does not matter."""
    run = start(framework, "train.steps=1000000", name=f"starting-{framework}-{seconds}")
    wait_until(lambda: (run.run_dir / "config.yaml").exists(), 60)
    time.sleep(seconds + 0.4 * ROUND)
    terminate(run)


@pytest.mark.survives("SIGTERM in a cache build")
def test_while_it_builds_the_cache(start: Start, tmp_path: Path) -> None:
    corpus = tmp_path / "corpus.jsonl"
    with corpus.open("w") as file:
        for number in range(300_000):
            row = {"premise": f"Number {number} is here.", "hypothesis": f"{number} is not.", "label": number % 3}
            file.write(json.dumps(row) + "\n")
    data = ("data=files", f"data.train={corpus}", f"data.validation={corpus}", f"cache_dir={tmp_path / 'cache'}")
    run = start("torch", *data)
    wait_until(lambda: list((tmp_path / "cache").glob("tokens-*.partial")), 60)
    time.sleep(1)
    terminate(run)
    assert not list((tmp_path / "cache").glob("*.partial"))
