"""The model pairs of examples/ in seven strategies and both precisions. `make bench-parity` runs it, for minutes."""

from pathlib import Path

import pytest

from common.compare.verdict import compare_runs
from tests.parity.conftest import EXAMPLES, OF_TESTS, Planned, Runs, make_overrides, train
from tests.parity.test_parity import TOLERANCES, find_violations

STRATEGY_NAMES = (
    "torch-single",
    "torch-ddp-3",
    "tf-single",
    "tf-mirrored-2",
    "torch-dp-2",
    "torch-ddp-2",
    "tf-multiworker-2",
)
# A ReLU whose input is 0 except for rounding makes the curves diverge: see docs/parity.md, Long runs.
SMOOTH = {"resnet": ("++model.arguments={activation: silu}",)}
# The gradient of the bias of a key is 0. Adam scales its rounding errors to steps of the full learning rate.
WITHOUT_GRADIENT = {"hf": "k_lin.bias"}

pytestmark = pytest.mark.bench


@pytest.mark.parametrize("precision", ["float32", "float64"])
@pytest.mark.parametrize("example", [example for example in EXAMPLES if example not in OF_TESTS])
def test_every_strategy(example: str, precision: str, tmp_path: Path) -> None:
    runs, settings = Runs(tmp_path), make_overrides(tmp_path, example, precision)
    if precision == "float32":
        settings = (*settings, *SMOOTH.get(example, ()))
    train({runs.path(example, name): Planned(name, settings) for name in STRATEGY_NAMES})
    ignored = WITHOUT_GRADIENT.get(example, "") if precision == "float32" else ""
    pairs = compare_runs(runs.paths(example, STRATEGY_NAMES), TOLERANCES).pairs
    assert len(pairs) == len(STRATEGY_NAMES) * (len(STRATEGY_NAMES) - 1) / 2
    assert {pair.steps for pair in pairs} == {30}
    assert not [violation for pair in pairs for violation in find_violations(pair, ignored)]
