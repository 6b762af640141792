"""Tests that layers with noise are recognized, and draw from the examples' keys alone."""

from collections.abc import Callable
from contextlib import nullcontext

import numpy as np
import pytest
import torch
from torch.nn import AlphaDropout, Dropout1d, Dropout2d, Dropout3d, FeatureAlphaDropout, Module, Sequential
from torch.utils.checkpoint import checkpoint

from common.data.dropout import derive_example_keys
from common.errors import UserError
from common.map.description import RecordedCall
from common.map.noise import Noise
from tests.unit import reference_dropout
from torch_impl.aligned_layers import align_dropout, use_dropout_keys
from torch_impl.described_dropout import disable_dropout, explain_inputs, find_dropouts

KEYS = derive_example_keys(3, 7, np.array([5, 0, 2**33]))


class UserLayer(Module):
    """A layer of a user that applies a function in training."""

    def __init__(self, change: Callable[[torch.Tensor], torch.Tensor], **numbers: object) -> None:
        super().__init__()
        self.change, self.calls = change, 0
        vars(self).update(numbers)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.change(x) if self.training else x


class Counting(UserLayer):
    """The same with a state."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return super().forward(x)


def drop_path(x: torch.Tensor, keep: float = 0.8, scale: bool = True, rows: int | None = None) -> torch.Tensor:
    mask = torch.bernoulli(torch.full([rows or len(x)] + [1] * (x.dim() - 1), keep, dtype=x.dtype))
    return x * mask / (keep if scale else 1)


def drop_channels(x: torch.Tensor) -> torch.Tensor:
    mask = torch.bernoulli(torch.full([*x.shape[:2]] + [1] * (x.dim() - 2), 0.8, dtype=x.dtype))
    return x * mask / 0.8


def add_normal(x: torch.Tensor) -> torch.Tensor:
    return x + 0.3 * torch.randn_like(x)


RECOGNIZED = {
    "stochastic depth": (UserLayer(drop_path), Noise("drop", "example", 0.2)),
    "without scaling": (
        UserLayer(lambda x: drop_path(x, scale=False), rate=0.2),
        Noise("drop", "example", 0.2, is_scaled=False),
    ),
    "in float32": (UserLayer(lambda x: drop_path(x.float()).to(x)), Noise("drop", "example", 0.2)),
    "elements": (UserLayer(lambda x: torch.nn.functional.dropout(x, 0.2)), Noise("drop", "element", 0.2)),
    "terms": (UserLayer(add_normal, sigma=0.3, scale=7.0), Noise("add", "element", 0.3)),
    "factors": (UserLayer(lambda x: x * (1 + 0.5 * torch.randn_like(x)), p=0.2), Noise("multiply", "element", 0.5)),
    "AlphaDropout": (AlphaDropout(0.2), Noise("alpha", "element", 0.2)),
    "FeatureAlphaDropout": (FeatureAlphaDropout(0.2), Noise("alpha", "channel", 0.2)),
    "Dropout1d": (Dropout1d(0.2), Noise("drop", "channel", 0.2)),
    "Dropout3d": (Dropout3d(0.2), Noise("drop", "channel", 0.2)),
}
OTHERS = {
    "whole batches": UserLayer(lambda x: drop_path(x, 0.9, rows=1), p=0.1),
    "whole channels": UserLayer(drop_channels, p=0.2),
    "no attribute has the strength": UserLayer(add_normal),
    "an ambiguous strength": UserLayer(add_normal, mean=0.3, sigma=0.301),
    "a constant gradient": UserLayer(lambda x: x + 0.3 * torch.randn_like(x) * x.detach(), sigma=0.3),
    "uniform": UserLayer(lambda x: x + torch.rand_like(x) - 0.5, sigma=12**-0.5),
    "the same for all examples": UserLayer(lambda x: x + 0.3 * torch.randn_like(x[:1]), sigma=0.3),
    "the same for all features": UserLayer(lambda x: x + 0.3 * torch.randn_like(x[..., :1]), sigma=0.3),
    "another scale": UserLayer(lambda x: drop_path(x) * 1.1, rate=0.2),
}


@pytest.mark.parametrize("name", RECOGNIZED)
def test_layers_are_recognized_by_what_they_compute(name: str) -> None:
    layer, noise = RECOGNIZED[name]
    ((path, recognized),) = find_dropouts(Sequential(layer))[0].items()
    assert path == "0" and recognized.is_like(noise) and recognized.strength == pytest.approx(noise.strength, abs=1e-12)


@pytest.mark.parametrize("name", OTHERS)
def test_layers_that_compute_something_else_are_not_aligned(name: str) -> None:
    assert find_dropouts(Sequential(OTHERS[name])) == ({}, ["0 (UserLayer)"])


@pytest.mark.parametrize(
    "layer",
    [UserLayer(lambda x: x), UserLayer(lambda x: x.relu(), p=0.2), Counting(drop_path), torch.nn.Identity()],
    ids=["nothing", "no random numbers", "state", "PyTorch's"],
)
def test_layers_without_noise(layer: Module) -> None:
    """A layer with a state is left to a pass of the whole model."""
    assert find_dropouts(Sequential(layer)) == ({}, [])


def test_a_disabled_layer_returns_its_input() -> None:
    model, x = Sequential(UserLayer(drop_path), AlphaDropout(0.2)), torch.randn(3, 4)
    noises, _ = find_dropouts(model)
    disable_dropout(model, noises)
    assert torch.equal(model.train()(x), x)


def test_layers_whose_rows_are_not_examples_are_named() -> None:
    calls = {name: RecordedCall(np.zeros(shape), None) for name, shape in {"a": (3, 5), "b": (6, 5), "c": (3,)}.items()}
    layers = {"a": Dropout2d(0.1), "b": Module(), "c": Module()}
    reasons = ["a (receives 2 axes)", "b (receives 6 rows for 3 examples)", "c (receives 1 axes)"]
    assert explain_inputs(layers, calls, 3) == reasons
    assert explain_inputs({"a": Module()}, calls, 3) == []


@pytest.mark.parametrize("noise", [noise for _, noise in RECOGNIZED.values()], ids=str)
def test_draws_belong_to_examples(noise: Noise) -> None:
    """Whatever batch an example is in."""
    model, x = Sequential(Module()), torch.randn(3, 6, 5, 4, dtype=torch.float64)
    align_dropout(model, {"0": noise})
    outputs = []
    for rows in (slice(None), slice(0, 1), slice(1, 3)):
        use_dropout_keys(model, torch.from_numpy(KEYS[rows]))
        outputs.append(model.double().train()(x[rows]))
    assert torch.equal(outputs[0], torch.cat(outputs[1:]))
    assert torch.equal(model.eval()(x), x)


def test_normal_numbers_are_those_of_the_reference() -> None:
    model, x = Sequential(Module(), Module()), torch.randn(3, 6, 5, dtype=torch.float64)
    align_dropout(model, {"0": Noise("add", "element", 0.3), "1": Noise("multiply", "element", 0.3)})
    use_dropout_keys(model.double().train(), torch.from_numpy(KEYS))
    for site, expected in (
        ("0", x + 0.3 * torch.from_numpy(reference_dropout.normal(KEYS, "0", (6, 5)))),
        ("1", x * (1 + 0.3 * torch.from_numpy(reference_dropout.normal(KEYS, "1", (6, 5))))),
    ):
        torch.testing.assert_close(model.get_submodule(site)(x), expected, rtol=0, atol=1e-15)


@pytest.mark.parametrize("name", ["drop", "alpha"])
def test_dropping_keeps_what_pytorch_keeps(name: str) -> None:
    """The values are those of PyTorch's own layer: what is kept, and what is dropped."""
    kind = {"drop": torch.nn.Dropout, "alpha": AlphaDropout}[name]
    x = torch.ones(3, 400, dtype=torch.float64)
    model, plain = Sequential(kind(0.3)), kind(0.3)
    align_dropout(model)
    use_dropout_keys(model.train(), torch.from_numpy(KEYS))
    torch.testing.assert_close(model(x).unique(), plain(x).unique(), rtol=1e-12, atol=0)


def test_calls_in_one_pass_draw_differently() -> None:
    """A backward pass that computes a layer again uses the numbers of the forward pass, or is refused."""
    model, x = Sequential(Module()), torch.ones(3, 400, requires_grad=True)
    align_dropout(model, {"0": Noise("drop", "element", 0.5)})
    model.train()
    use_dropout_keys(model, torch.from_numpy(KEYS))
    first, second = model(x), model(x)
    assert not torch.equal(first, second)
    use_dropout_keys(model, torch.from_numpy(KEYS))
    assert torch.equal(model(x), first) and torch.equal(model(x), second)
    for calls, expectation in ((1, nullcontext()), (2, pytest.raises(UserError, match="several times in a pass"))):
        use_dropout_keys(model, torch.from_numpy(KEYS))
        y = x
        for _ in range(calls):
            y = checkpoint(model, y, use_reentrant=False)
        with expectation:
            (gradient,) = torch.autograd.grad(y.sum(), x)
            assert torch.equal(gradient, first)
