"""Scripts that follow a record with copies of their model, such as target networks."""

import copy
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from common.diagnose.recorded.walk import diagnose_records
from tests.unit.common.recording.numpy_script import NumpyScript, draw_batches, draw_weights
from tests.unit.torch_impl.record.scripts import read_facts
from torch_impl.record import Recorder
from torch_impl.record.model_copies import find_copies


class Net(nn.Module):
    """The model of NumpyScript."""

    def __init__(self) -> None:
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(5, 8), nn.Linear(8, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fc2(torch.relu(self.fc1(x)))


def test_other_weights_and_parts_are_no_copies() -> None:
    model = Net()
    target, other, shared = copy.deepcopy(model), Net(), Net()
    shared.fc1 = model.fc1
    assert find_copies(model) == [target]
    assert find_copies(other) == []
    for model_of_zeros in (model, target):
        for weight in model_of_zeros.parameters():
            nn.init.zeros_(weight)
    assert find_copies(model) == []


@pytest.mark.parametrize("framework", ["torch", "tensorflow"])
@pytest.mark.parametrize("is_late", [False, True])
def test_a_target_network_gets_the_weights_of_the_record(framework: str, is_late: bool, tmp_path: Path) -> None:
    """The script calls the copy before the model. Weights of Keras come with the first call, others at once."""
    NumpyScript(framework=framework, optimizer="sgd", decay=0.0).write(tmp_path / "old")
    model, target = Net(), Net()
    if not is_late:
        target.load_state_dict(model.state_dict())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    recorder = Recorder(str(tmp_path / "new"), model, optimizer, follow=str(tmp_path / "old"))
    if is_late:
        target.load_state_dict(model.state_dict())
    batches = [(torch.from_numpy(np.roll(x, 1)), torch.from_numpy(y)) for x, y in draw_batches()]
    for x, y in recorder.batches(batches):
        outputs = target(x)
        np.testing.assert_array_equal(target.fc2.weight.detach(), draw_weights()["fc2.weight"])
        loss = nn.functional.cross_entropy(model(x), y) + 0 * outputs.sum().detach()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert diagnose_records(tmp_path / "old", tmp_path / "new").is_equal
    notes = [note for note in read_facts(tmp_path / "new")["not_recorded"] if "copies of the model" in note]
    assert len(notes) == (0 if framework == "torch" and is_late else 1)


def test_a_copy_that_is_made_later_keeps_its_weights(tmp_path: Path) -> None:
    """The hooks that load the weights are copied with the model."""
    NumpyScript(framework="tensorflow", optimizer="sgd", decay=0.0).write(tmp_path / "old")
    model = Net()
    recorder = Recorder(
        str(tmp_path / "new"), model, torch.optim.SGD(model.parameters(), lr=0.01), follow=str(tmp_path / "old")
    )
    later = copy.deepcopy(model)
    model(torch.ones(12, 5))
    weights = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    later(torch.ones(12, 5))
    assert all(torch.equal(weights[name], tensor) for name, tensor in model.state_dict().items())
    recorder.close()
