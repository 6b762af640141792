"""Operations of which an attention of PyTorch consists, computed beside it: other scripts may compute them in steps."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Optional

import torch
from torch import nn
from torch.nn import functional

from common.recording.operation_format import Part
from common.recording.operation_observer import OperationObserver
from torch_impl.record.patches import bind_arguments

TOLERANCE = 1e-2  # of the result in float16, relative to its largest number; a mistaken mask differs by more
MOST_SCORES = 1 << 24  # number of scores up to which they are computed: fused attentions keep none in memory


@dataclass
class AttentionPart:
    """An operation: its name, its plain arguments, the tensors that it receives, and its result."""

    name: str
    arguments: dict[str, object]
    inputs: list[torch.Tensor]
    output: torch.Tensor


class AttentionParts:
    """The operations of an attention, in their order."""

    def __init__(self) -> None:
        """Begin without operations."""
        self.listed: list[AttentionPart] = []

    def attend(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, factor: float,
        mask: Optional[torch.Tensor],  # noqa: UP045  Python 3.9 has no other notation at run time
    ) -> torch.Tensor:  # fmt: skip
        """Compute softmax(query @ key^T * factor + mask) @ value.

        Formula: documentation of `torch.nn.functional.scaled_dot_product_attention`.

        Args:
            query: [..., targets, size].
            key: [..., sources, size].
            value: [..., sources, size].
            factor: The factor of the scores.
            mask: [..., targets, sources], True: attended to; or numbers that are added to the scores; None: no mask.
        """
        scores = self._add("matmul", {}, [query, key], query @ key.transpose(-2, -1))
        scores = self._add("mul", {"1": factor}, [scores], scores * factor)
        if mask is not None and mask.dtype == torch.bool:
            scores = self._add("masked_fill", {}, [scores, mask], scores.masked_fill(~mask, -torch.inf))
        elif mask is not None:
            scores = self._add("add", {}, [scores, mask], scores + mask)
        weights = self._add("softmax", {"dim": -1}, [scores], scores.softmax(-1))
        return self._add("matmul", {}, [weights, value], weights @ value)

    def project(self, inputs: torch.Tensor, weight: torch.Tensor, bias: object) -> torch.Tensor:
        """Compute a linear layer. bias: a tensor or None."""
        parameters = [weight, *([bias] if isinstance(bias, torch.Tensor) else [])]
        return self._add("linear", {}, [inputs, *parameters], functional.linear(inputs, *parameters))

    def arrange(self, tensor: torch.Tensor, arranged: torch.Tensor) -> torch.Tensor:
        """Put the numbers of a tensor into another shape."""
        return self._add("reshape", {}, [tensor], arranged)

    def _add(
        self, name: str, arguments: dict[str, object], inputs: list[torch.Tensor], output: torch.Tensor
    ) -> torch.Tensor:
        self.listed.append(AttentionPart(name, arguments, inputs, output))
        return output


def add_parts(observer: OperationObserver, parts: Iterable[AttentionPart], layer: str) -> list[Part]:
    """Add parts to those of the operation that computes now. layer: the path of the layer that calls it."""
    with observer.collect_parts() as collected:
        for part in parts:
            observer.add(part.name, part.arguments, part.inputs, [part.output], layer)
    return collected


def list_attention_parts(
    attention: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any], returned: object
) -> list[AttentionPart]:
    """Return the parts of a call of nn.MultiheadAttention or of scaled_dot_product_attention; none for other calls.

    Args:
        attention: The module or the function.
        args: The positional arguments of the call.
        kwargs: Its keyword arguments.
        returned: What it returned.
    """
    try:
        with torch.no_grad():
            if type(attention) is nn.MultiheadAttention:
                return _end_with(returned, _list_module_parts(attention, args, kwargs))
            if getattr(attention, "__name__", "") == "scaled_dot_product_attention":
                return _end_with(returned, _list_function_parts(args, kwargs))
    except (RuntimeError, TypeError, ValueError):  # not enough memory, nested tensors, or a later version's arguments
        pass
    return []


def _list_function_parts(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> list[AttentionPart]:
    """Return the parts of scaled_dot_product_attention; none with a dropout or with shared heads."""
    names = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal")  # a function in C++ has no signature
    arguments = {**dict(zip(names, args)), **kwargs}  # noqa: B905
    query, key, value = (arguments[name] for name in names[:3])
    if arguments.get("dropout_p") or arguments.get("enable_gqa"):
        return []
    if query.numel() // query.shape[-1] * key.shape[-2] > MOST_SCORES:
        return []
    factor, mask = arguments.get("scale"), arguments.get("attn_mask")
    if arguments.get("is_causal"):
        mask = torch.ones(query.shape[-2], key.shape[-2], dtype=torch.bool, device=query.device).tril()
    parts = AttentionParts()
    parts.attend(query, key, value, query.shape[-1] ** -0.5 if factor is None else factor, mask)
    return parts.listed


def _list_module_parts(
    module: nn.MultiheadAttention, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> list[AttentionPart]:
    """Return the parts of nn.MultiheadAttention; none with a dropout or rarely used options."""
    arguments = bind_arguments(module.forward, args, dict(kwargs))
    has_dropout = module.training and module.dropout > 0
    if has_dropout or module.bias_k is not None or module.add_zero_attn or arguments["query"].dim() != 3:
        return []
    axis = 1 if module.batch_first else 0
    examples, targets = arguments["query"].shape[1 - axis], arguments["query"].shape[axis]
    if examples * module.num_heads * targets * arguments["key"].shape[axis] > MOST_SCORES:
        return []
    weights = [module.in_proj_weight] * 3
    if not module._qkv_same_embed_dim:
        weights = [module.q_proj_weight, module.k_proj_weight, module.v_proj_weight]
    parts, heads = AttentionParts(), []
    for position, (name, weight) in enumerate(zip(("query", "key", "value"), weights)):  # noqa: B905
        rows = slice(position * module.embed_dim, (position + 1) * module.embed_dim)
        bias = None if module.in_proj_bias is None else module.in_proj_bias[rows]
        projected = parts.project(arguments[name], weight[rows] if module._qkv_same_embed_dim else weight, bias)
        rows_first = projected if module.batch_first else projected.transpose(0, 1)
        divided = rows_first.unflatten(-1, (module.num_heads, module.head_dim)).transpose(1, 2)
        heads.append(parts.arrange(projected, divided))  # [examples, heads, targets or sources, size]
    mask = _join_masks(arguments, module.num_heads, heads[0].dtype)
    attended = parts.attend(heads[0], heads[1], heads[2], module.head_dim**-0.5, mask)
    joined = attended.transpose(1, 2).flatten(2)
    joined = parts.arrange(attended, joined if module.batch_first else joined.transpose(0, 1))
    parts.project(joined, module.out_proj.weight, module.out_proj.bias)
    return parts.listed


def _join_masks(arguments: Mapping[str, Any], heads: int, dtype: torch.dtype) -> Optional[torch.Tensor]:  # noqa: UP045
    """Return both masks of a multi-head attention as one in the form of AttentionParts.attend; None without a mask."""
    masks = []
    if arguments["key_padding_mask"] is not None:
        masks.append(arguments["key_padding_mask"][:, None, None])  # [examples, 1, 1, sources]
    if arguments["attn_mask"] is not None:
        mask = arguments["attn_mask"]  # [targets, sources] or [examples * heads, targets, sources]
        masks.append(mask if mask.dim() == 2 else mask.unflatten(0, (-1, heads)))
    if not masks:
        return None
    if all(mask.dtype == torch.bool for mask in masks):
        return ~functools.reduce(torch.logical_or, masks)
    zeros = torch.zeros((), dtype=dtype, device=masks[0].device)
    return sum((zeros.where(~x, -torch.inf) if x.dtype == torch.bool else x for x in masks), zeros)


def _end_with(returned: Any, parts: list[AttentionPart]) -> list[AttentionPart]:  # noqa: ANN401
    """Return parts that end with the result of an attention; none if they compute something else.

    Args:
        returned: The result, which is the first of several.
        parts: The parts.
    """
    if not parts:
        return []
    result, computed = returned[0] if isinstance(returned, tuple) else returned, parts[-1].output
    difference = (result.reshape(computed.shape) - computed).abs().max()
    if not difference <= TOLERANCE * computed.abs().max():
        return []
    parts[-1].output = result
    return parts
