"""Trainings that end early."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from common.diagnose.arguments import SideArguments
from common.diagnose.side_run import not_finite, which_failed

SIDES = [SideArguments(name, "torch", "single", []) for name in "ab"]


def ended(*codes: int | None) -> list[Any]:
    return [SimpleNamespace(poll=lambda code=code: code) for code in codes]


@pytest.mark.parametrize(
    ("error", "found"),
    [
        ("step 2: the loss is nan; training examples [9, 3]", "step 2: the loss is nan"),
        ("step 12: the loss is -inf; training examples [9, 3]", "step 12: the loss is -inf"),
        ("CUDA out of memory", ""),
        (None, ""),
    ],
)
def test_a_loss_that_is_not_finite_is_no_failure(error: str | None, found: str, tmp_path: Path) -> None:
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "summary.json").write_text(json.dumps({"error": error}))
    assert not_finite(SIDES[1], tmp_path) == found
    assert which_failed(SIDES, ended(None, 1), tmp_path) == ([] if found else [SIDES[1]])
    assert which_failed(SIDES, ended(1, 0), tmp_path) == [SIDES[0]], "it has no summary"
