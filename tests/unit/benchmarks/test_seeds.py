"""Tests of the small runs that the verdicts on groups of seeds are measured with."""

import numpy as np
import pytest

from benchmarks.seeds import train as module
from benchmarks.seeds.train import FAULTS, Contestant, pair_values, train

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def few_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "STEPS", 20)
    monkeypatch.setattr(module, "BLOCK", 2)


def test_a_seed_decides_the_run_and_no_other_seed_does() -> None:
    runs = train(Contestant(), range(3))
    assert np.allclose(runs.losses[2], train(Contestant(), range(2, 3)).losses[0], rtol=1e-6)
    assert runs.losses.shape == (3, 20) and len({*runs.losses[:, 0].tolist()}) == 3


def test_every_fault_changes_the_curve_but_not_its_start() -> None:
    base = train(Contestant(), range(2))
    for name, fault in FAULTS.items():
        losses = train(fault, range(2)).losses
        assert np.abs(losses - base.losses).max() > 1e-5, name
        if not fault.wrong_labels:
            assert np.allclose(losses[:, 0], base.losses[:, 0]), "the same weights and the same batch"


def test_metrics_are_paired_by_seed() -> None:
    base = train(Contestant(), range(2))
    values = pair_values(base, train(FAULTS["weight decay dropped"], range(2)))
    assert {*values} == {"final_loss", "validation_loss", "accuracy"}
    assert np.array_equal(values["accuracy"].reference, base.metrics["accuracy"])
