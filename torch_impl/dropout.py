"""Dropout with the masks that common/data/dropout.py defines, equal on both sides.

Each example has a key, and each dropout layer has a site key. Both keys and the coordinates of a row, which is all
elements along the last axis, are hashed to the key of the row. The key of the row and the position of an element in the
row decide whether the element is dropped. All keys are int64; overflow wraps around.
"""

import torch
from torch.nn import Dropout, Dropout2d, Module
from typing_extensions import override

from common.data.dropout import (
    COLUMN_STRIDE,
    FIRST_MULTIPLIER,
    ROW_SHIFTS,
    SECOND_MULTIPLIER,
    SPLITMIX_INCREMENT,
    compute_threshold,
    derive_site_key,
)
from torch_impl.attention import AlignedAttention, set_dropout_batch_first, unfold_attention

TokenPositions = tuple[torch.Tensor, torch.Tensor]  # for each token: the index of its example, and its position, [t]


def apply_dropout(x: torch.Tensor, rate: float, row_keys: torch.Tensor) -> torch.Tensor:
    """Drop elements of x [..., features] and divide the others by 1 - rate.

    Args:
        x: The input of a dropout layer.
        rate: The probability with which an element is dropped.
        row_keys: The key of each row of x, int64 [...].
    """
    return apply_mask(x, rate, compute_mask(row_keys, x.shape[-1], rate))


def apply_mask(x: torch.Tensor, rate: float, mask: torch.Tensor) -> torch.Tensor:
    """Return x / (1 - rate) for elements whose mask is true, and 0 for the others."""
    return torch.where(mask, x * (1 / (1 - rate)), 0.0)


def compute_mask(row_keys: torch.Tensor, features: int, rate: float) -> torch.Tensor:
    """Return the mask of elements that are not dropped, bool [..., features], from the keys of their rows."""
    hash_to_mask = _opaque_hash_to_mask if torch.compiler.is_compiling() else _hash_to_mask
    return hash_to_mask(row_keys, features, compute_threshold(rate))


def _hash_to_mask(row_keys: torch.Tensor, features: int, threshold: int) -> torch.Tensor:
    words = torch.stack([row_keys], -1).view(torch.int32)  # low and high 32 bits of each key, [..., 2]
    x = torch.arange(features, dtype=torch.int32, device=row_keys.device) * COLUMN_STRIDE + words[..., 1:]
    x = x * FIRST_MULTIPLIER
    x = ((x ^ ((x >> 15) & 0x1FFFF)) + words[..., :1]) * SECOND_MULTIPLIER
    x = (x ^ ((x >> 14) & 0x3FFFF)) * FIRST_MULTIPLIER
    return x >= threshold


def hash_rows(example_keys: torch.Tensor, site_key: torch.Tensor, shape: torch.Size) -> torch.Tensor:
    """Return the keys of the rows of a layer's input [n, *shape, features].

    Args:
        example_keys: The keys of the examples, int64 [n].
        site_key: The key of the dropout layer, int64.
        shape: The axes between the examples and the features.

    Returns:
        int64 [n, *shape]
    """
    row_keys = _mix(example_keys ^ site_key)
    for size in shape:
        row_keys = _mix(row_keys[..., None] + torch.arange(1, size + 1, device=row_keys.device))
    return row_keys


def hash_token_rows(example_keys: torch.Tensor, site_key: torch.Tensor, tokens: TokenPositions) -> torch.Tensor:
    """Return the keys, int64 [t], of the rows of unpadded tokens [t, features].

    They are the keys that `hash_rows` returns for the same tokens in a padded input [n, positions, features].
    """
    examples, positions = tokens
    return _mix(_mix(example_keys ^ site_key)[examples] + (positions + 1))


def _mix(x: torch.Tensor) -> torch.Tensor:
    """Apply one step of SplitMix64, an invertible hash, to int64 words."""
    return _opaque_hash(x) if torch.compiler.is_compiling() else _split_mix(x)


def _split_mix(x: torch.Tensor) -> torch.Tensor:
    x = x + SPLITMIX_INCREMENT
    for shift, factor in ROW_SHIFTS:
        x = (x ^ ((x >> shift) & ((1 << (64 - shift)) - 1))) * factor
    return x


# Inductor must not compile these operations: overflow of signed integers is undefined in the C++ that it generates.
_opaque_hash_to_mask = torch.library.custom_op("lockstep::keeps", _hash_to_mask, mutates_args=())
_opaque_hash_to_mask.register_fake(
    lambda row_keys, features, threshold: row_keys.new_empty(*row_keys.shape, features, dtype=torch.bool)
)
_opaque_hash = torch.library.custom_op("lockstep::hash", _split_mix, mutates_args=())
_opaque_hash.register_fake(torch.empty_like)


class AlignedDropout(Dropout):
    """Dropout with masks drawn from the examples' keys, which `use_dropout_keys` sets before each forward pass."""

    site_key: torch.Tensor  # the key of this layer, int64
    example_keys: torch.Tensor | None  # int64 [n]
    tokens: TokenPositions | None  # set if the input is unpadded tokens, [1, t, features]
    batch_first: bool = True  # otherwise the input is [tokens, n, features]

    @override
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if not self.training:
            return x
        assert self.example_keys is not None, "the model must call use_dropout_keys in its forward pass"
        if not self.batch_first:
            return apply_dropout(x, self.p, hash_rows(self.example_keys, self.site_key, x.shape[:1]).transpose(0, 1))
        if self.tokens is not None and x.dim() == 3:
            return apply_dropout(x, self.p, hash_token_rows(self.example_keys, self.site_key, self.tokens))
        return apply_dropout(x, self.p, hash_rows(self.example_keys, self.site_key, x.shape[1:-1]))


class AlignedDropout2d(Dropout2d):
    """Dropout of whole channels, for x [n, channels, height, width]."""

    site_key: torch.Tensor  # the key of this layer, int64
    example_keys: torch.Tensor | None  # int64 [n]
    tokens: TokenPositions | None  # unused: images have no tokens

    @override
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if not self.training:
            return x
        assert self.example_keys is not None, "the model must call use_dropout_keys in its forward pass"
        row_keys = hash_rows(self.example_keys, self.site_key, torch.Size())
        return apply_mask(x, self.p, compute_mask(row_keys, x.shape[1], self.p)[..., None, None])


ALIGNED_CLASSES = {Dropout: AlignedDropout, Dropout2d: AlignedDropout2d}  # what replaces each class of PyTorch


def align_dropout(model: Module) -> None:
    """Make the dropout layers and attentions of a model draw their masks from the examples' keys.

    Layers with a rate of 0 stay as they are.
    """
    unfold_attention(model, AlignedAttention)
    set_dropout_batch_first(model)
    for name, module in model.named_modules():
        if type(module) in ALIGNED_CLASSES and module.p > 0:
            module.register_buffer("site_key", torch.tensor(derive_site_key(name)), persistent=False)
            module.example_keys = module.tokens = None
            module.__class__ = ALIGNED_CLASSES[type(module)]


def use_dropout_keys(model: Module, example_keys: torch.Tensor | None, tokens: TokenPositions | None = None) -> None:
    """Set the example keys from which a model's aligned dropout layers draw their masks in the next forward pass.

    Args:
        model: The model.
        example_keys: The keys of the examples, int64 [n]; may be None in evaluation.
        tokens: The examples and positions of the tokens, if the batch has no padding.
    """
    for module in model.modules():
        if isinstance(module, AlignedDropout | AlignedDropout2d):
            module.example_keys, module.tokens = example_keys, tokens
