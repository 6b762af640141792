"""Models with the initial weights."""

from importlib import import_module

import torch
from torch.nn import Embedding, Module, Parameter

from common.config.schema import Config
from common.models.initial_weights import InitialCheckpoint
from common.models.spec import LARGE_EMBEDDING
from torch_impl.compilation import compile_model
from torch_impl.dropout import align_dropout
from torch_impl.models.linear import use_bfloat16, use_onednn


def build_model(config: Config, initial: InitialCheckpoint) -> Module:
    """The model with the initial weights, float64 for precision=float64, else float32 (bfloat16 is for computing)."""
    torch.manual_seed(config.train.seed)  # of native dropout
    kind = import_module(config.model.torch_module)  # alone: transformers takes seconds to import
    model: Module = kind.build(initial)
    if config.model.has_aligned_dropout:
        align_dropout(model)
    if config.train.matmul_precision == "bfloat16":
        use_bfloat16(model)
    else:
        use_onednn(model)
    if config.train.compile:
        compile_model(model)
    return model.to(torch.float64 if config.train.precision == "float64" else torch.float32)


def use_sparse_gradients(model: Module) -> None:
    """Have the gradients of large embeddings hold only the rows that a batch uses: on the CPU, for the optimizer here.

    All others are zeros: to make, reduce and square them takes longer than a small model's forward pass.
    """
    for module in model.modules():
        if (
            isinstance(module, Embedding)
            and module.weight.numel() >= LARGE_EMBEDDING
            and module.weight.device.type == "cpu"
        ):
            module.sparse = True


def trainable_parameters(model: Module) -> dict[str, Parameter]:
    """The parameters that are trained, by name."""
    return {name: each for name, each in model.named_parameters() if each.requires_grad}
