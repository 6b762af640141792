"""Hugging Face's BERT with faults that a port to another framework may have."""

from typing import Any

import torch
from torch import nn
from transformers import AttentionInterface

from common.models.initial_weights import InitialCheckpoint
from torch_impl.models import bert


def build(initial: InitialCheckpoint) -> nn.Module:
    """Build the model, with the fault of its config.json."""
    model, fault = bert.build(initial), initial.hf_config["fault"]
    layers: Any = model.get_submodule("bert.encoder.layer")  # a module's attributes have no types
    for layer in layers:
        if fault == "gelu_tanh":
            layer.intermediate.intermediate_act_fn = nn.GELU(approximate="tanh")
        if fault == "scale":
            layer.attention.self.scaling = 1.0
    if fault == "epsilon":
        layers[0].output.LayerNorm.eps = 1e-5
    if fault in ATTENTIONS:
        AttentionInterface.register("unpadded", ATTENTIONS[fault])
    return model


def _ignore_mask(
    module: nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor,
    **options: Any,  # noqa: ANN401  the options of Hugging Face's attention, passed through
) -> tuple[torch.Tensor, None]:
    nothing_masked = torch.ones_like(mask) if mask.dtype == torch.bool else torch.zeros_like(mask)
    return bert._compute_attention(module, query, key, value, nothing_masked, **options)


def _swap_query_and_key(
    module: nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor | None,
    **options: Any,  # noqa: ANN401  the options of Hugging Face's attention, passed through
) -> tuple[torch.Tensor, None]:
    """Swap query and key in the second layer."""
    first, second = (key, query) if getattr(module, "layer_idx", None) == 1 else (query, key)
    return bert._compute_attention(module, first, second, value, mask, **options)


ATTENTIONS = {"mask_ignored": _ignore_mask, "query_key": _swap_query_and_key}
