"""Unfolded attention: attention that is computed step by step, with a dropout layer for the probabilities, as in Keras.

The attentions of PyTorch and transformers drop inside one fused function, which draws its own mask. A dropout layer can
use the mask that both frameworks share.
"""

import math
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, cast

import torch
from torch.nn import Dropout, Module, MultiheadAttention, TransformerDecoderLayer, TransformerEncoderLayer
from torch.nn.functional import linear
from typing_extensions import override

from common.errors import UserError

if TYPE_CHECKING:
    from transformers import PreTrainedModel

UNFOLDED = "unfolded"  # the attention implementation that this file registers in transformers
REPLACED_IMPLEMENTATIONS = ("eager", "sdpa")  # the implementations of transformers that UNFOLDED replaces
# The attributes in which the attentions of transformers have their dropout layer or dropout rate.
DROPOUT_ATTRIBUTES = ("attention_dropout", "attn_dropout", "attn_drop", "dropout")
SINK_ARGUMENTS = ("s_aux", "sinks")  # arguments with attention sinks: scores that belong to no key
AttentionForward = Callable[..., tuple[torch.Tensor, torch.Tensor]]  # the signature of `unfolded_attention_forward`


class UnfoldedAttention(MultiheadAttention):
    """MultiheadAttention, computed step by step."""

    attention_dropout: Dropout  # receives the probabilities [n, heads, queries, keys]

    @override
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
        """Compute what MultiheadAttention computes. PyTorch's own code computes queries without an axis of examples.

        `is_causal`, which only describes `attn_mask`, is ignored.
        """
        if query.dim() == 2:
            return super().forward(
                query, key, value, key_padding_mask, need_weights, attn_mask, average_attn_weights, is_causal
            )
        if not self.batch_first:
            query, key, value = (x.transpose(0, 1) for x in (query, key, value))
        query, key, value = self._project(query, key, value)
        scores = query @ key.transpose(-2, -1) / math.sqrt(self.head_dim)
        if attn_mask is not None and attn_mask.dim() == 3:  # [n * heads, queries, keys]
            attn_mask = attn_mask.unflatten(0, (-1, self.num_heads))
        if attn_mask is not None:
            scores = _mask_scores(scores, attn_mask)
        if key_padding_mask is not None:  # [n, keys]
            scores = _mask_scores(scores, key_padding_mask[:, None, None])
        weights = self.attention_dropout(_softmax(scores))
        output = linear((weights @ value).transpose(1, 2).flatten(2), self.out_proj.weight, self.out_proj.bias)
        if not self.batch_first:
            output = output.transpose(0, 1)
        if not need_weights:
            return output, None
        return output, weights.mean(1) if average_attn_weights else weights

    def _project(self, *inputs: torch.Tensor) -> list[torch.Tensor]:
        """Project query, key and value: [n, tokens, features] -> [n, heads, tokens, size]."""
        weights: Sequence[torch.Tensor] = (self.q_proj_weight, self.k_proj_weight, self.v_proj_weight)
        if self.in_proj_weight is not None:
            weights = self.in_proj_weight.chunk(3)
        biases = (None, None, None) if self.in_proj_bias is None else self.in_proj_bias.chunk(3)
        return [
            linear(x, weight, bias).unflatten(-1, (self.num_heads, self.head_dim)).transpose(1, 2)
            for x, weight, bias in zip(inputs, weights, biases, strict=True)
        ]


class AlignedAttention(UnfoldedAttention):
    """Unfolded attention in training. In evaluation PyTorch's own computation is used, which is faster."""

    @override
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
        if self.training and query.dim() == 2:
            raise UserError(
                "model.torch: a MultiheadAttention with dropout gets a query [queries, features]; add an axis of "
                "examples, or set model.dropout_semantics=native"
            )
        arguments = query, key, value, key_padding_mask, need_weights, attn_mask, average_attn_weights, is_causal
        return super().forward(*arguments) if self.training else MultiheadAttention.forward(self, *arguments)


def unfold_attention(model: Module, kind: type[UnfoldedAttention]) -> None:
    """Make every attention with dropout pass its probabilities through a dropout layer.

    Args:
        model: The model, whose attentions are changed in place.
        kind: The class that the model's MultiheadAttentions get.
    """
    for module in list(model.modules()):
        if hasattr(module, "set_attn_implementation"):  # a model of transformers
            _unfold_transformers(cast("PreTrainedModel", module))
        if type(module) is MultiheadAttention and module.dropout > 0 and not _adds_keys(module):
            module.attention_dropout = Dropout(module.dropout).train(module.training)
            module.__class__ = kind


def _unfold_transformers(model: "PreTrainedModel") -> None:
    """Unfold the attentions of a model of transformers.

    An attribute that holds the dropout rate of an attention gets a dropout layer of that rate instead.
    """
    attributes = {module: name for module in model.modules() if (name := _find_dropout_attribute(module)) is not None}
    rates = {module: getattr(getattr(module, name), "p", getattr(module, name)) for module, name in attributes.items()}
    if not any(rates.values()) or model.config._attn_implementation not in REPLACED_IMPLEMENTATIONS:
        return
    from transformers import AttentionInterface
    from transformers.masking_utils import AttentionMaskInterface, eager_mask

    AttentionInterface.register(UNFOLDED, unfolded_attention_forward)
    AttentionMaskInterface.register(UNFOLDED, eager_mask)
    model.set_attn_implementation(UNFOLDED)
    if model.config._attn_implementation != UNFOLDED:
        return  # this model does not let another function compute its attention
    for module, name in attributes.items():
        if not isinstance(getattr(module, name), Dropout):
            delattr(module, name)
            setattr(module, name, Dropout(rates[module]).train(module.training))


def _find_dropout_attribute(module: Module) -> str | None:
    """Return the attribute with the dropout layer or rate of an attention of transformers; None for other modules."""
    if not hasattr(module, "is_causal"):  # not an attention
        return None
    return next((name for name in DROPOUT_ATTRIBUTES if isinstance(getattr(module, name, None), Dropout | float)), None)


def unfolded_attention_forward(  # noqa: PLR0913  the signature of transformers
    module: Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    position_bias: torch.Tensor | None = None,
    softcap: float | None = None,
    **kwargs: object,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Compute attention step by step: [n, heads, tokens, size] -> [n, tokens, heads, size].

    The attention functions in transformers have the same signature. The model's own function computes attention with
    sinks and draws its own dropout mask. `torch_impl.described_model` reports this mask as not alignable.
    """
    attribute = _find_dropout_attribute(module)
    assert attribute is not None
    dropout = module.get_submodule(attribute)
    if any(kwargs.get(argument) is not None for argument in SINK_ARGUMENTS):
        assert isinstance(dropout, Dropout)
        optional = {"scaling": scaling, "position_bias": position_bias, "softcap": softcap}
        kwargs |= {name: value for name, value in optional.items() if value is not None}
        kwargs["dropout"] = dropout.p if module.training else 0.0
        return _find_eager_forward(module)(module, query, key, value, attention_mask, **kwargs)
    key, value = (x.repeat_interleave(query.shape[1] // x.shape[1], 1) for x in (key, value))
    scores = query @ key.transpose(-2, -1) * (query.shape[-1] ** -0.5 if scaling is None else scaling)
    if softcap is not None:
        scores = softcap * torch.tanh(scores / softcap)
    for bias in (position_bias, attention_mask):  # [1 or n, 1 or heads, queries, keys]
        if bias is not None:
            scores = scores + bias
    weights = dropout(scores.softmax(-1))
    return (weights @ value).transpose(1, 2).contiguous(), weights


def _find_eager_forward(module: Module) -> AttentionForward:
    """Return the default attention function of an attention of transformers, or of a class derived from one."""
    namespaces = (vars(sys.modules[kind.__module__]) for kind in type(module).__mro__)
    return next(names["eager_attention_forward"] for names in namespaces if "eager_attention_forward" in names)


def set_dropout_batch_first(model: Module) -> None:
    """Tell the dropout layers in PyTorch's transformer layers whether their input is [n, tokens, features].

    Otherwise the input is [tokens, n, features]. Only the transformer layer around a dropout layer knows which it is.
    """
    for module in model.modules():
        if isinstance(module, TransformerEncoderLayer | TransformerDecoderLayer):
            for child in module.children():
                if isinstance(child, Dropout):
                    child.batch_first = module.self_attn.batch_first


def _adds_keys(module: MultiheadAttention) -> bool:
    """Check whether an attention adds keys of its own to its input, which UnfoldedAttention does not compute."""
    return module.bias_k is not None or module.add_zero_attn


def _mask_scores(scores: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Apply a mask to scores: bool, true for keys that a query may not attend to; or floating-point, which is added."""
    return scores.masked_fill(mask, -math.inf) if mask.dtype == torch.bool else scores + mask


def _softmax(scores: torch.Tensor) -> torch.Tensor:
    """Return probabilities; zeros if all keys of a query are masked, as scaled_dot_product_attention computes them."""
    is_empty = (scores == -math.inf).all(-1, keepdim=True)
    return scores.masked_fill(is_empty, 0.0).softmax(-1).masked_fill(is_empty, 0.0)
