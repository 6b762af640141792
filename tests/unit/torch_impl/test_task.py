"""Tests of the losses and metrics of every task in PyTorch against their definitions."""

import numpy as np
import pytest
import torch

from common.config.tasks import CustomTaskSettings
from common.errors import UserError
from tests.unit.reference_losses import CASES, expected
from torch_impl.batches import to_tensors
from torch_impl.task import build_task_functions


@pytest.mark.parametrize("name", CASES)
def test_losses_and_metrics_follow_their_definitions(name: str) -> None:
    task, outputs, labels = CASES[name]
    batch = to_tensors([{"outputs": outputs, "labels": labels}], torch.device("cpu"))[0]
    functions = build_task_functions(task)
    for part, wanted in expected(task, outputs, labels).items():
        computed = getattr(functions, part)(batch["outputs"], batch["labels"]).numpy()
        assert computed.shape == (5,)
        np.testing.assert_allclose(computed, wanted, rtol=1e-6 if labels.dtype == np.float32 else 1e-12, err_msg=part)


def halve(outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return outputs[:, 0] / 2


def test_custom_loss_is_the_users_function() -> None:
    functions = build_task_functions(CustomTaskSettings("custom", f"{__name__}:halve", None))
    outputs = torch.arange(6.0).reshape(3, 2)
    assert functions.losses(outputs, outputs).tolist() == [0, 1, 2]
    assert functions.metric(outputs, outputs).tolist() == [0, 0, 0]
    with pytest.raises(UserError, match=r"^task.torch=nothing:here: no module nothing in the working directory"):
        build_task_functions(CustomTaskSettings("custom", "nothing:here", None))
