"""Training runs of the sides that end early."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from common.diagnose.arguments import SideArguments
from common.diagnose.train_sides import list_failed_sides, read_nonfinite_loss

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
