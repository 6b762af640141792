"""Remedies: the same in the program and in docs/diagnosis.md, and one for each cause that the benchmark plants."""

import re

import pytest

from benchmarks.diagnose.catalog import list_single_plants
from common.diagnose.findings import Cause
from common.diagnose.remedies import REMEDIES, REMEDY_GROUPS, find_remedy
from tests.conftest import ROOT

PLANTED_CAUSES = {
    cause for plant in list_single_plants() if not plant.name.startswith("config") for cause in plant.causes
}
LAYER_SETTINGS = {"padding"}


def test_the_document_lists_the_same_remedies() -> None:
    document = (ROOT / "docs/diagnosis.md").read_text()
    table = document.partition("## Causes")[2].partition("## Planted")[0]
    rows = [[cell.strip() for cell in line.split(" | ")] for line in table.splitlines() if line.startswith("| `")]
    assert {tuple(re.findall(r"`(\w+)`", names)): remedy for names, _, remedy, *_ in rows} == REMEDY_GROUPS


def test_every_planted_cause_has_a_remedy() -> None:
    assert REMEDIES.keys() >= PLANTED_CAUSES - LAYER_SETTINGS


@pytest.mark.parametrize(
    ("stage", "cause", "remedy"),
    [
        ("config", "optimizer.beta2", "set the key to the same value on both sides"),
        ("activations", "padding", "set the argument to the same value in both layers"),
        ("loss", "huber_loss", "compare the loss functions: each returns one loss for each example"),
        ("loss", "not_finite", REMEDIES["not_finite"]),
        ("state", "unexplained", None),
        ("activations", "code_between_layers", None),
    ],
)
def test_the_stage_decides_if_a_cause_has_no_remedy(stage: str, cause: str, remedy: str | None) -> None:
    assert find_remedy(Cause(cause, "b", stage, "", "", True)) == remedy
