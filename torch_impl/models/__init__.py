"""Construction of models with the initial weights."""

from importlib import import_module

import torch
from torch.nn import Embedding, Module, Parameter

from common.config.schema import Config
from common.errors import UserError
from common.models.initial_weights import InitialCheckpoint
from common.models.spec import LARGE_EMBEDDING
from torch_impl.aligned_layers import align_dropout
from torch_impl.compilation import compile_model
from torch_impl.float64 import compute_in_float64
from torch_impl.keras_backend import prepare_keras
from torch_impl.keras_module import KerasModule
from torch_impl.models.linear import use_bfloat16, use_onednn
from torch_impl.models.parameter_groups import freeze_parameters


def build_model(config: Config, initial: InitialCheckpoint) -> Module:
    """Build the model of a config with the initial weights.

    The weights are float64 for train.precision=float64, otherwise float32. bfloat16 applies only to computations, and
    as train.matmul_precision only to products of matrices.
    """
    torch.manual_seed(config.train.seed)  # native dropout draws from this generator
    if config.train.precision == "float64":
        compute_in_float64()
    if initial.hf_config.get("keras_on_torch"):
        prepare_keras(config.train.precision, config.train.seed)
    # Only the module of this model is imported: transformers takes seconds.
    model: Module = import_module(config.model.torch_module).build(initial)
    if config.model.has_aligned_dropout:
        align_dropout(model)
    if config.train.matmul_precision == "bfloat16":
        use_bfloat16(model)
    else:
        use_onednn(model)
    if config.train.compile:
        if isinstance(model, KerasModule):
            raise UserError("train.compile=true: torch.compile cannot compile a Keras model; set it to false")
        compile_model(model)
    freeze_parameters(model, config)
    # Unlike `model.to`, these keep the imaginary part of complex buffers.
    return model.double() if config.train.precision == "float64" else model.float()


def use_sparse_gradients(model: Module) -> None:
    """Make the gradients of large embeddings on a CPU sparse, as torch_impl.optimizer supports them.

    A batch uses few rows. Creating, reducing and squaring the zeros of all other rows takes longer than the forward
    pass of a small model.
    """
    for module in model.modules():
        if (
            isinstance(module, Embedding)
            and module.weight.numel() >= LARGE_EMBEDDING
            and module.weight.device.type == "cpu"
        ):
            module.sparse = True


def trainable_parameters(model: Module) -> dict[str, Parameter]:
    """Return the parameters that require a gradient, by name."""
    return {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
