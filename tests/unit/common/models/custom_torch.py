"""PyTorch models as users write them, correct and wrong ones. They take x [n, 5] and return logits of 3 classes."""

from collections.abc import Callable
from typing import Any, cast

import torch
from torch import nn


class Plain(nn.Module):
    def __init__(self, classes: int = 3) -> None:
        super().__init__()
        self.hidden, self.out = nn.Linear(5, 4), nn.Linear(4, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.out(torch.relu(self.hidden(x)))
        return result


def softmax() -> nn.Module:
    return nn.Sequential(Plain(), nn.Softmax(-1))


class Late(nn.Module):
    """A model that creates its parameters in the first call."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if not hasattr(self, "out"):
            self.out = nn.Linear(5, 3)
        result: torch.Tensor = self.out(x)
        return result


class Masked(Plain):
    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        return super().forward(x * mask)


class TwoInputs(Plain):
    def forward(self, x: torch.Tensor, missing: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        return super().forward(x + missing)


class TwoOutputs(Plain):
    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:  # type: ignore[override]
        return super().forward(x), x


class Stacked(nn.Module):
    """A model with dropout between the layers of its LSTM."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.out = nn.LSTM(5, 4, 2, dropout=0.1, batch_first=True), nn.Linear(4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.out(self.lstm(x[:, None])[0][:, 0])
        return result


class Centred(Plain):
    """A model with a moving average of its inputs."""

    centre: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("centre", torch.zeros(5))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.training:
            self.centre = 0.9 * self.centre + 0.1 * x.mean(0)
        return super().forward(x - self.centre)


class Counting(Plain):
    """A model that counts examples and forward passes."""

    examples: torch.Tensor
    calls: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("examples", torch.tensor(0))
        self.register_buffer("calls", torch.tensor(0), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.training:
            self.examples += len(x)
            self.calls += 1
        return super().forward(x)


class Damped(Plain):
    """A model that makes a weight smaller in every forward pass."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.training:
            self.hidden.weight.data *= 0.99
        return super().forward(x)


class Stepping(Plain):
    """A model with a training step for a trainer of a library."""

    def training_step(self, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        return self(batch["x"]).sum()


def stepping_layer() -> nn.Module:
    """Build a model with a layer that has the name of a step."""
    model = Plain()
    model.training_step = nn.Identity()
    return model


def _clamp_weight(layer: nn.Module, _: object) -> None:
    assert isinstance(layer, nn.Linear)
    layer.weight.data.clamp_(-1, 1)


def clamped() -> nn.Module:
    """Build a model whose hook keeps a weight in a range that it is in at first."""
    model = Plain()
    model.hidden.register_forward_pre_hook(_clamp_weight)
    return model


class RestrictedScale(Plain):
    """A model that changes its scales in every forward pass, if they are outside of a range."""

    def __init__(self, scale: float, change: Callable[[torch.Tensor], object], trained: bool = True) -> None:
        super().__init__()
        self.scale, self.change = nn.Parameter(torch.full((3,), scale), requires_grad=trained), change

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.change(self.scale.data)
        return super().forward(x) * self.scale


def zero_scale() -> nn.Module:
    return RestrictedScale(0.0, lambda scale: scale.clamp_(-1, 1))


def scale_at_limit() -> nn.Module:
    return RestrictedScale(-1.0, lambda scale: scale.clamp_(-1, 1))


def scale_below() -> nn.Module:
    return RestrictedScale(2.66, lambda scale: scale.clamp_(max=4.6052))


def masked_scale() -> nn.Module:
    return RestrictedScale(0.0, lambda scale: scale.mul_(0))


def frozen_scale() -> nn.Module:
    return RestrictedScale(2.66, lambda scale: scale.clamp_(max=4.6052), trained=False)


class HookedGradient(Plain):
    """A model that changes the gradient of its hidden layer's outputs."""

    def __init__(self, hook: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.hook = hook

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.hidden(x)
        if hidden.requires_grad:
            hidden.register_hook(self.hook)
        return cast(torch.Tensor, self.out(hidden))


def normalized_gradient() -> nn.Module:
    return HookedGradient(lambda gradient: gradient / gradient.norm())


def clamped_gradient() -> nn.Module:
    return HookedGradient(lambda gradient: gradient.clamp(-0.01, 0.01))


def sparse_gradient() -> nn.Module:
    return Looked(sparse=True)


class Trimmed(Plain):
    """A model with an output whose size depends on the batch, and one whose rows are no examples."""

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:  # type: ignore[override]
        longest = int((x > 0).sum(1).max())
        return {
            "logits": super().forward(x),
            "trimmed": x[:, :longest] * self.out.weight[0, 0],
            "rows": 1 * self.hidden.weight,
        }


class UndefinedGradient(Plain):
    """A model without a backward pass in evaluation mode."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        logits = super().forward(x)
        return logits if self.training else logits.exp_().sin_().exp_()  # exp needs the result that sin replaces


class SummedInFloat32(Plain):
    """A model with a scale whose gradient is summed over the examples in float32, as in stock transformers."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.zeros(5))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward((x.float() * (1.0 + self.scale.float())).to(x.dtype))


class Moved(Plain):
    """A model with a buffer that changes in a way that no run can follow."""

    centre: torch.Tensor | None

    def __init__(self, way: str) -> None:
        super().__init__()
        self.way = way
        self.register_buffer("centre", None if way == "created" else torch.zeros(5))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.way == "evaluated" and not self.training:
            assert self.centre is not None
            self.centre += 1
        elif self.way == "created" and self.training:
            self.centre = torch.ones(5)
        elif self.way == "grown" and self.training:
            self.centre = torch.zeros(6)
        return super().forward(x)


class Noisy(nn.Module):
    """A layer that multiplies by random numbers in training."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * torch.bernoulli(torch.full_like(x, 0.5)) if self.training else x


class NoisyLinear(nn.Linear):
    """A layer with weights that adds random numbers to its input in training."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x + torch.randn_like(x) if self.training else x)


class Aging(nn.Module):
    """A layer with a state that is no buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += self.training
        return x * 0.9**self.calls


def aging() -> nn.Module:
    return nn.Sequential(nn.Linear(5, 4), Aging(), nn.Linear(4, 3))


def centred() -> nn.Module:
    return Centred()


def counting() -> nn.Module:
    return Counting()


def damped() -> nn.Module:
    return Damped()


def evaluating() -> nn.Module:
    return Moved("evaluated")


def creating() -> nn.Module:
    return Moved("created")


def growing() -> nn.Module:
    return Moved("grown")


def averaging() -> nn.Module:
    """Build a model whose BatchNorm averages all batches, for which it counts them."""
    return nn.Sequential(nn.Linear(5, 4), nn.BatchNorm1d(4, momentum=None), nn.Linear(4, 3))


def spectral() -> nn.Module:
    return nn.Sequential(nn.utils.parametrizations.spectral_norm(nn.Linear(5, 4)), nn.Linear(4, 3))


def normalized() -> nn.Module:
    """Build a model with a parametrization that has no state, and with BatchNorm."""
    return nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Linear(5, 4)), nn.BatchNorm1d(4), nn.Linear(4, 3))


def noisy() -> nn.Module:
    return nn.Sequential(nn.Linear(5, 4), nn.Sequential(nn.ReLU(), Noisy()), nn.Linear(4, 3))


def noisy_weights() -> nn.Module:
    return nn.Sequential(nn.Linear(5, 4), NoisyLinear(4, 3))


class FirstAxisIsTime(nn.Module):
    """A model whose recurrent layer takes the examples for steps in time."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.out = nn.LSTM(5, 4), nn.Linear(4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return cast(torch.Tensor, self.out(self.lstm(x[:, None])[0][:, -1]))


class Routed(nn.Module):
    """A model whose second half takes at most two examples of a batch, those with the largest scores."""

    def __init__(self) -> None:
        super().__init__()
        self.out = nn.Linear(5, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        taken = torch.zeros(len(x), 1, dtype=x.dtype).index_fill(0, x.sum(1).topk(2).indices, 1.0)
        return cast(torch.Tensor, self.out(x) * (1 + taken))


class Standardized(nn.Module):
    """A model that divides by the standard deviation of the batch."""

    def __init__(self) -> None:
        super().__init__()
        self.out = nn.Linear(5, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return cast(torch.Tensor, self.out(x / (x.std(0) + 0.1)))


class Looked(nn.Module):
    """A model that looks its input up in an embedding with special arguments."""

    def __init__(self, **arguments: Any) -> None:
        super().__init__()
        self.table, self.out = nn.Embedding(5, 4, **arguments), nn.Linear(4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return cast(torch.Tensor, self.out(self.table(x.argmax(1))))


def renormalized() -> nn.Module:
    return Looked(max_norm=1.0)


def counted() -> nn.Module:
    return Looked(scale_grad_by_freq=True)


def clipped() -> nn.Module:
    model = Plain()
    model.hidden.weight.register_hook(lambda gradient: gradient.clamp(-1, 1))
    return model


def synchronized() -> nn.Module:
    return nn.Sequential(nn.Linear(5, 4), nn.SyncBatchNorm(4), nn.Linear(4, 3))


class Rotated(Plain):
    """A model with a parameter, or else a buffer, that is not real."""

    order: torch.Tensor
    rotation: torch.Tensor

    def __init__(self, order: torch.Tensor, rotation: torch.Tensor) -> None:
        super().__init__()
        for name, tensor in (("order", order), ("rotation", rotation)):
            if isinstance(tensor, nn.Parameter):
                self.register_parameter(name, tensor)
            else:
                self.register_buffer(name, tensor)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward((x[:, self.order] * self.rotation).imag.to(x.dtype))


ORDER, ROTATION = torch.arange(5).flip(0), torch.polar(torch.ones(5), torch.arange(5.0))


def rotated() -> nn.Module:
    return Rotated(ORDER, ROTATION)


def trained_rotation() -> nn.Module:
    return Rotated(ORDER, nn.Parameter(ROTATION))


def parameter_of_indices() -> nn.Module:
    return Rotated(nn.Parameter(ORDER, requires_grad=False), ROTATION)


class Scaled(Plain):
    """A model with two constants, of which a state dict has one."""

    scale: torch.Tensor
    offset: torch.Tensor

    def __init__(self, scale: float) -> None:
        super().__init__()
        self.register_buffer("scale", torch.tensor(scale))
        self.register_buffer("offset", torch.zeros(5), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x * self.scale + self.offset)


def scaled(scale: float = 1.0) -> nn.Module:
    return Scaled(scale)


def plain(classes: int = 3) -> nn.Module:
    return Plain(classes)


def late() -> nn.Module:
    return Late()


def masked() -> nn.Module:
    return Masked()


def two_inputs() -> nn.Module:
    return TwoInputs()


def two_outputs() -> nn.Module:
    return TwoOutputs()


def stacked() -> nn.Module:
    return Stacked()


def compute_losses(outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return nn.functional.cross_entropy(outputs, labels, reduction="none")


def compute_losses_of_examples(outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return compute_losses(outputs, labels).mean(1)


def compute_contrastive_losses(outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Return the losses of examples that are compared with all other examples of the batch."""
    return nn.functional.cross_entropy(outputs @ outputs.T, torch.arange(len(labels)), reduction="none")


def compute_number(outputs: torch.Tensor, labels: torch.Tensor) -> float:
    return outputs.sum().item()


def compute_mean_loss(outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return nn.functional.cross_entropy(outputs, labels)


def compute_float32_losses(outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Return losses, but fail on the float64 outputs of an evaluation."""
    return outputs @ torch.ones(3, dtype=torch.float32)


class OfEachValue(nn.Module):
    """A model that returns logits [n, 3, 5] of a class for each value of x."""

    def __init__(self) -> None:
        super().__init__()
        self.out = nn.Conv1d(1, 3, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.out(x[:, None])
        return result


def of_each_value() -> nn.Module:
    return OfEachValue()
