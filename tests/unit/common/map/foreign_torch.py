"""Factories of PyTorch modules as other libraries write them; foreign_keras.py has one of the same name for each."""

import torch
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

WIDTH, HEADS = 8, 2


class Attention(nn.Module):
    """Self-attention that computes all its projections in one layer.

    Args:
        layer: The fused layer.
        key_heads: The number of heads of keys and values.
        by_head: Whether the outputs of the layer begin with query, key and value of the first head.
        order: The places of query, key and value among the three.
    """

    def __init__(
        self, layer: nn.Module, key_heads: int = HEADS, by_head: bool = False, order: tuple[int, ...] = (0, 1, 2)
    ) -> None:
        super().__init__()
        self.fused, self.output = layer, nn.Linear(WIDTH, WIDTH)
        self.key_heads, self.by_head, self.order = key_heads, by_head, order

    def forward(self, x: Tensor) -> Tensor:
        n, time, size = *x.shape[:2], WIDTH // HEADS
        fused = self.fused(x)
        if self.by_head:
            parts = [part.flatten(2) for part in fused.view(n, time, HEADS, 3, size).unbind(3)]
        else:
            parts = list(fused.split([WIDTH, self.key_heads * size, self.key_heads * size], -1))
        query, key, value = (
            part.view(n, time, -1, size).transpose(1, 2) for part in (parts[number] for number in self.order)
        )
        key, value = (part.repeat_interleave(HEADS // self.key_heads, 1) for part in (key, value))
        shares = torch.softmax(query @ key.transpose(2, 3) / size**0.5, -1, dtype=torch.float32).to(x.dtype)
        return self.output((shares @ value).transpose(1, 2).reshape(n, time, WIDTH))


class SeparateProjections(nn.Module):
    """Self-attention whose projections are layers of their own. is_value_second: whether the values are before keys."""

    def __init__(self, is_value_second: bool) -> None:
        super().__init__()
        self.query, self.key, self.value, self.output = (nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.is_value_second = is_value_second

    def forward(self, x: Tensor) -> Tensor:
        names = ("query", "value", "key") if self.is_value_second else ("query", "key", "value")
        parts = {name: getattr(self, name)(x).unflatten(2, (HEADS, -1)).transpose(1, 2) for name in names}
        attended = nn.functional.scaled_dot_product_attention(parts["query"], parts["key"], parts["value"])
        return self.output(attended.transpose(1, 2).flatten(2))


class GatedFeedForward(nn.Module):
    """A feed-forward network whose gate and value are one layer."""

    def __init__(self) -> None:
        super().__init__()
        self.gate_up, self.down = nn.Linear(WIDTH, 10, bias=False), nn.Linear(5, WIDTH, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        gate, value = self.gate_up(x).chunk(2, -1)
        return self.down(nn.functional.silu(gate) * value)


class Positions(nn.Module):
    """Embeddings of tokens and of positions, whose table has two more rows than positions."""

    def __init__(self, first: int) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(11, 6), nn.Embedding(10, 6)
        self.first, self.output = first, nn.Linear(6, 3)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.output(self.tokens(tokens) + self.positions(torch.arange(tokens.shape[1]) + self.first))


class RootMeanSquareNorm(nn.Module):
    """A norm that computes in float32, and multiplies with a table that was computed in float32."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(WIDTH))
        self.table = nn.Buffer(1 / 10 ** (torch.arange(0, WIDTH, dtype=torch.int64).float() / WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        wide = x.to(torch.float32)
        wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)
        return self.weight * wide.to(x.dtype) * self.table.to(torch.float32)


class LearnedOffset(nn.Module):
    """A layer whose parameter has an axis of size 1 for the examples."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.offset = nn.Linear(6, 4), nn.Parameter(torch.randn(1, 5, 4))

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x) + self.offset


class Norm(nn.Module):
    """A norm of a class of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.variance_epsilon = nn.Parameter(torch.ones(WIDTH)), 1e-6

    def forward(self, x: Tensor) -> Tensor:
        return self.weight * x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.variance_epsilon)


class Router(nn.Module):
    """A layer of its own class with the variables of a linear layer, which returns probabilities."""

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.randn(3, WIDTH)), nn.Parameter(torch.randn(3))

    def forward(self, x: Tensor) -> Tensor:
        return torch.softmax(nn.functional.linear(x, self.weight, self.bias), -1)


class Experts(nn.Module):
    """A mixture of experts, whose gate and value are one matrix, with a linear layer behind them."""

    def __init__(self) -> None:
        super().__init__()
        self.router, self.output = Router(), nn.Linear(WIDTH, 4)
        self.gate_up, self.down = nn.Parameter(torch.randn(3, 10, WIDTH)), nn.Parameter(torch.randn(3, WIDTH, 5))

    def forward(self, x: Tensor) -> Tensor:
        gate, value = torch.einsum("nti,eoi->nteo", x, self.gate_up).chunk(2, -1)
        experts = torch.einsum("nteo,eio->ntei", nn.functional.silu(gate) * value, self.down)
        return self.output((self.router(x).unsqueeze(-1) * experts).sum(2))


class PositionTable(nn.Module):
    """An embedding that the model reads without calling the layer."""

    def __init__(self) -> None:
        super().__init__()
        self.positions, self.output = nn.Embedding(5, 6), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.output(x + self.positions.weight)


def transposed_linear() -> nn.Module:
    return nn.Sequential(Conv1D(8, 6), nn.Tanh(), Conv1D(6, 8))


def fused(by_head: bool = False) -> nn.Module:
    return Attention(nn.Linear(WIDTH, 3 * WIDTH), by_head=by_head)


class Pointwise(nn.Module):
    """A linear layer, and a convolution of single elements."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.convolution = nn.Linear(6, 6), nn.Conv1d(6, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.convolution(torch.tanh(self.linear(x))[:, :, None])[:, :, 0]


def pointwise() -> nn.Module:
    return Pointwise()


def separate(is_value_second: bool = False) -> nn.Module:
    return SeparateProjections(is_value_second)


def fused_transposed() -> nn.Module:
    return Attention(Conv1D(3 * WIDTH, WIDTH))


def fused_in_another_order() -> nn.Module:
    return Attention(nn.Linear(WIDTH, 3 * WIDTH), order=(0, 2, 1))


def fused_groups() -> nn.Module:
    return Attention(nn.Linear(WIDTH, 2 * WIDTH), key_heads=1)


def gated() -> nn.Module:
    return GatedFeedForward()


def positions(first: int = 0) -> nn.Module:
    return Positions(first)


def norm_in_float32() -> nn.Module:
    return RootMeanSquareNorm()


def offset() -> nn.Module:
    return LearnedOffset()


def without_head() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 6))


def with_biases() -> nn.Module:
    return nn.Sequential(*(nn.Linear(6, 6, bias=False) for _ in range(7)))


def norms() -> nn.Module:
    return nn.Sequential(Norm(), nn.Linear(WIDTH, WIDTH), Norm())


def experts() -> nn.Module:
    return Experts()


def position_table() -> nn.Module:
    return PositionTable()


def gelu() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 8), nn.GELU(), nn.Linear(8, 3))


experts_in_another_order, split_experts, norms_of_another_epsilon = experts, experts, norms
float32_layer, gate_last = without_head, gated


def small_weights() -> nn.Module:
    """Return layers after which float64 has no digit that depends on the inputs, unless their weights are scaled."""
    layers = [nn.Linear(6, 6) for _ in range(8)]
    for layer in layers:
        nn.init.normal_(layer.weight, std=1e-3)
    return nn.Sequential(*layers)
