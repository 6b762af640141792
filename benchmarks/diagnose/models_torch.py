"""Small models with faults that a port may have: each fault is one that users met; "a+b" is two of them."""

import torch
from torch import nn

WIDTH = 16


class Text(nn.Module):
    """tokens [n, t] and real [n, t] to logits [n, 3]: one layer of an encoder and the mean over real tokens."""

    def __init__(self, faults: list[str], dropout: float) -> None:
        super().__init__()
        self.faults = faults
        self.embedding = nn.Embedding(20, WIDTH, padding_idx=0 if "padding_row" in faults else None)
        self.query, self.key, self.value, self.out = (nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.norm = nn.LayerNorm(WIDTH, eps=1e-3 if "epsilon" in faults else 1e-5)
        self.inner, self.outer = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)
        self.last_norm = nn.LayerNorm(WIDTH)
        self.dropout = nn.Dropout(dropout)
        self.classifier = nn.Linear(WIDTH, 3)
        if "frozen" in faults:
            self.embedding.weight.requires_grad = False

    def forward(self, tokens: torch.Tensor, real: torch.Tensor) -> torch.Tensor:
        x = self.embedding(tokens)
        x = self.norm(x + self.dropout(self.out(self.attend(x, real))))
        x = self.last_norm(x + self.outer(self.activate(self.inner(x))))
        if "first_token" in self.faults:
            pooled = x[:, 0]
        elif "mean_of_padding" in self.faults:
            pooled = x.mean(1)
        else:
            keep = real[..., None].to(x.dtype)
            pooled = (x * keep).sum(1) / keep.sum(1)
        if "detached" in self.faults:
            pooled = pooled.detach()
        logits: torch.Tensor = self.classifier(pooled)
        return logits.softmax(-1) if "double_softmax" in self.faults else logits

    def activate(self, x: torch.Tensor) -> torch.Tensor:
        if "relu" in self.faults:
            return x.relu()
        return nn.functional.gelu(x, approximate="tanh" if "gelu_tanh" in self.faults else "none")

    def attend(self, x: torch.Tensor, real: torch.Tensor) -> torch.Tensor:
        q, k, v = self.query(x), self.key(x), self.value(x)
        if "query_key" in self.faults:
            q, k = k, q
        scores = q @ k.transpose(1, 2) * (1.0 if "scale" in self.faults else WIDTH**-0.5)
        keep = real[:, None, :] > 0
        if "mask_inverted" in self.faults:
            keep = ~keep
        if "causal" in self.faults:
            keep = keep & torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).tril()
        if "mask_ignored" not in self.faults:
            scores = scores.masked_fill(~keep, torch.finfo(scores.dtype).min)
        result: torch.Tensor = scores.softmax(-1) @ v
        return result


class Images(nn.Module):
    """images [n, 3, 8, 8] to logits [n, 3]."""

    def __init__(self, faults: list[str]) -> None:
        super().__init__()
        self.faults = faults
        self.first = nn.Conv2d(3, 6, 3, stride=2, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(
            6, eps=1e-3 if "bn_epsilon" in faults else 1e-5, momentum=0.01 if "bn_momentum" in faults else 0.1
        )
        if "biased_variance" in faults:
            self.norm.register_forward_hook(bias_variance)
        self.second = nn.Conv2d(6, 6, 3, padding=1)
        self.square = nn.Linear(6, 6)
        self.classifier = nn.Linear(6, 3)

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
    """Have the moving variance follow sums of squares over n, not n - 1."""
    assert isinstance(norm, nn.BatchNorm2d) and norm.running_var is not None and norm.momentum is not None
    if norm.training:
        x = inputs[0].detach()
        biased = x.var((0, 2, 3), correction=0)
        norm.running_var = norm.running_var - norm.momentum * biased / (x.numel() / x.shape[1] - 1)


def text(torch_fault: str = "", tf_fault: str = "", dropout: float = 0.0) -> nn.Module:
    return Text(torch_fault.split("+"), dropout)


def images(torch_fault: str = "", tf_fault: str = "") -> nn.Module:
    return Images(torch_fault.split("+"))
