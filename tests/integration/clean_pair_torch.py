"""PyTorch's halves of the clean pairs, in a process of their own: python -m tests.integration.clean_pair_torch DIR.

DIR has arrays.npz with the weights, in Keras's layout, and the batches. The records are written to DIR.
"""

import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import numpy as np
import torch
from accelerate import Accelerator
from torch import nn

from torch_impl.record import Recorder

Arrays = Mapping[str, np.ndarray]


def build_mlp(weights: Arrays) -> nn.Module:
    model = nn.Sequential(nn.Linear(10, 16), nn.ReLU(), nn.LayerNorm(16, eps=1e-3), nn.Linear(16, 3))
    names = ("0.weight", "0.bias", "2.weight", "2.bias", "3.weight", "3.bias")
    model.load_state_dict({name: torch.tensor(weights[f"mlp{i}"].T) for i, name in enumerate(names)})
    return model


def build_cnn(weights: Arrays) -> nn.Module:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.GELU(), nn.Flatten(), nn.Linear(64, 3))
    kernel = weights["cnn2"].reshape(4, 4, 4, 3).transpose(3, 2, 0, 1).reshape(3, 64)  # channels come last in Keras
    arrays = weights["cnn0"].transpose(3, 2, 0, 1), weights["cnn1"], kernel, weights["cnn3"]
    names = ("0.weight", "0.bias", "3.weight", "3.bias")
    model.load_state_dict({name: torch.tensor(x) for name, x in zip(names, arrays, strict=True)})
    return model


def make_optimizer(name: str, model: nn.Module, decay: float = 0.0) -> torch.optim.Optimizer:
    if name == "mlp":
        return torch.optim.SGD(model.parameters(), 0.1, momentum=0.9, weight_decay=decay)
    return torch.optim.AdamW(model.parameters(), 1e-2, weight_decay=0.01, eps=1e-7)


def iterate_batches(name: str, arrays: Arrays, parts: int = 1) -> Iterator[list[tuple[torch.Tensor, torch.Tensor]]]:
    for step in range(4):
        x, y = torch.tensor(arrays[f"{name}_x"][step]), torch.tensor(arrays["y"][step])
        x = x.permute(0, 3, 1, 2).contiguous() if x.ndim == 4 else x
        yield list(zip(x.chunk(parts), y.chunk(parts), strict=True))


def train(
    name: str, arrays: Arrays, path: Path, parts: int = 1, max_norm: float | None = None, decay: float = 0.0
) -> None:
    model = {"mlp": build_mlp, "cnn": build_cnn}[name](arrays)
    optimizer = make_optimizer(name, model, decay)
    Recorder(str(path), model, optimizer)
    for micro_batches in iterate_batches(name, arrays, parts):
        optimizer.zero_grad()
        for x, y in micro_batches:
            (nn.functional.cross_entropy(model(x), y) / parts).backward()
        if max_norm is not None:
            nn.utils.clip_grad_norm_(model.parameters(), max_norm)
        optimizer.step()


def train_by_accelerate(arrays: Arrays, path: Path) -> None:
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    model = build_mlp(arrays)
    batches = [batch for parts in iterate_batches("mlp", arrays, 2) for batch in parts]
    model, optimizer = accelerator.prepare(model, make_optimizer("mlp", model))
    Recorder(str(path), model, optimizer)
    for x, y in batches:
        with accelerator.accumulate(model):
            accelerator.backward(nn.functional.cross_entropy(model(x), y))
            optimizer.step()
            optimizer.zero_grad()


def main() -> None:
    directory = Path(sys.argv[1])
    arrays = np.load(directory / "arrays.npz")
    halves: dict[str, Callable[[Path], None]] = {
        "torch loop": lambda path: train("mlp", arrays, path),
        "torch accumulation": lambda path: train("mlp", arrays, path, parts=2),
        "torch clipped": lambda path: train("mlp", arrays, path, max_norm=0.2),
        "torch decay": lambda path: train("mlp", arrays, path, decay=0.01),
        "torch cnn": lambda path: train("cnn", arrays, path),
        "accelerate": lambda path: train_by_accelerate(arrays, path),
    }
    for name, write in halves.items():
        write(directory / name)


if __name__ == "__main__":
    main()
