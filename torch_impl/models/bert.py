"""BERT for sentence-pair classification: Hugging Face's."""

from typing import Any

import torch
from torch.nn import Module
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface, BertForSequenceClassification
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import AttentionMaskInterface, sdpa_mask
from transformers.utils.logging import disable_progress_bar

from common.models.initial_weights import InitialCheckpoint
from torch_impl.dropout import AlignedDropout, use_dropout_keys


class Bert(BertForSequenceClassification):
    """Called with the inputs of a batch, padded or not; returns logits [n, classes]."""

    def forward(self, dropout_keys: torch.Tensor | None = None, **inputs: torch.Tensor) -> torch.Tensor:
        if "places" in inputs:
            examples = inputs["places"] // inputs["attention_mask"].shape[-1]
            use_dropout_keys(self, dropout_keys, (examples, inputs["position_ids"]))
            return self._unpadded(**inputs)
        use_dropout_keys(self, dropout_keys)
        logits: torch.Tensor = super().forward(**inputs).logits
        return logits

    def _unpadded(
        self,
        input_ids: torch.Tensor,
        token_type_ids: torch.Tensor,
        position_ids: torch.Tensor,
        attention_mask: torch.Tensor,
        first_tokens: torch.Tensor,
        places: torch.Tensor,
    ) -> torch.Tensor:
        """All examples as one sequence, [1, t, hidden], which attention alone takes apart."""
        x = self.bert.embeddings(input_ids[None], token_type_ids[None], position_ids[None])
        bias = torch.zeros_like(attention_mask, dtype=x.dtype).masked_fill(
            attention_mask == 0, torch.finfo(x.dtype).min
        )
        x = self.bert.encoder(x, bias[:, None, None], places=places).last_hidden_state
        assert self.bert.pooler is not None
        pooled = self.bert.pooler(x[0, first_tokens, None])
        logits: torch.Tensor = self.classifier(self.dropout(pooled))
        return logits


def _attention(
    module: Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    dropout: float,
    scaling: float,
    places: torch.Tensor | None = None,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """Attention [n, heads, tokens, size] -> [n, tokens, heads, size]; with `places`, n is 1: all examples as one."""
    aligned = dropout > 0 and isinstance(module.dropout, AlignedDropout)
    if places is None and aligned:
        return _by_products(module, query, key, value, _bias(attention_mask, query), scaling).transpose(1, 2), None
    if places is None:
        return sdpa_attention_forward(module, query, key, value, attention_mask, dropout, scaling, **kwargs)
    assert attention_mask is not None
    rows, width = attention_mask.shape[0], attention_mask.shape[-1]

    def padded(x: torch.Tensor) -> torch.Tensor:
        tokens = x[0].transpose(0, 1)
        room = x.new_zeros(rows * width, *tokens.shape[1:])
        return room.index_copy(0, places, tokens).unflatten(0, (rows, width)).transpose(1, 2)

    query, key, value = padded(query), padded(key), padded(value)
    bias = attention_mask.to(query.dtype)
    if aligned or query.device.type == "cpu":  # PyTorch's fused one is slower there, its backward in bfloat16 7 times
        out = _by_products(module, query, key, value, bias, scaling)
    else:
        out = scaled_dot_product_attention(query, key, value, bias, dropout, scale=scaling)
    return out.transpose(1, 2).flatten(0, 1).index_select(0, places)[None], None


def _by_products(
    module: Module, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, bias: torch.Tensor, scaling: float
) -> torch.Tensor:
    """Attention [n, heads, tokens, size] -> the same, as three operations. bias: [n, 1, 1 or tokens, tokens]."""
    rows, heads = query.shape[:2]
    bias = bias.expand(rows, heads, -1, -1).flatten(0, 1)
    scores = torch.baddbmm(bias, query.flatten(0, 1), key.flatten(0, 1).transpose(1, 2), alpha=scaling)
    probabilities: torch.Tensor = module.get_submodule("dropout")(scores.softmax(-1).unflatten(0, (rows, heads)))
    return (probabilities.flatten(0, 1) @ value.flatten(0, 1)).unflatten(0, (rows, heads))


def _bias(mask: torch.Tensor | None, query: torch.Tensor) -> torch.Tensor:
    """What is added to the scores for a mask that is true where queries may attend, alike for all of them, or None."""
    if mask is None:
        return query.new_zeros(1, 1, 1, 1)
    mask = mask[:, :, :1]
    return torch.zeros_like(mask, dtype=query.dtype).masked_fill(~mask, torch.finfo(query.dtype).min)


def build(initial: InitialCheckpoint) -> Module:
    """The model with the initial weights."""
    disable_progress_bar()
    AttentionInterface.register("unpadded", _attention)
    AttentionMaskInterface.register("unpadded", sdpa_mask)
    return Bert.from_pretrained(initial.directory, dtype=torch.float32, attn_implementation="unpadded")
