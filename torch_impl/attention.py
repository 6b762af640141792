"""Attentions of PyTorch and transformers with a dropout layer of their own, as Keras's MultiHeadAttention has one."""

import math
import sys
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.nn import Dropout, Module, MultiheadAttention, TransformerDecoderLayer, TransformerEncoderLayer
from torch.nn.functional import linear

from common.errors import UserError

UNFOLDED = "unfolded"  # the attention implementation of transformers that `attend` is
OF_TRANSFORMERS = ("eager", "sdpa")  # those that it takes the place of
NAMES = ("attention_dropout", "attn_dropout", "attn_drop", "dropout")  # of what drops in attentions of transformers
SINKS = ("s_aux", "sinks")  # arguments with which models weight the keys in ways of their own


class UnfoldedAttention(MultiheadAttention):
    """MultiheadAttention step by step. The probabilities [n, heads, queries, keys] go through `attention_dropout`."""

    attention_dropout: Dropout

    def forward(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        key_padding_mask: torch.Tensor | None = None,
        need_weights: bool = True,
        attn_mask: torch.Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """As PyTorch's; is_causal says only what attn_mask is. Of input without an axis of examples it is PyTorch's."""
        if query.dim() == 2:
            return super().forward(
                query, key, value, key_padding_mask, need_weights, attn_mask, average_attn_weights, is_causal
            )
        if not self.batch_first:
            query, key, value = (each.transpose(0, 1) for each in (query, key, value))
        query, key, value = self._project(query, key, value)
        scores = query @ key.transpose(-2, -1) / math.sqrt(self.head_dim)
        if attn_mask is not None and attn_mask.dim() == 3:  # [n * heads, queries, keys]
            attn_mask = attn_mask.unflatten(0, (-1, self.num_heads))
        if attn_mask is not None:
            scores = _masked(scores, attn_mask)
        if key_padding_mask is not None:  # [n, keys]
            scores = _masked(scores, key_padding_mask[:, None, None])
        weights = self.attention_dropout(_softmax(scores))
        output = linear((weights @ value).transpose(1, 2).flatten(2), self.out_proj.weight, self.out_proj.bias)
        if not self.batch_first:
            output = output.transpose(0, 1)
        if not need_weights:
            return output, None
        return output, weights.mean(1) if average_attn_weights else weights

    def _project(self, *inputs: torch.Tensor) -> list[torch.Tensor]:
        """Query, key and value [n, tokens, features] -> [n, heads, tokens, size]."""
        weights: Sequence[torch.Tensor] = (self.q_proj_weight, self.k_proj_weight, self.v_proj_weight)
        if self.in_proj_weight is not None:
            weights = self.in_proj_weight.chunk(3)
        biases = (None, None, None) if self.in_proj_bias is None else self.in_proj_bias.chunk(3)
        return [
            linear(each, weight, bias).unflatten(-1, (self.num_heads, self.head_dim)).transpose(1, 2)
            for each, weight, bias in zip(inputs, weights, biases, strict=True)
        ]


class AlignedAttention(UnfoldedAttention):
    """In evaluation it is PyTorch's, which has faster ways."""

    def forward(self, query: torch.Tensor, *args: Any, **kwargs: Any) -> tuple[torch.Tensor, torch.Tensor | None]:
        if not self.training:
            return MultiheadAttention.forward(self, query, *args, **kwargs)
        if query.dim() == 2:
            raise UserError(
                "model.torch: a MultiheadAttention with dropout gets a query [queries, features]; give it the axis of "
                "the examples, or set model.dropout_semantics=native"
            )
        return super().forward(query, *args, **kwargs)


def unfold_attention(model: Module, kind: type[UnfoldedAttention]) -> None:
    """Have every attention that drops pass its probabilities through a dropout layer."""
    for module in list(model.modules()):
        if hasattr(module, "set_attn_implementation"):
            _unfold_transformers(module)
        if type(module) is MultiheadAttention and module.dropout > 0 and not _adds_keys(module):
            module.attention_dropout = Dropout(module.dropout).train(module.training)
            module.__class__ = kind


def _unfold_transformers(model: Any) -> None:
    """Of a model of transformers. A rate becomes a dropout layer of the same name."""
    found = {module: name for module in model.modules() if (name := _name_of_dropout(module)) is not None}
    rates = {module: getattr(getattr(module, name), "p", getattr(module, name)) for module, name in found.items()}
    if not any(rates.values()) or model.config._attn_implementation not in OF_TRANSFORMERS:
        return
    from transformers import AttentionInterface
    from transformers.masking_utils import AttentionMaskInterface, eager_mask

    AttentionInterface.register(UNFOLDED, unfolded_attention_forward)
    AttentionMaskInterface.register(UNFOLDED, eager_mask)
    model.set_attn_implementation(UNFOLDED)
    if model.config._attn_implementation != UNFOLDED:
        return  # its attention is written out
    for module, name in found.items():
        if not isinstance(getattr(module, name), Dropout):
            delattr(module, name)
            setattr(module, name, Dropout(rates[module]).train(module.training))


def _name_of_dropout(module: Module) -> str | None:
    """By which name an attention of transformers has its dropout layer or rate; None of other modules."""
    if not hasattr(module, "is_causal"):
        return None
    return next((name for name in NAMES if isinstance(getattr(module, name, None), Dropout | float)), None)


def unfolded_attention_forward(
    module: Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    position_bias: torch.Tensor | None = None,
    softcap: float | None = None,
    **kwargs: Any,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Attention as transformers calls it, [n, heads, tokens, size] -> [n, tokens, heads, size], step by step.

    One with sinks is computed by the model's own function, whose dropout `torch_impl.described_model` finds and names.
    """
    name = _name_of_dropout(module)
    assert name is not None
    dropout = module.get_submodule(name)
    if any(kwargs.get(each) is not None for each in SINKS):
        assert isinstance(dropout, Dropout)
        given = {"scaling": scaling, "position_bias": position_bias, "softcap": softcap}
        kwargs |= {name: each for name, each in given.items() if each is not None}
        kwargs["dropout"] = dropout.p if module.training else 0.0
        found: tuple[torch.Tensor, torch.Tensor] = _own(module)(module, query, key, value, attention_mask, **kwargs)
        return found
    key, value = (each.repeat_interleave(query.shape[1] // each.shape[1], 1) for each in (key, value))
    scores = query @ key.transpose(-2, -1) * (query.shape[-1] ** -0.5 if scaling is None else scaling)
    if softcap is not None:
        scores = softcap * torch.tanh(scores / softcap)
    for each in (position_bias, attention_mask):  # what is added, [1 or n, 1 or heads, queries, keys]
        if each is not None:
            scores = scores + each
    weights = dropout(scores.softmax(-1))
    return (weights @ value).transpose(1, 2).contiguous(), weights


def _own(module: Module) -> Callable[..., Any]:
    """The function with which an attention of transformers, or what derives from it, computes by default."""
    files = (vars(sys.modules[kind.__module__]) for kind in type(module).__mro__)
    return next(found["eager_attention_forward"] for found in files if "eager_attention_forward" in found)


def set_dropout_batch_first(model: Module) -> None:
    """Tell the dropout layers in PyTorch's transformer layers whether they get [n, tokens, features], batch first."""
    for module in model.modules():
        if isinstance(module, TransformerEncoderLayer | TransformerDecoderLayer):
            for child in module.children():
                if isinstance(child, Dropout):
                    child.batch_first = module.self_attn.batch_first


def _adds_keys(module: MultiheadAttention) -> bool:
    return module.bias_k is not None or module.add_zero_attn


def _masked(scores: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """mask: true where queries may not attend, or what is added to the scores."""
    return scores.masked_fill(mask, -math.inf) if mask.dtype == torch.bool else scores + mask


def _softmax(scores: torch.Tensor) -> torch.Tensor:
    """Zeros where all keys are masked, as in scaled_dot_product_attention."""
    empty = (scores == -math.inf).all(-1, keepdim=True)
    return scores.masked_fill(empty, 0.0).softmax(-1).masked_fill(empty, 0.0)
