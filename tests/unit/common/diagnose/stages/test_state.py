"""Moving statistics and weights after each step, alone and beside another cause."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from common.diagnose.findings import Stage
from common.diagnose.stages.evaluation import compare_evaluations
from common.diagnose.stages.state import compare_states

MEAN, WEIGHT, VARIANCE = "norm.running_mean", "dense.weight", "norm.running_var"


def make_run(name: str, momentum: float = 0.1, rate: float = 0.1, scale: float = 1.0) -> Any:
    """Return two steps of a weight, and of a moving mean that follows the batches' means times `scale`."""
    batches = np.random.default_rng(0).normal(size=(2, 4)) * scale
    states = [{MEAN: np.full(4, 0.5), WEIGHT: np.ones(3)}]
    for batch in batches:
        mean, weight = states[-1][MEAN], states[-1][WEIGHT]
        states.append({MEAN: mean * (1 - momentum) + momentum * batch, WEIGHT: weight - rate})
    return SimpleNamespace(
        name=name,
        title=f"{name.upper()} (torch single)",
        is_asynchronous=False,
        steps_before=0,
        nonfinite_loss="",
        precision="float64",
        rows=[{"step": step, "loss": 1.0, "learning_rate": rate} for step in (1, 2)],
        states=[SimpleNamespace(weights=weights) for weights in states],
    )


def make_comparison(a: Any, b: Any, inherits: bool = False) -> Any:
    """Return a comparison without rounding errors."""
    no_drift = SimpleNamespace(compute_weight_drift=lambda steps, name: 0.0, compute_loss_drift=lambda steps, loss: 0.0)
    return SimpleNamespace(
        a=a,
        b=b,
        runs={"a": a, "b": b},
        precision=a.precision,
        earlier_stage_differs=inherits,
        noisy_parameters=set(),
        drift=no_drift,
    )


def compare(a: Any, b: Any, inherits: bool = False) -> Stage:
    (stage,) = compare_states(make_comparison(a, b, inherits))
    return stage


def list_causes(a: Any, b: Any, inherits: bool = False) -> list[tuple[str, bool]]:
    return [(known.cause, known.confirmed) for known in compare(a, b, inherits).causes]


@pytest.mark.parametrize("inherits", [False, True])
def test_another_momentum_is_named_also_beside_another_cause(inherits: bool) -> None:
    b = make_run("b", momentum=0.01, rate=0.2 if inherits else 0.1)
    (cause,) = compare(make_run("a"), b, inherits).causes
    assert (cause.cause, cause.confirmed) == ("moving_statistics", True)
    assert f"in B {MEAN} moves 0.1 times as far" in cause.sentence


@pytest.mark.parametrize("divisors", [(11, 12), (12, 11)])
def test_a_variance_with_another_divisor_is_named(divisors: tuple[int, int]) -> None:
    squares, runs = np.random.default_rng(0).uniform(1, 2, (2, 4)), [make_run("a"), make_run("b")]
    for run, divisor in zip(runs, divisors, strict=True):
        variance = np.full(4, 0.5)
        for step, state in enumerate(run.states):
            state.weights[VARIANCE] = variance
            variance = 0.9 * variance + 0.1 * squares[min(step, 1)] / divisor
    (cause,) = compare(*runs).causes
    assert (cause.cause, cause.tensor, cause.confirmed) == ("biased_variance", f"step 1: {VARIANCE}", True)
    assert cause.sentence.endswith(f"divided by {divisors[1]} in B and by {divisors[0]} in A")


@pytest.mark.parametrize(
    ("changes", "cause"), [({"rate": 0.2}, "unexplained"), ({"scale": 1.5}, "moving_statistics"), ({}, None)]
)
def test_an_unexplained_difference_is_reported_unless_it_is_inherited(
    changes: dict[str, float], cause: str | None
) -> None:
    a, b = make_run("a"), make_run("b", **changes)
    assert list_causes(a, b) == ([(cause, False)] if cause else [])
    assert list_causes(a, b, inherits=True) == []


@pytest.mark.parametrize("step", [1, 2])
def test_a_run_that_ends_at_a_nonfinite_loss(step: int) -> None:
    a, b = make_run("a"), make_run("b")
    b.nonfinite_loss, b.states, b.rows = f"step {step}: the loss is nan", b.states[:step], b.rows[: step - 1]
    (cause,) = compare(a, b).causes
    assert (cause.cause, cause.side) == ("not_finite", "b")
    assert cause.sentence == f"B (torch single) ends at step {step}: the loss is nan"
    stage = compare(a, b, inherits=True)
    assert stage.verdict == "inherited" and not stage.causes
    (evaluation,) = compare_evaluations(make_comparison(a, b, inherits=True))
    assert evaluation.verdict == "not compared"
