"""What to do about each cause: the same in the program and in docs/diagnosis.md, and for all that can be planted."""

import re
from pathlib import Path

import pytest

from benchmarks.diagnose.plants import plants
from common.diagnose.findings import Cause
from common.diagnose.remedies import GROUPS, REMEDIES, remedy_of

DOCUMENT = Path(__file__).parents[4] / "docs/diagnosis.md"


def test_the_document_has_the_same() -> None:
    table = DOCUMENT.read_text().partition("## Causes")[2].partition("## Planted")[0]
    rows = [[cell.strip() for cell in line.split(" | ")] for line in table.splitlines() if line.startswith("| `")]
    assert {" ".join(re.findall(r"`(\w+)`", names)): remedy for names, _, remedy, *_ in rows} == GROUPS


PLANTED = {cause for plant in plants() if not plant.name.startswith("config") for cause in plant.causes}
SETTINGS = {"padding"}  # of layers


@pytest.mark.parametrize("cause", sorted(PLANTED - SETTINGS))
def test_there_is_one_for_whatever_is_planted(cause: str) -> None:
    assert cause in REMEDIES


@pytest.mark.parametrize(
    ("stage", "cause", "remedy"),
    [
        ("config", "optimizer.beta2", "set the key alike on both sides"),
        ("activations", "padding", "set it alike in both layers"),
        ("loss", "huber_loss", "compare the loss functions: each returns one loss for each example"),
        ("loss", "not_finite", REMEDIES["not_finite"]),
        ("state", "unexplained", None),
    ],
)
def test_causes_without_one_of_their_own(stage: str, cause: str, remedy: str | None) -> None:
    assert remedy_of(Cause(cause, "b", stage, "", "", True)) == remedy
