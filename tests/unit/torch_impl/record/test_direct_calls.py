"""Tests of scripts that call the method `forward` of a model, or a layer of it with its outputs."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from tests.unit.torch_impl.record.scripts import compute_loss, draw_batch, read_facts, read_step, train

Call = Callable[[Any, torch.Tensor], torch.Tensor]


class Translator(nn.Module):
    """Two parts and a head, which `forward` does not call."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.encoder, self.head = nn.Embedding(20, 8), nn.Linear(8, 8), nn.Linear(8, 20)

    def forward(self, tokens: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return self.scale(self.encoder(self.embedding(tokens)), mask)

    def scale(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return x * mask[..., None]


def call_forward(model: Any, tokens: torch.Tensor) -> torch.Tensor:
    outputs: torch.Tensor = model.head(model.forward(tokens, tokens > 2))
    return outputs


def call_model(model: Any, tokens: torch.Tensor) -> torch.Tensor:
    outputs: torch.Tensor = model.head(model(tokens, tokens > 2))
    return outputs


def call_parts(model: Any, tokens: torch.Tensor) -> torch.Tensor:
    x = model.encoder(model.embedding(tokens))
    outputs: torch.Tensor = model.head(model.scale(x, tokens > 2))
    return outputs


def make_update(call: Call) -> Callable[[Any, Any], torch.Tensor]:
    def update(model: Any, optimizer: Any) -> torch.Tensor:
        tokens, labels = draw_batch()
        optimizer.zero_grad()
        loss = compute_loss(call(model, tokens), labels)
        loss.backward()
        optimizer.step()
        return loss.detach()

    return update


@pytest.mark.parametrize("call", [call_forward, call_model])
def test_layer_called_with_the_outputs_belongs_to_the_call(call: Call, tmp_path: Path) -> None:
    original = Translator.forward
    losses = train(tmp_path, make_update(call), Translator)[0]
    assert losses == train(None, make_update(call), Translator)[0]
    assert Translator.forward is original
    facts, arrays = read_facts(tmp_path), read_step(tmp_path, 1)
    assert [step["calls"] for step in facts["steps"]] == [[1]] * len(facts["steps"])
    assert {name for name in arrays if name.startswith("batch/0/input")} == {"batch/0/input/0", "batch/0/input/1"}
    assert arrays["batch/0/output/0"].shape == (4, 5, 20)
    assert [layer["path"] for layer in facts["model"]["layers"]] == ["model", "embedding", "encoder", "head"]
    assert not any("instead of the model" in note for note in facts["not_recorded"])


def test_inputs_of_further_parts_are_recorded(tmp_path: Path) -> None:
    class Masked(Translator):
        def __init__(self) -> None:
            super().__init__()
            self.mask = nn.Bilinear(8, 1, 8)

    def call(model: Any, tokens: torch.Tensor) -> torch.Tensor:
        x = model.encoder(model.embedding(tokens))
        outputs: torch.Tensor = model.head(model.mask(x, tokens[..., None].float()))
        return outputs

    assert train(tmp_path, make_update(call), Masked)[0] == train(None, make_update(call), Masked)[0]
    arrays = read_step(tmp_path, 1)
    names = {name.removeprefix("batch/0/input/") for name in arrays if name.startswith("batch/0/input")}
    assert names == {"0", "mask.1"}
    assert any("instead of the model" in note for note in read_facts(tmp_path)["not_recorded"])


def test_a_model_with_hooks_of_the_script_is_left_as_it_is(tmp_path: Path) -> None:
    class Hooked(Translator):
        def __init__(self) -> None:
            super().__init__()
            self.register_forward_hook(lambda *_: 1 / 0)  # a direct call runs no hook

    losses = train(tmp_path, make_update(call_forward), Hooked)[0]
    assert losses == train(None, make_update(call_forward), Hooked)[0]


def test_evaluation_mode_of_a_later_step_is_recorded(tmp_path: Path) -> None:
    steps = iter(range(10))

    def call(model: Any, tokens: torch.Tensor) -> torch.Tensor:
        model.train(next(steps) < 1)
        return call_model(model, tokens)

    train(tmp_path, make_update(call), Translator)
    modes = [step.get("evaluation_mode", False) for step in read_facts(tmp_path)["steps"]]
    assert modes == [False] + [True] * (len(modes) - 1)
