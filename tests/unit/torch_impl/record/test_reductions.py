"""Tests of the losses that a loss function reduces."""

from typing import Any

import pytest
import torch
from torch.nn import functional

from torch_impl.record.patches import LOSS_FUNCTIONS
from torch_impl.record.reductions import WHOLE_FUNCTIONS, split_reduction

CLASSES, SIGNS = torch.tensor([0, 2, 1, 2]), torch.tensor([1.0, -1.0, 1.0, -1.0])
LABELS: dict[str, tuple[Any, ...]] = {  # what the functions receive after the outputs
    **dict.fromkeys(("cross_entropy", "multi_margin_loss", "nll_loss"), (CLASSES,)),
    "cosine_embedding_loss": (torch.ones(4, 3), SIGNS),
    "gaussian_nll_loss": (torch.ones(4, 3), torch.full((4, 3), 0.5)),
    "hinge_embedding_loss": (SIGNS[:, None],),
    "margin_ranking_loss": (torch.ones(4, 3), SIGNS[:, None]),
    "multilabel_margin_loss": (torch.tensor([[0, -1, 1]] * 4),),
    "triplet_margin_loss": (torch.ones(4, 3), torch.zeros(4, 3)),
}
NAMES = [name for name in LOSS_FUNCTIONS if name not in WHOLE_FUNCTIONS]


def compute_outputs() -> torch.Tensor:
    return torch.linspace(0.1, 0.9, 12).reshape(4, 3).requires_grad_()


def check(name: str, **options: Any) -> dict[str, float]:
    """Check that the reduction returns what the function returns, and return its arguments."""
    args = (compute_outputs(), *LABELS.get(name, (torch.full((4, 3), 0.5),)))
    function = getattr(functional, name)
    split = split_reduction(function, args, options)
    assert split is not None
    assert split.name == options.get("reduction", "mean")
    counts = {"mean": split.losses.numel(), "sum": 1, "batchmean": 4}
    reduced = split.losses.sum() / split.arguments.get("divisor", counts[split.name])
    torch.testing.assert_close(reduced, function(*args, **options).detach())
    assert split.losses.numel() > 1
    assert not split.losses.requires_grad
    return split.arguments


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("options", [{}, {"reduction": "sum"}])
def test_each_function_is_the_reduction_of_its_losses(name: str, options: dict[str, Any]) -> None:
    assert check(name, **options) == {}


def test_a_mean_has_a_divisor_if_labels_are_weighted_or_ignored() -> None:
    weights = torch.tensor([1.0, 2.0, 4.0])
    assert check("kl_div", reduction="batchmean") == {}
    assert check("cross_entropy", weight=weights) == {"divisor": 11.0}
    assert check("cross_entropy", weight=weights, ignore_index=2, label_smoothing=0.1) == {"divisor": 3.0}
    assert check("nll_loss", ignore_index=2) == {"divisor": 2.0}
    assert check("cross_entropy", weight=weights, reduction="sum") == {}


def test_other_calls_are_not_split() -> None:
    outputs = compute_outputs()
    assert split_reduction(functional.mse_loss, (outputs, outputs), {"reduction": "none"}) is None
    assert split_reduction(functional.mse_loss, (outputs, outputs), {"size_average": False}) is None
    assert split_reduction(functional.relu, (outputs,), {}) is None


def test_probabilities_as_labels_have_no_divisor() -> None:
    labels, weights = torch.full((4, 3), 1 / 3), torch.tensor([1.0, 2.0, 4.0])
    split = split_reduction(functional.cross_entropy, (compute_outputs(), labels), {"weight": weights})
    assert split is not None
    assert split.arguments == {}
    expected = functional.cross_entropy(compute_outputs(), labels, weight=weights).detach()
    torch.testing.assert_close(split.losses.mean(), expected)
