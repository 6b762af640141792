"""Factories of PyTorch modules; keras_models.py has one of the same name for each."""

import torch
import torch.nn.functional as F  # noqa: N812  the usual name
from torch import Tensor, nn


class Output(nn.Module):
    """A recurrent layer without its states."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x)[0]


def linear(bias: bool = True) -> nn.Module:
    return nn.Linear(6, 4, bias=bias)


def square() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 6))


def gelu(approximate: str = "none") -> nn.Module:
    return nn.Sequential(nn.Linear(6, 8), nn.GELU(approximate), nn.Linear(8, 3))


def activations() -> nn.Module:
    return nn.Sequential(
        nn.Linear(6, 8), nn.LeakyReLU(0.3), nn.Linear(8, 8), nn.ELU(0.7), nn.Linear(8, 8), nn.SiLU(), nn.Linear(8, 2)
    )


def conv1d() -> nn.Module:
    return nn.Conv1d(3, 5, 3, stride=2)


def conv2d(padding: int = 1) -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, 6, 3, padding=padding), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(6, 6, 3))


def conv3d() -> nn.Module:
    return nn.Conv3d(2, 4, (1, 2, 2))


def grouped() -> nn.Module:
    return nn.Conv2d(4, 8, 3, groups=2)


def depthwise() -> nn.Module:
    return nn.Conv2d(3, 6, 3, groups=3)


def depthwise1d() -> nn.Module:
    return nn.Conv1d(3, 6, 3, groups=3)


def separable() -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, 6, 3, groups=3, bias=False), nn.Conv2d(6, 5, 1))


def transposed1d() -> nn.Module:
    return nn.ConvTranspose1d(3, 5, 2, stride=2)


def transposed2d() -> nn.Module:
    return nn.ConvTranspose2d(3, 5, 3, stride=1)


def transposed3d() -> nn.Module:
    return nn.ConvTranspose3d(2, 4, 2, stride=2)


def embedding() -> nn.Module:
    return nn.Sequential(nn.Embedding(11, 6), nn.Linear(6, 3))


def padded_embedding() -> nn.Module:
    return nn.Sequential(nn.Embedding(11, 6, padding_idx=0), nn.Linear(6, 3))


def layer_norm(epsilon: float = 1e-5) -> nn.Module:
    return nn.Sequential(nn.Linear(6, 8), nn.LayerNorm(8, eps=epsilon))


def rms_norm() -> nn.Module:
    return nn.RMSNorm(6, eps=1e-6)


def batch_norm(momentum: float = 0.1) -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4, momentum=momentum), nn.ReLU())


def batch_norm_1d() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Linear(8, 2))


def group_norm() -> nn.Module:
    return nn.GroupNorm(2, 4, eps=1e-3)


def instance_norm() -> nn.Module:
    return nn.InstanceNorm2d(3, eps=1e-3, affine=True)


def prelu() -> nn.Module:
    return nn.PReLU(3)


def lstm() -> nn.Module:
    return Output(nn.LSTM(6, 5, batch_first=True))


def stacked_lstm() -> nn.Module:
    return Output(nn.LSTM(6, 6, num_layers=2, batch_first=True, dropout=0.3))


def bidirectional_lstm() -> nn.Module:
    return Output(nn.LSTM(6, 5, num_layers=2, bidirectional=True, batch_first=True))


def gru() -> nn.Module:
    return Output(nn.GRU(6, 5, batch_first=True))


def bidirectional_gru() -> nn.Module:
    return Output(nn.GRU(6, 6, bidirectional=True, batch_first=True))


def rnn() -> nn.Module:
    return Output(nn.RNN(6, 5, batch_first=True))


def last_step() -> nn.Module:
    class LastStep(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.rnn, self.head = nn.LSTM(6, 5), nn.Linear(5, 2)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.rnn(x.transpose(0, 1))[0][-1])

    return LastStep()


def cells() -> nn.Module:
    class Cells(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.cell = nn.GRUCell(6, 5)

        def forward(self, x: Tensor) -> Tensor:
            state = x.new_zeros(len(x), 5)
            for step in x.unbind(1):
                state = self.cell(step, state)
            return state

    return Cells()


class SelfAttention(nn.Module):
    def __init__(self, size: int = 8) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(size, 2, batch_first=True, dropout=0.1)

    def forward(self, x: Tensor) -> Tensor:
        return self.attention(x, x, x)[0]


def self_attention() -> nn.Module:
    return SelfAttention()


class CrossAttention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(8, 2, kdim=6, vdim=6, batch_first=True)

    def forward(self, query: Tensor, memory: Tensor) -> Tensor:
        return self.attention(query, memory, memory)[0]


def cross_attention() -> nn.Module:
    return CrossAttention()


class OwnAttention(nn.Module):
    """Four linear layers and scaled_dot_product_attention, called in an order of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.value, self.key, self.query = (nn.Linear(8, 8) for _ in range(3))
        self.attention_output = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        value, key, query = (
            layer(x).unflatten(-1, (2, 4)).transpose(1, 2) for layer in (self.value, self.key, self.query)
        )
        mixed = F.scaled_dot_product_attention(query, key, value, dropout_p=0.2 if self.training else 0.0)
        return self.attention_output(mixed.transpose(1, 2).flatten(2))


def own_attention() -> nn.Module:
    return OwnAttention()


class FusedAttention(nn.Module):
    """One linear layer for query, key and value."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.proj = nn.Linear(8, 24), nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = self.qkv(x).unflatten(-1, (3, 2, 4)).permute(2, 0, 3, 1, 4)
        return self.proj(F.scaled_dot_product_attention(query, key, value).transpose(1, 2).flatten(2))


def fused_attention() -> nn.Module:
    return FusedAttention()


def fused_dense() -> nn.Module:
    return SelfAttention()


def transformer() -> nn.Module:
    layer = nn.TransformerEncoderLayer(8, 2, 16, activation="gelu", batch_first=True)
    return nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)


class Tied(nn.Module):
    def __init__(self, bias: bool = True) -> None:
        super().__init__()
        self.tokens = nn.Embedding(11, 6)
        self.decoder = nn.Linear(6, 11, bias=bias)
        self.decoder.weight = self.tokens.weight

    def forward(self, tokens: Tensor) -> Tensor:
        return self.decoder(torch.tanh(self.tokens(tokens)))


def tied() -> nn.Module:
    return Tied()


def tied_without_bias() -> nn.Module:
    return Tied(bias=False)


class Plain(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale, self.shift = nn.Parameter(torch.ones(6)), nn.Parameter(torch.zeros(1, 6))
        self.table: Tensor
        self.register_buffer("table", torch.linspace(0, 0.7, 6).sin())

    def forward(self, x: Tensor) -> Tensor:
        return x * self.scale + self.shift + self.table


def plain() -> nn.Module:
    return Plain()


def flattened(classes: int = 3) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.BatchNorm1d(4 * 36), nn.Dropout(0.5), nn.Linear(4 * 36, classes)
    )


class Cube(nn.Module):
    """Its flattened images are as wide and as high as they have channels."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.head, self.unused = nn.Conv2d(3, 6, 3), nn.Linear(216, 2), nn.Linear(2, 2)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.conv(x))
        return self.head(F.hardswish(x.view(len(x), -1)))


def cube() -> nn.Module:
    return Cube()


def flattened_tokens() -> nn.Module:
    return nn.Sequential(nn.Embedding(11, 5), nn.Flatten(), nn.Linear(25, 2))


class Residual(nn.Module):
    """Two convolutions of one size beside a shortcut, then a function that pools."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2, self.shortcut = (nn.Conv2d(3, 3, 3, padding=1) for _ in range(3))
        self.norm1, self.norm2 = nn.BatchNorm2d(3), nn.BatchNorm2d(3)
        self.head = nn.Linear(3, 2)

    def forward(self, images: Tensor) -> Tensor:
        x = F.relu(self.norm1(self.conv1(images)))
        x = F.relu(self.norm2(self.conv2(x)) + self.shortcut(images))
        return self.head(F.adaptive_avg_pool2d(x, 1).flatten(1))


def residual() -> nn.Module:
    return Residual()


class TwoInputs(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.numbers = nn.Embedding(9, 4), nn.Linear(3, 4)
        self.head = nn.LazyLinear(2)

    def forward(self, tokens: Tensor, numbers: Tensor) -> dict[str, Tensor]:
        x = F.dropout(self.words(tokens).mean(1) + self.numbers(numbers), 0.5, self.training)
        return {"logits": self.head(x), "hidden": x}


def two_inputs() -> nn.Module:
    return TwoInputs()


class Repeated(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 6)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(torch.tanh(self.layer(x)))


def repeated() -> nn.Module:
    return Repeated()


def fails() -> nn.Module:
    raise KeyError("weights of 2019")


def no_module() -> list[int]:
    return [1]


def strided() -> nn.Module:
    return nn.Conv2d(3, 4, 3, stride=2, padding=1)


def no_statistics() -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4, track_running_stats=False), nn.ReLU())


class Masked(nn.Module):
    """masked: what is added to some of the outputs; the two models may differ in the others."""

    def __init__(self, value: float) -> None:
        super().__init__()
        self.layer, self.value = nn.Linear(6, 6), value

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x).masked_fill(torch.arange(6) >= 2, self.value)


def masked(value: float) -> nn.Module:
    return Masked(value)


class Scores(nn.Module):
    """An output of two axes of one size, which are not the same."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.key = nn.Linear(6, 4), nn.Linear(6, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.query(x) @ self.key(x).mT


def scores() -> nn.Module:
    return Scores()


class Classes(nn.Module):
    """The largest logit, beside the logits."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 4)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        logits = self.layer(x)
        return logits, logits.argmax(-1)


def classes() -> nn.Module:
    return Classes()


def no_parameters() -> nn.Module:
    return nn.Tanh()


def all_frozen() -> nn.Module:
    return nn.Linear(6, 4).requires_grad_(False)


class Centered(nn.Module):
    """A buffer that moves in training, in place or, if `reassigned` is set, as a new tensor."""

    center: Tensor

    def __init__(self, reassigned: bool = False) -> None:
        super().__init__()
        self.layer, self.reassigned = nn.Linear(6, 4), reassigned
        self.register_buffer("center", torch.zeros(4))

    def forward(self, x: Tensor) -> Tensor:
        x = self.layer(x)
        if self.training:
            moved = 0.9 * self.center + 0.1 * x.detach().mean(0)
            self.center = moved if self.reassigned else self.center.copy_(moved)
        return x


def centered(reassigned: bool = False) -> nn.Module:
    return Centered(reassigned)


class TwoModes(nn.Module):
    """A second output in training mode."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 4)

    def forward(self, x: Tensor) -> Tensor | tuple[Tensor, Tensor]:
        x = self.layer(x)
        return (x, x.tanh()) if self.training else x


def two_modes() -> nn.Module:
    return TwoModes()


class NormInEvaluation(nn.Module):
    """A layer that training mode does not call."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.norm = nn.Linear(6, 4), nn.BatchNorm1d(4)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x) if self.training else self.norm(self.layer(x))


def norm_in_evaluation() -> nn.Module:
    return NormInEvaluation()


def upsampled() -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, 2, 1), nn.Upsample(scale_factor=(2, 3), mode="bilinear"), nn.Conv2d(2, 2, 1))


def normed_images() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 8, 1), nn.LayerNorm([8, 8, 8]), nn.Conv2d(8, 2, 3), nn.LayerNorm([2, 6, 6]), nn.Conv2d(2, 4, 1)
    )


def normed_tokens() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 4), nn.LayerNorm([4, 4]))


def enlarged() -> nn.Module:
    return nn.ConvTranspose2d(3, 5, 3, stride=2, padding=1, output_padding=1)


def _convolve(inputs: int, outputs: int, size: int, dilation: int = 1) -> nn.Module:
    padding = dilation * (size // 2)
    convolution = nn.Conv2d(inputs, outputs, size, padding=padding, dilation=dilation, bias=False)
    return nn.Sequential(convolution, nn.BatchNorm2d(outputs), nn.ReLU())


class Branches(nn.Module):
    """Branches of equal sizes: several dilations, a chain of two convolutions, and a pooling."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = _convolve(3, 8, 3)
        dilated = [_convolve(8, 6, 3, dilation) for dilation in (1, 2, 3)]
        chain = nn.Sequential(_convolve(8, 6, 1), _convolve(6, 6, 3))
        self.branches = nn.ModuleList([_convolve(8, 6, 1), *dilated, chain])
        self.pool = nn.Sequential(nn.AdaptiveAvgPool2d(1), _convolve(8, 6, 1), nn.Upsample(scale_factor=8))
        self.out = nn.Conv2d(36, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        return self.out(torch.cat([*(branch(x) for branch in self.branches), self.pool(x)], 1))


def branches(padded: bool = False) -> nn.Module:
    return Branches()
