"""Every pair of synchronous strategies has the same curve at every step, and every planted fault is seen."""

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from common.compare.verdict import RunPair, Tolerance, compare_runs
from common.data.atomic_directory import compute_checksum
from common.run.checkpoint import list_checkpoints
from common.run.checkpoint_state import OPTIMIZER_FILE
from common.training.rows import read_rows
from tests.parity.conftest import BERT, EXAMPLES, EXPERIMENTS, FAULTY, PAIRED, Runs

TOLERANCES = {
    "float32": Tolerance(loss=1e-5, grad_norm=1e-4),
    "float64": Tolerance(loss=1e-9, grad_norm=1e-9),
}
WEIGHTS = {"float32": 2e-5, "float64": 1e-9}
STEPS = dict.fromkeys((*BERT, *EXAMPLES), 14) | dict.fromkeys(("plateau64", "one_cycle64"), 10)


def find_violations(pair: RunPair, ignored: str = "") -> list[str]:
    """Return the ways in which a pair of runs exceeds the tolerances, at any step, in the evaluation or in the weights.

    Final weights whose names end with `ignored` are not compared.
    """
    violations = []
    if pair.first_step_beyond is not None:
        violations.append(f"curves diverge at step {pair.first_step_beyond}, by {pair.max_loss_difference:.1e} at most")
    if abs(pair.evaluation_loss_difference or 0) > TOLERANCES[pair.a.precision].loss:
        violations.append(f"evaluations differ by {pair.evaluation_loss_difference:.1e}")
    for name, difference in pair.metric_differences.items():
        if pair.a.precision == "float64" and not difference <= TOLERANCES["float64"].loss:
            violations.append(f"validation {name} differs by {difference:.1e}")
    a, b = (load_final_weights(run.path) for run in (pair.a, pair.b))
    assert a.keys() == b.keys()
    differences = {
        name: float(np.abs(a[name] - b[name]).max()) for name in a if not ignored or not name.endswith(ignored)
    }
    worst = max(differences, key=lambda name: differences[name])
    if differences[worst] > WEIGHTS[pair.a.precision]:
        violations.append(f"final {worst} differs by {differences[worst]:.1e}")
    print(
        f"{pair.a} | {pair.b}: loss {pair.max_loss_difference:.1e}, grad_norm {pair.max_grad_norm_difference:.1e}, "
        f"weights {differences[worst]:.1e}; {violations or 'lockstep'}"
    )
    return violations


def load_final_weights(run_dir: Path) -> dict[str, np.ndarray]:
    return load_file(run_dir / "model" / "model.safetensors")


def load_averages(run_dir: Path) -> dict[str, np.ndarray]:
    """Return the averages of the weights in the last checkpoint of a run."""
    slots = load_file(list_checkpoints(run_dir)[-1] / OPTIMIZER_FILE)
    return {name.removeprefix("average."): array for name, array in slots.items() if name.startswith("average.")}


def assert_lockstep(runs: Runs, experiment: str, strategies: Sequence[str], steps: int = 30) -> None:
    """Check that the runs of an experiment agree at all its steps and in their final weights."""
    comparison = compare_runs(runs.paths(experiment, strategies), TOLERANCES)
    assert comparison.verdict == "lockstep"
    assert len(comparison.pairs) == len(strategies) * (len(strategies) - 1) / 2
    assert {pair.steps for pair in comparison.pairs} == {steps}
    assert not [violation for pair in comparison.pairs for violation in find_violations(pair)]


@pytest.mark.parametrize("experiment", PAIRED)
def test_every_pair_draws_the_same_curve(runs: Runs, experiment: str) -> None:
    assert_lockstep(runs, experiment, PAIRED[experiment], STEPS.get(experiment, 30))


@pytest.mark.parametrize(("experiment", "fault", "strategy"), FAULTY)
def test_a_planted_fault_is_seen(runs: Runs, experiment: str, fault: str, strategy: str) -> None:
    correct, faulty = runs.path(experiment, PAIRED[experiment][0]), runs.path(experiment, strategy, fault)
    (pair,) = compare_runs([correct, faulty], TOLERANCES).pairs
    violations = find_violations(pair)
    if fault == "average_evaluated_twice":  # training is correct
        assert [violation for violation in violations if violation.startswith("validation raw_loss differs")]
        return
    assert violations
    assert pair.a.precision == "float32" or pair.first_step_beyond is not None


@pytest.mark.parametrize("strategy", PAIRED["plateau64"])
def test_plateaus_lowered_the_rate(runs: Runs, strategy: str) -> None:
    rates = [row["learning_rate"] for row in read_rows(runs.path("plateau64", strategy) / "metrics.jsonl")]
    assert rates == [1e-3] * 6 + [5e-4] * 3 + [2.5e-4]


@pytest.mark.parametrize("strategy", PAIRED["plateau64"])
def test_averages_are_equal(runs: Runs, strategy: str) -> None:
    (average, weights), (expected, _) = (
        (load_averages(run_dir), load_final_weights(run_dir))
        for run_dir in (runs.path("plateau64", strategy), runs.path("plateau64", "torch-single"))
    )
    assert average.keys() == expected.keys()
    for name, array in expected.items():
        np.testing.assert_allclose(average[name], array, rtol=1e-9, atol=1e-12)
        assert np.abs(average[name] - weights[name]).max() > 1e-5


@pytest.mark.parametrize("experiment", [experiment for experiment in PAIRED if experiment in EXPERIMENTS])
def test_training_moved_the_weights(runs: Runs, experiment: str) -> None:
    """Equal curves prove little if training does not change the weights."""
    run_dir = runs.path(experiment, "torch-single")
    initial_checksum = json.loads((run_dir / "summary.json").read_text())["fingerprints"]["initial_weights"]
    initial, *_ = (
        path for path in runs.base.glob("cache/weights-*/*.safetensors") if compute_checksum(path) == initial_checksum
    )
    before, after = load_file(initial), load_final_weights(run_dir)
    assert not [name for name in before if ".key.bias" not in name and np.array_equal(before[name], after[name])]


@pytest.mark.parametrize(("experiment", "count"), [("adamw", 122), ("dropout64", 122), ("convnet_dropout64", 360)])
def test_evaluation_counts_every_example_once(runs: Runs, experiment: str, count: int) -> None:
    comparison = compare_runs(runs.paths(experiment, PAIRED[experiment]), TOLERANCES)
    for run in comparison.runs:
        assert [row["count"] for row in read_rows(run.path / "evals.jsonl")] == [count]
    for pair in comparison.pairs:
        assert pair.accuracy_difference == 0
        assert pair.metric_differences.get("f1", 0) == 0
        assert pair.evaluation_loss_difference is not None and abs(pair.evaluation_loss_difference) <= 1e-5
