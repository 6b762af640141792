"""What is said of moving statistics, alone and beside another cause."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from common.diagnose.stages.state import compare_evaluations, compare_states

MEAN, WEIGHT, VARIANCE = "norm.running_mean", "dense.weight", "norm.running_var"


def run(name: str, momentum: float = 0.1, rate: float = 0.1, of: float = 1.0) -> Any:
    """Two steps of a mean that follows the batches' means, and of a weight. of: what the means are multiplied by."""
    batches = np.random.default_rng(0).normal(size=(2, 4)) * of
    states = [{MEAN: np.full(4, 0.5), WEIGHT: np.ones(3)}]
    for batch in batches:
        before = states[-1]
        states.append({MEAN: before[MEAN] * (1 - momentum) + momentum * batch, WEIGHT: before[WEIGHT] - rate})
    rows = [{"step": step, "loss": 1.0, "learning_rate": rate} for step in (1, 2)]
    return SimpleNamespace(
        name=name,
        asynchronous=False,
        before=0,
        ended="",
        precision="float64",
        rows=rows,
        states=[SimpleNamespace(weights=each) for each in states],
    )


class NoDrift:
    """Where rounding does nothing."""

    def of(self, steps: int, name: str) -> float:
        return 0.0

    def of_loss(self, steps: int, loss: float) -> float:
        return 0.0


NONE: Any = NoDrift()


def causes(a: Any, b: Any, inherited: bool) -> list[tuple[str, bool]]:
    return [(each.cause, each.confirmed) for each in compare_states(a, b, inherited, (), NONE).causes]


@pytest.mark.parametrize("inherited", [False, True])
def test_another_momentum_is_named_also_beside_another_cause(inherited: bool) -> None:
    other = run("b", momentum=0.01, rate=0.2 if inherited else 0.1)
    stage = compare_states(run("a"), other, inherited, (), NONE)
    assert [each.cause for each in stage.causes] == ["moving_statistics"]
    assert f"in B {MEAN} moves 0.1 times as far" in stage.causes[0].sentence and stage.causes[0].confirmed


@pytest.mark.parametrize(
    ("counts", "words"), [((11, 12), "12 where A's is over 11"), ((12, 11), "11 where A's is over 12")]
)
def test_a_biased_variance(counts: tuple[int, int], words: str) -> None:
    squares, sides = np.random.default_rng(0).uniform(1, 2, (2, 4)), []
    for name, count in zip("ab", counts, strict=True):
        side = run(name)
        variance = np.full(4, 0.5)
        for step, state in enumerate(side.states):
            state.weights[VARIANCE] = variance
            variance = 0.9 * variance + 0.1 * squares[min(step, 1)] / count
        sides.append(side)
    stage = compare_states(sides[0], sides[1], False, (), NONE)
    assert [(each.cause, each.tensor, each.confirmed) for each in stage.causes] == [
        ("biased_variance", f"step 1: {VARIANCE}", True)
    ]
    assert stage.causes[0].sentence.endswith(words)


def test_what_was_inherited_is_not_blamed() -> None:
    assert causes(run("a"), run("b", rate=0.2), True) == []
    assert causes(run("a"), run("b", of=1.5), True) == [], "of other activations"
    assert causes(run("a"), run("b"), False) == []


def test_a_training_that_ends_at_a_loss_that_is_not_finite() -> None:
    b = run("b")
    b.ended, b.states, b.rows = "step 2: the loss is nan", b.states[:2], b.rows[:1]
    b.arguments = SimpleNamespace(title="B (torch single)")
    (cause,) = compare_states(run("a"), b, False, (), NONE).causes
    assert (cause.cause, cause.side) == ("not_finite", "b")
    assert cause.sentence == "B (torch single) ends at step 2: the loss is nan"
    stage = compare_states(run("a"), b, True, (), NONE)
    assert stage.verdict == "inherited" and not stage.causes
    assert compare_evaluations(run("a"), b, True, NONE).verdict == "not compared"


def test_a_difference_that_nothing_explains() -> None:
    assert causes(run("a"), run("b", of=1.5), False) == [("moving_statistics", False)]
    assert causes(run("a"), run("b", rate=0.2), False) == [("unexplained", False)]
