"""SIGTERM, which a machine sends before its preemption, in each phase of a run."""

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
    RecordFigures,
    Start,
    assert_same_curve,
    terminate,
)

pytestmark = pytest.mark.faults
MATRIX = pytest.mark.matrix
TORCH_SERVERS, TF_SERVERS = ("torch", *SYNCHRONOUS), ("tf", *SYNCHRONOUS)


@pytest.mark.parametrize(
    "kind",
    [MIRRORED, *(pytest.param(kind, marks=MATRIX) for kind in (DDP, MULTIWORKER, TORCH_SERVERS, TF_SERVERS))],
    ids=lambda kind: f"{kind[0]}-{kind[1].partition('=')[2]}",
)
@pytest.mark.survives("SIGTERM in training, started again with `resume=auto`")
def test_a_terminated_run_saves_its_step_and_is_resumed(
    start: Start,
    reference_rows: list[dict[str, Any]],
    fault_step: int,
    record_figures: RecordFigures,
    kind: tuple[str, ...],
) -> None:
    run = start(*kind).wait_for_step(fault_step)
    terminate(run)
    checkpoint = find_newest_checkpoint(run.run_dir)
    reached = run.step
    assert checkpoint is not None and checkpoint.position.step == reached >= fault_step
    resumed = start(*kind, "resume=auto", name=run.run_dir.name)
    resumed.wait_for(lambda: resumed.step > reached)
    seconds = time.monotonic() - resumed.fault_at
    assert_same_curve(resumed, reference_rows, resumed.wait_for_end())
    assert resumed.summary["resumed_from"] == reached
    record_figures(seconds, 0)


@pytest.mark.parametrize("framework", ["torch", pytest.param("tf", marks=MATRIX)])
@pytest.mark.survives("SIGTERM in an evaluation")
def test_in_an_evaluation(start: Start, framework: str) -> None:
    """The step of the interrupted evaluation is saved. Resuming would repeat the evaluation."""
    corpus = ("data.train_examples=300", "data.validation_examples=4000")
    long_evaluation = ("model=bert_small", *corpus, "train.steps=30", "train.eval_every=2")
    run = start(framework, *long_evaluation).wait_for_step(2)
    time.sleep(1)  # The evaluation takes many times longer. Any moment between step 2 and its end is right.
    terminate(run)
    checkpoint = find_newest_checkpoint(run.run_dir)
    assert checkpoint is not None and checkpoint.position.step == 2 and checkpoint.position.validation is None
    assert not read_rows(run.run_dir / "evals.jsonl")


@pytest.mark.parametrize("seconds", [0.5, *(pytest.param(seconds, marks=MATRIX) for seconds in (2, 4, 6, 8))])
@pytest.mark.parametrize("framework", ["torch", pytest.param("tf", marks=MATRIX)])
@pytest.mark.survives("SIGTERM at start-up")
def test_while_it_starts(start: Start, framework: str, seconds: float) -> None:
    """Any moment after the config is written is right: every part of the start-up must stop."""
    run = start(framework, "train.steps=1000000", name=f"starting-{framework}-{seconds}")
    wait_until(lambda: (run.run_dir / "config.yaml").exists())
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
    wait_until(lambda: list((tmp_path / "cache").glob("tokens-*.partial")))
    time.sleep(1)  # any moment is right; after one second the build is usually still running
    terminate(run)
    assert not list((tmp_path / "cache").glob("*.partial"))
