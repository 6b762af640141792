import numpy as np
import pytest
import torch

from common.config.tasks import CustomTaskSettings
from common.errors import UserError
from tests.unit.reference_losses import CASES, expected
from torch_impl.batches import to_tensors
from torch_impl.task import build_task_functions


@pytest.mark.parametrize("name", CASES)
def test_losses_and_metrics_are_those_of_their_definitions(name: str) -> None:
    task, outputs, labels = CASES[name]
    batch = to_tensors([{"outputs": outputs, "labels": labels}], torch.device("cpu"))[0]
    found = build_task_functions(task)
    for part, wanted in expected(task, outputs, labels).items():
        computed = getattr(found, part)(batch["outputs"], batch["labels"]).numpy()
        assert computed.shape == (5,)
        np.testing.assert_allclose(computed, wanted, rtol=1e-6 if labels.dtype == np.float32 else 1e-12, err_msg=part)


def half(outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return outputs[:, 0] / 2


def test_the_users_function() -> None:
    losses = build_task_functions(CustomTaskSettings("custom", f"{__name__}:half", None))
    outputs = torch.arange(6.0).reshape(3, 2)
    assert losses.losses(outputs, outputs).tolist() == [0, 1, 2]
    assert losses.metric(outputs, outputs).tolist() == [0, 0, 0]
    with pytest.raises(UserError, match="^task.torch=nothing:here: no module nothing in the working directory"):
        build_task_functions(CustomTaskSettings("custom", "nothing:here", None))
