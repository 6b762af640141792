"""The model, from the initial checkpoint; what it computes of a batch."""

from importlib import import_module

import numpy as np
import torch
from torch.nn import Module
from torch.nn.functional import cross_entropy

from common.config.schema import Config
from common.models.initial_weights import InitialCheckpoint


def build_model(config: Config, initial: InitialCheckpoint) -> Module:
    """The model with the initial weights, float64 for precision=float64, else float32 (bfloat16 is for computing)."""
    torch.manual_seed(config.train.seed)  # of dropout
    dtype = torch.float64 if config.train.precision == "float64" else torch.float32
    kind = import_module(
        f"torch_impl.models.{initial.hf_config['model_type']}"
    )  # alone: transformers takes seconds to import
    model: Module = kind.build(initial, dtype)
    return model


def compute_logits(model: Module, batch: dict[str, torch.Tensor], precision: str) -> torch.Tensor:
    """Logits [n, classes], at least float32; precision=bfloat16 computes them under autocast."""
    inputs = {name: tensor for name, tensor in batch.items() if name not in ("labels", "weights")}
    with torch.autocast(next(iter(inputs.values())).device.type, torch.bfloat16, enabled=precision == "bfloat16"):
        logits: torch.Tensor = model(**inputs)
    return logits if logits.dtype == torch.float64 else logits.float()


def summed_loss(logits: torch.Tensor, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    """Cross-entropy summed over the examples, each times its weight; a scalar."""
    return (cross_entropy(logits, batch["labels"], reduction="none") * batch["weights"].to(logits.dtype)).sum()


def evaluation_sums(logits: torch.Tensor, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    """Summed loss and number of right answers, float64 [2]."""
    right = (logits.argmax(-1) == batch["labels"]) * batch["weights"]
    return torch.stack([summed_loss(logits.double(), batch), right.sum()])


def seed_dropout(config: Config, step: int, replica: int = 0) -> None:
    """Make what dropout draws in update `step` depend on nothing before it."""
    torch.manual_seed(int(np.random.SeedSequence([config.train.seed, step, replica]).generate_state(1, np.uint64)[0]))


def load_parameters(model: Module, parameters: dict[str, np.ndarray]) -> None:
    """Set the parameters by their Hugging Face names."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(torch.from_numpy(parameters[name]))


def parameters_by_name(model: Module) -> dict[str, np.ndarray]:
    """The parameters under their Hugging Face names."""
    return {name: parameter.detach().cpu().numpy() for name, parameter in model.named_parameters()}
