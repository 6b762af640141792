"""Small training loops that the tests of the recorder record."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.numpy import load_file
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from common.recording.clip_factors import restore_gradients
from torch_impl.record import Recorder

Batch = tuple[torch.Tensor, torch.Tensor]
UpdateModel = Callable[[Any, Any], torch.Tensor]


class Tagger(nn.Module):
    """Classifies tokens, and computes its own loss if it receives labels."""

    def __init__(self, is_tied: bool = False, is_checkpointed: bool = False) -> None:
        super().__init__()
        self.embedding = nn.Embedding(20, 8)
        self.layer, self.norm, self.dropout = nn.Linear(8, 8), nn.LayerNorm(8), nn.Dropout(0.1)
        self.head, self.unused = nn.Linear(8, 20, bias=False), nn.Linear(2, 2)
        self.is_checkpointed = is_checkpointed
        if is_tied:
            self.head.weight = self.embedding.weight

    def forward(self, tokens: torch.Tensor, labels: torch.Tensor | None = None) -> torch.Tensor | dict[str, Any]:
        x = self.embedding(tokens)
        x = checkpoint(self.layer, x, use_reentrant=True) if self.is_checkpointed else self.layer(x)
        logits: torch.Tensor = self.head(self.dropout(self.norm(functional.relu(x, inplace=not self.is_checkpointed))))
        if labels is None:
            return logits
        return {"loss": compute_loss(logits, labels), "logits": logits}


def draw_batch() -> Batch:
    return torch.randint(0, 20, (4, 5)), torch.randint(0, 20, (4, 5))


def compute_loss(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return functional.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=3)


def update(model: Any, optimizer: Any) -> torch.Tensor:
    tokens, labels = draw_batch()
    optimizer.zero_grad()
    loss = compute_loss(model(tokens), labels)
    loss.backward()
    optimizer.step()
    return loss.detach()


def build_adam(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.Adam(model.parameters(), lr=1e-2)


def train(
    directory: Path | None,
    update_model: UpdateModel = update,
    build_model: Callable[[], nn.Module] = Tagger,
    build_optimizer: Callable[[Any], torch.optim.Optimizer] = build_adam,
    **options: Any,
) -> tuple[list[float], nn.Module, torch.optim.Optimizer]:
    """Train for 5 steps, and record them if there is a directory. Return the losses, the model and the optimizer."""
    torch.manual_seed(0)
    model = build_model()
    optimizer = build_optimizer(model)
    if directory is not None:
        Recorder(str(directory), model, optimizer, **options)
    return [update_model(model, optimizer).item() for _ in range(5)], model, optimizer


def read_facts(directory: Path) -> dict[str, Any]:
    facts: dict[str, Any] = json.loads((directory / "record.json").read_text())
    return facts


def read_step(directory: Path, step: int) -> dict[str, np.ndarray]:
    tensors: dict[str, np.ndarray] = load_file(directory / f"step-{step:08d}.safetensors")
    return tensors


def read_unclipped(directory: Path, step: int) -> dict[str, np.ndarray]:
    """Return the gradients of a step before clipping."""
    tensors, factors = read_step(directory, step), read_facts(directory)["steps"][step - 1].get("clip_factors", {})
    stored = {key.partition("/")[2]: tensors[key] for key in tensors if key.startswith("gradient_unclipped/")}
    return stored | restore_gradients({name: tensors[f"gradient/{name}"] for name in factors}, factors)


def list_leftovers(model: nn.Module, optimizer: Any, functions: Mapping[str, object]) -> list[str]:
    """Return what a recorder left in a script. functions: by name, as they were before the recording."""
    hooked = [
        name
        for name, module in model.named_modules()
        if module._forward_hooks or module._forward_pre_hooks or module._forward_hooks_with_kwargs
    ]
    parameters = [name for name, parameter in model.named_parameters() if parameter._backward_hooks]
    steps = [*optimizer._optimizer_step_pre_hooks, *optimizer._optimizer_step_post_hooks]
    current = list_functions()
    return [
        *hooked,
        *parameters,
        *map(str, steps),
        *(name for name in functions if functions[name] is not current[name]),
    ]


def list_functions() -> dict[str, object]:
    """Return the functions that a recorder may replace."""
    scaler, scheduler = torch.amp.GradScaler, torch.optim.lr_scheduler.LRScheduler
    return {
        **{f"functional.{name}": value for name, value in vars(functional).items() if callable(value)},
        "backward": torch.autograd.backward,
        "clip": nn.utils.clip_grad_norm_,
        "clip in its module": nn.utils.clip_grad.clip_grad_norm_,
        **{f"scaler.{name}": vars(scaler)[name] for name in ("scale", "step")},
        "scheduler": vars(scheduler)["step"],
    }
