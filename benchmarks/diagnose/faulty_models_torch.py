"""Small models with faults that users met in ports of a model to another framework.

`faults` names the faults of a model; "a+b" in the config stands for two of them. The input `real` is 1 for a token and
0 for padding. model_plants.py lists the cause that a diagnosis must name for each fault.
"""

import torch
from torch import nn
from typing_extensions import override

WIDTH = 16


class Text(nn.Module):
    """A layer of an encoder and the mean over real tokens: tokens [n, t] and real [n, t] to logits [n, 3]."""

    def __init__(self, faults: list[str], dropout: float) -> None:
        super().__init__()
        self.faults = faults
        self.embedding = nn.Embedding(20, WIDTH, padding_idx=0 if "padding_row" in faults else None)
        self.query, self.key, self.value, self.out = (nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.norm = nn.LayerNorm(WIDTH, eps=1e-3 if "epsilon" in faults else 1e-5)
        self.inner, self.outer = Linear(WIDTH, 2 * WIDTH, faults), nn.Linear(2 * WIDTH, WIDTH)
        self.last_norm = NormInBfloat16(WIDTH) if "norm_in_bfloat16" in faults else nn.LayerNorm(WIDTH)
        self.dropout = nn.Dropout(dropout)
        self.classifier = nn.Linear(WIDTH, 3)
        if "frozen" in faults:
            self.embedding.weight.requires_grad = False

    @override
    def forward(self, tokens: torch.Tensor, real: torch.Tensor) -> torch.Tensor:
        x = self.embedding(tokens)
        x = self.norm(x + self.dropout(self.out(self.attend(x, real))))
        x = self.last_norm(x + self.outer(self.activate(self.inner(x))))
        if "unit_norm" in self.faults:
            x = x * real[..., None]
            x = x / (x.square().sum(-1, keepdim=True) + (1e-60 if "tiny_epsilon" in self.faults else 1e-12)).sqrt()
        if "first_token" in self.faults:
            pooled = x[:, 0]
        elif "mean_of_padding" in self.faults:
            pooled = x.mean(1)
        else:
            keep = real[..., None].to(x.dtype)
            pooled = (x * keep).sum(1) / keep.sum(1)
        if "pooled_in_bfloat16" in self.faults:
            pooled = pooled.bfloat16().to(x.dtype)
        if "detached" in self.faults:
            pooled = pooled.detach()
        logits: torch.Tensor = self.classifier(pooled)
        return logits.softmax(-1) if "double_softmax" in self.faults else logits

    def activate(self, x: torch.Tensor) -> torch.Tensor:
        """Apply the activation of the feed-forward layer."""
        if "relu" in self.faults:
            return x.relu()
        return nn.functional.gelu(x, approximate="tanh" if "gelu_tanh" in self.faults else "none")

    def attend(self, x: torch.Tensor, real: torch.Tensor) -> torch.Tensor:
        """Attend to the real tokens [n, t, features]."""
        q, k, v = self.query(x), self.key(x), self.value(x)
        if "query_key" in self.faults:
            q, k = k, q
        scores = q @ k.transpose(1, 2) * (1.0 if "scale" in self.faults else WIDTH**-0.5)
        keep = real[:, None, :] > 0
        if "mask_inverted" in self.faults:
            keep = ~keep
        if "causal" in self.faults:
            keep = keep & torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).tril()
        if "mask_overflows" in self.faults:
            scores = scores + (1 - keep.to(scores.dtype)) * -1e300
        elif "mask_ignored" not in self.faults:
            scores = scores.masked_fill(~keep, torch.finfo(scores.dtype).min)
        result: torch.Tensor = scores.softmax(-1) @ v
        return result


class NormInBfloat16(nn.LayerNorm):
    """A layer norm that computes in bfloat16, which autocast leaves in float32."""

    @override
    def forward(self, input: torch.Tensor) -> torch.Tensor:
        x, weight, bias = (x.bfloat16() for x in (input, self.weight, self.bias))
        with torch.autocast(input.device.type, enabled=False):
            return nn.functional.layer_norm(x, self.normalized_shape, weight, bias, self.eps).to(input.dtype)


class Images(nn.Module):
    """A convolutional network: images [n, 3, 8, 8] to logits [n, 3]."""

    def __init__(self, faults: list[str]) -> None:
        super().__init__()
        self.faults = faults
        self.first = nn.Conv2d(3, 6, 3, stride=2, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(
            6, eps=1e-3 if "bn_epsilon" in faults else 1e-5, momentum=0.01 if "bn_momentum" in faults else 0.1
        )
        if "biased_variance" in faults:
            self.norm.register_forward_hook(bias_variance)
        self.second = Conv(6, 6, 3, faults)
        self.square = nn.Linear(6, 6)
        self.classifier = nn.Linear(6, 3)

    @override
    def forward(self, images: torch.Tensor) -> torch.Tensor:
        x = self.norm(self.first(images))
        x = nn.functional.leaky_relu(x, 0.2) if "leaky" in self.faults else x.relu()
        x = self.second(x).relu()
        x = x.amax((2, 3)) if "max_pool" in self.faults else x.mean((2, 3))
        x = x @ self.square.weight + self.square.bias if "unseen" in self.faults else self.square(x)
        if "scaled" in self.faults:
            x = x * 2
        result: torch.Tensor = self.classifier(x.tanh())
        return result


def bias_variance(norm: nn.Module, inputs: tuple[torch.Tensor, ...], _: torch.Tensor) -> None:
    """Let the moving variance divide by n, not n - 1."""
    assert isinstance(norm, nn.BatchNorm2d) and norm.running_var is not None and norm.momentum is not None
    if norm.training:
        x = inputs[0].detach()
        biased = x.var((0, 2, 3), correction=0)
        norm.running_var = norm.running_var - norm.momentum * biased / (x.numel() / x.shape[1] - 1)


def round_operand(x: torch.Tensor, faults: list[str]) -> torch.Tensor:
    """Round an operand of a matrix product to the low precision that `faults` names, if any."""
    if "tf32" in faults:
        bits = (x.detach().float().view(torch.int32) + 0x1000) & ~0x1FFF
        return x + (bits.view(torch.float32).to(x.dtype) - x).detach()
    name = next((name for name in ("bfloat16", "float16", "float32") if name in faults), None)
    return x if name is None else x.to(getattr(torch, name))


class Linear(nn.Linear):
    """A linear layer that may multiply in low precision."""

    def __init__(self, inputs: int, outputs: int, faults: list[str]) -> None:
        super().__init__(inputs, outputs)
        self.faults = faults

    @override
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x, weight = round_operand(x, self.faults), round_operand(self.weight, self.faults)
        return nn.functional.linear(x, weight, self.bias.to(x.dtype)).to(self.weight.dtype)


class Conv(nn.Conv2d):
    """A convolution that may multiply in low precision."""

    def __init__(self, inputs: int, outputs: int, size: int, faults: list[str]) -> None:
        super().__init__(inputs, outputs, size, padding=size // 2)
        self.faults = faults

    @override
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        assert self.bias is not None
        x, weight = round_operand(x, self.faults), round_operand(self.weight, self.faults)
        return nn.functional.conv2d(x, weight, self.bias.to(x.dtype), padding="same").to(self.weight.dtype)


class Sequences(nn.Module):
    """A recurrent layer, and an output tied to the embedding: tokens [n, t] and real [n, t] to logits [n, 3]."""

    def __init__(self, faults: list[str], cell: str) -> None:
        super().__init__()
        self.order = {"LSTM": (0, 1, 3, 2), "GRU": (1, 0, 2)}[cell]
        self.embedding = nn.Embedding(20, WIDTH)
        self.recurrent = {"LSTM": nn.LSTM, "GRU": nn.GRU}[cell](WIDTH, WIDTH, batch_first=True)
        if "gates" in faults:
            self.recurrent.register_forward_pre_hook(lambda layer, _: self.order_gates(layer))
        if "copied_gates" in faults:
            for parameter in self.recurrent.parameters():
                parameter.data = self.reorder(parameter.data)
        self.output = None
        if "untied" in faults:
            self.output = nn.Linear(WIDTH, 20, bias=False)
            self.output.weight.data = self.embedding.weight.data.clone()

    def reorder(self, weight: torch.Tensor) -> torch.Tensor:
        """Return a weight with the blocks of its gates in another order."""
        blocks = weight.chunk(len(self.order))
        return torch.cat([blocks[index] for index in self.order])

    def order_gates(self, layer: nn.RNNBase) -> None:
        """Let the layer read the block of one gate in its weights as the block of another gate."""
        layer._flat_weights = [self.reorder(getattr(layer, name)) for name in layer._flat_weights_names]

    @override
    def forward(self, tokens: torch.Tensor, real: torch.Tensor) -> torch.Tensor:
        states, _ = self.recurrent(self.embedding(tokens) * real[..., None])
        logits: torch.Tensor = self.output(states) if self.output is not None else states @ self.embedding.weight.T
        return logits[:, -1, :3]


def build_sequences(torch_fault: str = "", tf_fault: str = "", cell: str = "LSTM") -> nn.Module:
    """Build the model. Faults of this side are joined by "+"."""
    return Sequences(torch_fault.split("+"), cell)


def build_text(torch_fault: str = "", tf_fault: str = "", dropout: float = 0.0) -> nn.Module:
    """Build the model. Faults of this side are joined by "+"."""
    return Text(torch_fault.split("+"), dropout)


def build_images(torch_fault: str = "", tf_fault: str = "") -> nn.Module:
    """Build the model. Faults of this side are joined by "+"."""
    return Images(torch_fault.split("+"))
