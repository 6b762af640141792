"""Tests of the losses and metrics of every task in PyTorch against their definitions."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from sklearn.metrics import mean_pinball_loss

from common.config.tasks import CustomTaskSettings, TaskSettings
from common.errors import UserError
from tests.unit.reference_losses import BINARY, CASES, CLASSIFICATION, REGRESSION, expected
from torch_impl.batches import to_tensors
from torch_impl.task import build_task_functions


def compute(task: TaskSettings, outputs: np.ndarray, labels: np.ndarray) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the losses and the metric of each example."""
    batch = to_tensors([{"outputs": outputs, "labels": labels}], torch.device("cpu"))[0]
    functions = build_task_functions(task)
    arguments = batch["outputs"], batch["labels"]
    return functions.losses(*arguments), functions.metric(*arguments)


@pytest.mark.parametrize("name", CASES)
def test_losses_and_metrics_follow_their_definitions(name: str) -> None:
    wanted = expected(*CASES[name])
    for part, computed in zip(("losses", "metric"), compute(*CASES[name]), strict=True):
        assert computed.shape == (5,)
        np.testing.assert_allclose(computed.numpy(), wanted[part], rtol=1e-12, atol=1e-15, err_msg=part)


@pytest.mark.parametrize("name", [name for name in CASES if "corners" not in name])
def test_gradients_are_finite_and_those_of_the_losses(name: str) -> None:
    """Also with logits of 100, in float32, and without any label."""
    task, outputs, labels = CASES[name]
    leaf = torch.tensor(outputs, requires_grad=True)
    (batch,) = to_tensors([{"labels": labels}], torch.device("cpu"))
    losses = build_task_functions(task).losses
    losses(leaf, batch["labels"]).sum().backward()
    assert leaf.grad is not None
    direction = np.random.default_rng(1).standard_normal(outputs.shape)
    below, above = (torch.from_numpy(outputs + sign * 1e-6 * direction) for sign in (-1, 1))
    slope = (losses(above, batch["labels"]) - losses(below, batch["labels"])).numpy() / 2e-6
    products = (leaf.grad.numpy() * direction).reshape(5, -1).sum(1)
    scale = np.abs(leaf.grad.numpy() * direction).reshape(5, -1).sum(1).max() + 1
    np.testing.assert_allclose(products, slope, rtol=1e-5, atol=1e-7 * scale)
    leaf32 = torch.tensor(outputs, dtype=torch.float32, requires_grad=True)
    losses(leaf32, batch["labels"]).sum().backward()
    assert leaf32.grad is not None
    assert leaf32.grad.isfinite().all() or "poisson of large" in name


def test_losses_are_those_of_pytorch_and_scikit_learn() -> None:
    def losses(name: str) -> torch.Tensor:
        return compute(*CASES[name])[0]

    _, outputs, labels = CASES["poisson"]
    logits, targets = torch.from_numpy(outputs), torch.from_numpy(labels).double()
    torch.testing.assert_close(losses("poisson").mean(), torch.nn.PoissonNLLLoss()(logits, targets), rtol=1e-12, atol=0)

    _, outputs, labels = CASES["kl of shares"]
    log_shares, targets = torch.from_numpy(outputs).log_softmax(1), torch.from_numpy(labels).double()
    divergence = torch.nn.KLDivLoss(reduction="batchmean")(log_shares, targets)
    torch.testing.assert_close(losses("kl of shares").mean(), divergence, rtol=1e-12, atol=0)

    task, outputs, labels = CASES["quantile"]
    pinball = mean_pinball_loss(labels.astype(float).ravel(), outputs.ravel(), alpha=REGRESSION.quantile)
    assert losses("quantile").mean().item() == pytest.approx(pinball, rel=1e-12)

    task, outputs, labels = CASES["weighted pixels"]
    weights = torch.tensor(task.label_weights, dtype=torch.float64)
    logits, targets = torch.from_numpy(outputs).movedim(-1, 1), torch.from_numpy(labels).long()
    entropy = torch.nn.functional.cross_entropy(logits, targets, weights, reduction="sum")
    torch.testing.assert_close(losses("weighted pixels").sum(), entropy, rtol=1e-12, atol=0)


@pytest.mark.parametrize("alpha", [0.25, None])
def test_the_focal_loss_is_that_of_torchvision(alpha: float | None) -> None:
    """Source: torchvision.ops.sigmoid_focal_loss, whose alpha below 0 means none."""
    _, outputs, labels = CASES["focal yes or no"]
    p, ce = 1 / (1 + np.exp(-outputs)), np.logaddexp(0, outputs) - outputs * labels
    p_t = p * labels + (1 - p) * (1 - labels)
    wanted = ce * (1 - p_t) ** 2 * (1 if alpha is None else alpha * labels + (1 - alpha) * (1 - labels))
    losses, _ = compute(replace(BINARY, loss="focal", alpha=alpha), outputs, labels)
    np.testing.assert_allclose(losses.numpy(), wanted.mean(1), rtol=1e-12)


def test_an_example_without_labels_counts_nothing() -> None:
    for task in (CLASSIFICATION, replace(CLASSIFICATION, loss="dice"), replace(BINARY, loss="dice", ignore_label=-100)):
        outputs = np.ones((2, 3)) if task.kind == "binary" else np.ones((2, 3, 4))
        losses, metric = compute(task, outputs, np.full((2, 3), -100, np.int32))
        assert losses.tolist() == metric.tolist() == [0, 0]


def halve(outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return outputs[:, 0] / 2


def test_custom_loss_is_the_users_function() -> None:
    functions = build_task_functions(CustomTaskSettings("custom", f"{__name__}:halve", None))
    outputs = torch.arange(6.0).reshape(3, 2)
    assert functions.losses(outputs, outputs).tolist() == [0, 1, 2]
    assert functions.metric(outputs, outputs).tolist() == [0, 0, 0]
    with pytest.raises(UserError, match=r"^task.torch=nothing:here: no module nothing in the working directory"):
        build_task_functions(CustomTaskSettings("custom", "nothing:here", None))
