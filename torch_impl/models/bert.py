"""BERT for sentence-pair classification, from Hugging Face.

A padded batch has n rows of equal width. An unpadded batch has the t real tokens of all n examples in one row; only
attention needs the padded form, [n, width]. The place of a token is its index in the flattened padded form.
"""

from functools import partial
from typing import Any

import torch
from torch.nn import Module
from torch.nn.attention.varlen import varlen_attn
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface, BertConfig, BertForSequenceClassification
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import AttentionMaskInterface, sdpa_mask
from typing_extensions import override

from common.models.initial_weights import InitialCheckpoint
from torch_impl.aligned_layers import AlignedLayer, use_dropout_keys
from torch_impl.models.weights import build_with_weights

# PyTorch's variable-length attention in bfloat16 is FlashAttention 2.
FLASH_CAPABILITY = (8, 0)  # lowest compute capability: an A100 or newer
FLASH_SIZES = range(8, 257, 8)  # sizes of a head

ROW_GROUPS = 4  # groups of examples that attention pads to a width of their own
SMALLEST_SAVING = 2**17  # fewest attention scores that the groups must save; each group needs some more operations


class Bert(BertForSequenceClassification):
    """A model that takes the inputs of a batch, padded or unpadded, and returns logits [n, classes]."""

    @override
    def forward(self, dropout_keys: torch.Tensor | None = None, **inputs: torch.Tensor) -> torch.Tensor:
        if "places" in inputs:
            examples = inputs["places"] // inputs["attention_mask"].shape[-1]
            use_dropout_keys(self, dropout_keys, (examples, inputs["position_ids"]))
            return self._classify_unpadded(**inputs)
        use_dropout_keys(self, dropout_keys)
        logits: torch.Tensor = super().forward(**inputs).logits
        return logits

    def _classify_unpadded(
        self,
        input_ids: torch.Tensor,
        token_type_ids: torch.Tensor,
        position_ids: torch.Tensor,
        attention_mask: torch.Tensor,
        first_tokens: torch.Tensor,
        places: torch.Tensor,
    ) -> torch.Tensor:
        """Compute all examples as one sequence [1, t, hidden], which only attention separates.

        Args:
            input_ids: The tokens of all examples, [t].
            token_type_ids: The segment of each token, [t].
            position_ids: The position of each token in its example, [t].
            attention_mask: [n, width], 1 for a token and 0 for padding.
            first_tokens: The index of the first token of each example, [n].
            places: The place of each token, [t].
        """
        x = self.bert.embeddings(input_ids[None], token_type_ids[None], position_ids[None])
        bias = torch.zeros_like(attention_mask, dtype=x.dtype).masked_fill(
            attention_mask == 0, torch.finfo(x.dtype).min
        )
        x = self.bert.encoder(x, bias[:, None, None], places=places).last_hidden_state
        assert self.bert.pooler is not None
        pooled = self.bert.pooler(x[0, first_tokens, None])
        logits: torch.Tensor = self.classifier(self.dropout(pooled))
        return logits


def _compute_attention(  # noqa: PLR0913  the signature of transformers
    module: Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    dropout: float,
    scaling: float,
    places: torch.Tensor | None = None,
    **kwargs: Any,  # noqa: ANN401  passed on to transformers
) -> tuple[torch.Tensor, None]:
    """Compute attention: [n, heads, tokens, size] -> [n, tokens, heads, size].

    The attention functions in transformers have the same signature. If `places` is passed, the batch is unpadded and n
    is 1. If PyTorch has a kernel for unpadded tokens and nothing is dropped, the kernel computes attention. Otherwise
    the tokens are padded to the shape [examples, width] of `attention_mask`. If its rows are divided into groups, the
    tokens of a group are padded to the shape of the group.
    """
    is_aligned = dropout > 0 and isinstance(module.dropout, AlignedLayer)
    if places is None and is_aligned:
        bias = _build_bias(attention_mask, query)
        return _attend_by_products(module, query, key, value, bias, scaling).transpose(1, 2), None
    if places is None:
        return sdpa_attention_forward(module, query, key, value, attention_mask, dropout, scaling, **kwargs)
    assert attention_mask is not None
    if dropout == 0 and _is_flash_available(query):
        return _attend_unpadded(query, key, value, places, (attention_mask.shape[0], attention_mask.shape[-1])), None
    biases = [attention_mask.to(query.dtype)]
    is_cpu = query.device.type == "cpu"
    if dropout == 0 and is_cpu and not torch.compiler.is_compiling():
        biases, places = _group_rows(biases[0], places, query.shape[1])
    shapes = [(len(bias), bias.shape[-1]) for bias in biases]

    def pad(x: torch.Tensor) -> list[torch.Tensor]:
        tokens, sizes = x[0].transpose(0, 1), [rows * width for rows, width in shapes]
        padded = x.new_zeros(sum(sizes), *tokens.shape[1:]).index_copy(0, places, tokens)
        groups = padded.split(sizes) if len(sizes) > 1 else [padded]  # the backward pass of `split` copies
        return [group.unflatten(0, shape).transpose(1, 2) for group, shape in zip(groups, shapes, strict=True)]

    outputs = []
    for group_query, group_key, group_value, bias in zip(pad(query), pad(key), pad(value), biases, strict=True):
        # On a CPU, PyTorch's fused attention is slower; its backward pass in bfloat16 takes 7 times as long.
        if is_aligned or is_cpu:
            out = _attend_by_products(module, group_query, group_key, group_value, bias, scaling)
        else:
            out = scaled_dot_product_attention(group_query, group_key, group_value, bias, dropout, scale=scaling)
        outputs.append(out.transpose(1, 2).flatten(0, 1))
    out = torch.cat(outputs) if len(outputs) > 1 else outputs[0]
    return out.index_select(0, places)[None], None


def _group_rows(bias: torch.Tensor, places: torch.Tensor, heads: int) -> tuple[list[torch.Tensor], torch.Tensor]:
    """Divide the padded form into groups of successive rows, each only as wide as its longest example.

    The rows of a shard are sorted by length, so that the groups have fewer scores. If they save too few, there is one.

    Args:
        bias: The addend of the scores, [n, 1, 1, width].
        places: The place of each token, [t].
        heads: The number of heads.

    Returns:
        The bias of each group, [rows of the group, 1, 1, width of the group]; and the place of each token if the padded
        forms of all groups are flattened one after the other, [t].
    """
    rows, width = bias.shape[0], bias.shape[-1]
    if heads * rows * width**2 < SMALLEST_SAVING:
        return [bias], places
    examples, positions = places // width, places % width
    lengths = places.new_zeros(rows).scatter_reduce(0, examples, positions + 1, "amax")
    count = min(rows, ROW_GROUPS)
    widths = [max(1, int(group.max())) for group in lengths.tensor_split(count)]
    biases = [group[..., :size] for group, size in zip(bias.tensor_split(count), widths, strict=True)]
    if heads * (rows * width**2 - sum(len(group) * group.shape[-1] ** 2 for group in biases)) < SMALLEST_SAVING:
        return [bias], places
    row_widths = torch.cat([places.new_full([len(group)], group.shape[-1]) for group in biases])
    return biases, (row_widths.cumsum(0) - row_widths)[examples] + positions


def _is_flash_available(query: torch.Tensor) -> bool:
    if query.device.type != "cuda" or query.dtype != torch.bfloat16 or query.shape[-1] not in FLASH_SIZES:
        return False
    if torch.version.cuda is None or not torch.backends.cuda.is_flash_attention_available():
        return False
    return torch.cuda.get_device_capability(query.device) >= FLASH_CAPABILITY


def _attend_unpadded(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, places: torch.Tensor, shape: tuple[int, int]
) -> torch.Tensor:
    """Compute attention without padding: [1, heads, t, size] -> [1, t, heads, size]. The scale is 1 / sqrt(size).

    Args:
        query: The queries.
        key: The keys.
        value: The values.
        places: The place of each token, [t], in ascending order.
        shape: The shape of the padded form, [n, width].
    """
    rows, width = shape
    row_starts = torch.arange(0, (rows + 1) * width, width, device=places.device)
    bounds = torch.searchsorted(places, row_starts, out_int32=True)  # the first token of each example, and t
    query, key, value = (x[0].transpose(0, 1) for x in (query, key, value))
    out = varlen_attn(query, key, value, bounds, bounds, width, width)
    assert isinstance(out, torch.Tensor)  # varlen_attn returns further numbers only on request
    return out[None]


def _attend_by_products(
    module: Module, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, bias: torch.Tensor, scaling: float
) -> torch.Tensor:
    """Compute attention as two products and a softmax, from [n, heads, tokens, size] to the same shape.

    bias: what is added to the scores, [n, 1, 1 or tokens, tokens].
    """
    rows, heads = query.shape[:2]
    bias = bias.expand(rows, heads, -1, -1).flatten(0, 1)
    scores = torch.baddbmm(bias, query.flatten(0, 1), key.flatten(0, 1).transpose(1, 2), alpha=scaling)
    probabilities: torch.Tensor = module.get_submodule("dropout")(scores.softmax(-1).unflatten(0, (rows, heads)))
    return (probabilities.flatten(0, 1) @ value.flatten(0, 1)).unflatten(0, (rows, heads))


def _build_bias(mask: torch.Tensor | None, query: torch.Tensor) -> torch.Tensor:
    """Return the addend of the scores, [n, 1, 1, tokens], for a mask.

    mask: bool, true for keys that queries may attend to, the same for all queries of an example; None for all keys.
    """
    if mask is None:
        return query.new_zeros(1, 1, 1, 1)
    mask = mask[:, :, :1]
    return torch.zeros_like(mask, dtype=query.dtype).masked_fill(~mask, torch.finfo(query.dtype).min)


def build(initial: InitialCheckpoint) -> Module:
    """Build the model with the initial weights."""
    AttentionInterface.register("unpadded", _compute_attention)
    AttentionMaskInterface.register("unpadded", sdpa_mask)
    config = BertConfig.from_pretrained(initial.directory, attn_implementation="unpadded")
    model = build_with_weights(initial, partial(Bert, config))
    # A padding token that is part of a text is a word like any other, as in TensorFlow, and gets a gradient.
    model.bert.embeddings.word_embeddings.padding_idx = None
    return model
