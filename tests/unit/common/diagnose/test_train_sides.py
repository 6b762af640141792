"""Training runs of the sides that end early."""

import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from common.config.compose import collect_values, parse_config
from common.diagnose import train_sides
from common.diagnose.arguments import SideArguments
from common.diagnose.side_run import SideRun
from common.diagnose.stages.config import list_values_of_a
from common.diagnose.train_sides import list_failed_sides, read_nonfinite_loss, replace_values
from common.errors import UserError
from tests.conftest import Compose

SIDES = [SideArguments(name, "torch", "single", []) for name in "ab"]


def make_processes(*exit_codes: int | None) -> list[Any]:
    """Return processes that report these exit codes; None for one that is running."""
    return [SimpleNamespace(poll=lambda code=code: code) for code in exit_codes]


FACTS = {"framework": "torch", "strategy": "ddp", "replicas": 2, "status": "failed"}


@pytest.mark.parametrize(
    ("error", "nonfinite_loss"),
    [
        ("step 2: the loss is nan; training examples [9, 3]", "step 2: the loss is nan"),
        ("step 12: the loss is -inf; training examples [9, 3]", "step 12: the loss is -inf"),
        ("CUDA out of memory", ""),
    ],
)
def test_a_nonfinite_loss_is_no_failure(error: str, nonfinite_loss: str, tmp_path: Path) -> None:
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "summary.json").write_text(json.dumps({**FACTS, "error": error}))
    assert read_nonfinite_loss(tmp_path / "b") == nonfinite_loss
    assert list_failed_sides(SIDES, make_processes(None, 1), tmp_path) == ([] if nonfinite_loss else [SIDES[1]])
    assert list_failed_sides(SIDES, make_processes(1, 0), tmp_path) == [SIDES[0]], "without a summary a run has failed"


@pytest.mark.parametrize(
    ("overrides_of_a", "overrides_of_b"),
    [
        (["optimizer=adam", "optimizer.beta1=0.5"], ["optimizer=sgd", "optimizer.nesterov=true"]),
        (["optimizer=sgd"], ["optimizer=sgd", "optimizer.momentum=0.25", "run_dir=runs/b"]),
        (["optimizer=adafactor"], ["optimizer=muon", "optimizer.ns_steps=4"]),
        (["schedule=constant"], ["schedule=cosine", "schedule.warmup_steps=3", "optimizer.learning_rate=0.25"]),
    ],
)
def test_a_side_is_trained_again_with_the_values_of_the_other(
    overrides_of_a: list[str], overrides_of_b: list[str], composed: Compose
) -> None:
    a, b = (
        cast(SideRun, SimpleNamespace(config=parse_config(composed(*overrides))))
        for overrides in (overrides_of_a, overrides_of_b)
    )
    overrides = replace_values(overrides_of_b, list_values_of_a(a, b))
    assert collect_values(parse_config(composed(*overrides))) == collect_values(a.config)


@pytest.mark.parametrize("kept", ["", "output", "output/notes.txt"])
def test_a_refused_key_leaves_nothing(kept: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Something that was there before, or that somebody else put there meanwhile, is kept."""
    output = tmp_path / "output"
    if kept == "output":
        output.mkdir()

    def start(framework: str, overrides: list[str], log: Path) -> "subprocess.Popen[bytes]":
        script = "print('error: no such key'); raise SystemExit(2)"
        if log.name == "a.log":  # the other side may have begun its run
            (output / "a").mkdir()
            if kept == "output/notes.txt":
                (tmp_path / kept).touch()
            script = "import time; time.sleep(60)"
        with log.open("wb") as file:
            return subprocess.Popen([sys.executable, "-c", script], stdout=file, start_new_session=True)

    monkeypatch.setattr(train_sides, "start_training", start)
    sides = [SideArguments(name, "torch", "single", []) for name in ("a", "b")]
    with pytest.raises(UserError, match="b=torch:single"):
        train_sides.train_sides(sides, output)
    assert {*tmp_path.rglob("*")} == {output, tmp_path / kept} if kept else not output.exists()
