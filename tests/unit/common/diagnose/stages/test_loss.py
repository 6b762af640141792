"""Losses of the same outputs, and gradients of the same weights."""

from collections.abc import Callable

import numpy as np
import pytest
from scipy.special import log_softmax, softmax

from common.diagnose.observation import Observation
from common.diagnose.stages.loss import compare_gradients, compare_losses

STREAM = np.random.default_rng(0)
LOGITS, CLASSES = STREAM.standard_normal((6, 3)), np.array([0, 2, 1, 1, 0, 2])
NUMBERS, TARGETS = STREAM.standard_normal((6, 1)), STREAM.standard_normal(6)
Loss = Callable[[np.ndarray, np.ndarray], np.ndarray]


def observed(outputs: np.ndarray, losses: np.ndarray, gradients: dict[str, np.ndarray] | None = None) -> Observation:
    return Observation([outputs], [losses], {}, {}, gradients or {})


def cross_entropy(outputs: np.ndarray, labels: np.ndarray, smoothing: float = 0.0) -> np.ndarray:
    target = np.eye(3)[labels] * (1 - smoothing) + smoothing / 3
    return np.asarray(-(target * log_softmax(outputs, 1)).sum(1))


def squares(outputs: np.ndarray, labels: np.ndarray) -> np.ndarray:
    return np.asarray((outputs[:, 0] - labels) ** 2)


@pytest.mark.parametrize(
    ("cause", "outputs", "labels", "ours", "theirs"),
    [
        ("label_smoothing", LOGITS, CLASSES, cross_entropy, lambda x, y: cross_entropy(x, y, 0.1)),
        ("double_softmax", LOGITS, CLASSES, cross_entropy, lambda x, y: cross_entropy(softmax(x, 1), y)),
        ("scaled_loss", LOGITS, CLASSES, cross_entropy, lambda x, y: cross_entropy(x, y) / 6),
        (
            "mean_instead_of_losses",
            LOGITS,
            CLASSES,
            cross_entropy,
            lambda x, y: np.full(6, cross_entropy(x, y).mean()),
        ),
        ("broadcast_in_loss", NUMBERS, TARGETS, squares, lambda x, y: ((x - y) ** 2).mean(1)),
        ("broadcast_in_loss", NUMBERS, TARGETS, squares, lambda x, y: (x - y) ** 2),
        ("absolute_error", NUMBERS, TARGETS, squares, lambda x, y: np.abs(x[:, 0] - y)),
    ],
)
def test_a_loss_function_is_named(
    cause: str, outputs: np.ndarray, labels: np.ndarray, ours: Loss, theirs: Loss
) -> None:
    a, b = observed(outputs, ours(outputs, labels)), observed(outputs, theirs(outputs, labels))
    stage = compare_losses(a, b, a, labels, theirs(outputs, labels))
    assert [each.cause for each in stage.causes] == [cause]


def test_equal_losses_have_no_cause() -> None:
    a = observed(LOGITS, cross_entropy(LOGITS, CLASSES))
    assert compare_losses(a, a, a, CLASSES, a.losses[0]).verdict == "equal"


WEIGHT = STREAM.standard_normal((4, 4))


@pytest.mark.parametrize(
    ("cause", "gradient"),
    [
        ("no_gradient", np.zeros((4, 4))),
        ("scaled_gradient", WEIGHT / 4),
        ("padding_row", np.where(np.arange(4)[:, None] == 0, 0.0, WEIGHT)),
        ("transposed_gradient", WEIGHT.T),
        ("gradient", WEIGHT + 0.1),
    ],
)
def test_a_gradient_is_explained(cause: str, gradient: np.ndarray) -> None:
    a = observed(LOGITS, CLASSES * 1.0, {"weight": WEIGHT, "bias": np.ones(4)})
    b = observed(LOGITS, CLASSES * 1.0, {"weight": gradient, "bias": np.ones(4)})
    stage = compare_gradients(a, b, a, inherited=False, untied={})
    assert [(each.cause, each.tensor) for each in stage.causes] == [(cause, "weight")]
    assert compare_gradients(a, b, a, inherited=True, untied={}).verdict == "inherited"
    assert compare_gradients(a, a, a, inherited=False, untied={}).verdict == "equal"


def test_a_frozen_parameter_is_named() -> None:
    a = observed(LOGITS, CLASSES * 1.0, {"weight": WEIGHT, "bias": np.ones(4)})
    b = observed(LOGITS, CLASSES * 1.0, {"weight": WEIGHT})
    stage = compare_gradients(a, b, a, inherited=False, untied={})
    assert [(each.cause, each.side, each.tensor) for each in stage.causes] == [("not_trained", "b", "bias")]


@pytest.mark.parametrize("swapped", [False, True])
@pytest.mark.parametrize("transposed", [False, True])
def test_a_tie_of_one_side_is_confirmed_by_the_sum(swapped: bool, transposed: bool) -> None:
    first, second = STREAM.standard_normal((2, 5, 3))
    apart = {"embedding": first, "output": second.T if transposed else second}
    sides = [observed(LOGITS, CLASSES * 1.0, each) for each in ({"embedding": first + second}, apart)]
    a, b = sides[::-1] if swapped else sides
    (cause,) = compare_gradients(a, b, a, inherited=False, untied={"output": "embedding"}).causes
    assert (cause.cause, cause.tensor, cause.confirmed) == ("tied_on_one_side", "output", True)
    one, two = ("B", "A") if swapped else ("A", "B")
    assert f"output is tied to embedding in {one} only" in cause.sentence
    assert cause.sentence.endswith(f"its gradient is the sum of {two}'s two")


def test_a_tie_that_does_not_explain_the_gradient_is_not_confirmed() -> None:
    a = observed(LOGITS, CLASSES * 1.0, {"embedding": WEIGHT * 3})
    b = observed(LOGITS, CLASSES * 1.0, {"embedding": WEIGHT, "output": WEIGHT})
    (cause,) = compare_gradients(a, b, a, inherited=False, untied={"output": "embedding"}).causes
    assert cause.cause == "tied_on_one_side" and not cause.confirmed
