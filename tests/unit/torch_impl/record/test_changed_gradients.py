"""Tests of gradients that the script changes between the backward pass and the update."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

from common.diagnose.recorded.walk import diagnose_records
from tests.unit.torch_impl.record.scripts import read_facts, read_step, read_unclipped
from torch_impl.record import Recorder

DECAY = 0.01
Edit = Callable[[list[nn.Parameter]], None]  # changes the gradients of parameters


def train(directory: Path, *edits: Edit, weight_decay: float = 0.0) -> list[dict[str, torch.Tensor]]:
    """Train with changed gradients. Return the gradients of each step before the change."""
    torch.manual_seed(0)
    model, returned = nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 1)), []
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9, weight_decay=weight_decay)
    Recorder(str(directory), model, optimizer)
    for _ in range(3):
        rows = torch.randn(8, 5)
        optimizer.zero_grad()
        nn.functional.mse_loss(model(rows[:, :4]), rows[:, 4:]).backward()
        returned.append({name: x.grad.clone() for name, x in model.named_parameters() if x.grad is not None})
        for edit in edits:
            edit(list(model.parameters()))
        optimizer.step()
    return returned


def decay(parameters: list[nn.Parameter]) -> None:
    for parameter in parameters:
        assert parameter.grad is not None
        parameter.grad.add_(parameter.detach(), alpha=DECAY)


def clip(parameters: list[nn.Parameter]) -> None:
    nn.utils.clip_grad_norm_(parameters, 0.1)


def halve(parameters: list[nn.Parameter]) -> None:
    for parameter in parameters:
        assert parameter.grad is not None
        parameter.grad.div_(2)


def clamp_first(parameters: list[nn.Parameter]) -> None:
    assert parameters[0].grad is not None
    parameters[0].grad.clamp_(-0.05, 0.05)


@pytest.mark.parametrize("edits", [[decay], [decay, clip], [clip, decay]], ids=["decay", "decay, clip", "clip, decay"])
def test_a_decay_is_recorded_as_a_number(edits: list[Edit], tmp_path: Path) -> None:
    returned = train(tmp_path, *edits)
    for step, facts in enumerate(read_facts(tmp_path)["steps"], 1):
        factors = facts.get("clip_factors", {})
        place = factors if edits[0] is decay else {}
        decays = {name: number / place.get(name, 1.0) for name, number in facts["decays"].items()}
        assert decays == {name: pytest.approx(DECAY, rel=1e-3) for name in returned[0]}
        assert not any(name.startswith("gradient_unclipped/") for name in read_step(tmp_path, step))
        assert bool(factors) == (clip in edits)


def test_a_scaled_gradient_is_clipped_as_it_is(tmp_path: Path) -> None:
    """Gradients that the script divides are not its gradients before the clipping."""
    returned = train(tmp_path, halve, clip)
    for name, gradient in read_unclipped(tmp_path, 1).items():
        torch.testing.assert_close(torch.from_numpy(gradient), returned[0][name] / 2)


@pytest.mark.parametrize(
    ("reference", "edits", "cause"),
    [
        ([], [decay], None),
        ([clip], [clip, decay], None),
        ([clip], [decay, clip], "decay_before_clipping"),
        ([], [decay, decay], "weight_decay"),
        ([], [decay, clamp_first], "changed_gradients"),
    ],
    ids=["decay", "clip, decay", "decay, clip", "twice", "one variable"],
)
def test_a_decay_of_the_script_is_that_of_an_optimizer(
    reference: list[Edit], edits: list[Edit], cause: str | None, tmp_path: Path
) -> None:
    train(tmp_path / "a", *reference, weight_decay=DECAY)
    train(tmp_path / "b", *edits)
    causes = diagnose_records(tmp_path / "a", tmp_path / "b").causes
    assert [known.cause for known in causes] == ([] if cause is None else [cause]), [x.sentence for x in causes]
