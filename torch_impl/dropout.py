"""Dropout with the masks that common/data/dropout.py defines."""

import torch
from torch.nn import Dropout, Dropout2d, Module

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

TokenPositions = tuple[torch.Tensor, torch.Tensor]  # of each token: the index of its example and its position, [t]


def apply_dropout(x: torch.Tensor, rate: float, rows: torch.Tensor) -> torch.Tensor:
    """x [..., features] without the elements that are dropped, the others over 1 - rate. rows: int64 [...]."""
    return apply_mask(x, rate, compute_mask(rows, x.shape[-1], rate))


def apply_mask(x: torch.Tensor, rate: float, mask: torch.Tensor) -> torch.Tensor:
    """x over 1 - rate where the mask is true, else 0."""
    return torch.where(mask, x * (1 / (1 - rate)), 0.0)


def compute_mask(rows: torch.Tensor, features: int, rate: float) -> torch.Tensor:
    """Which elements of these rows are not dropped, bool [..., features]."""
    keeps = _opaque_keeps if torch.compiler.is_compiling() else _keeps
    return keeps(rows, features, compute_threshold(rate))


def _keeps(rows: torch.Tensor, features: int, bound: int) -> torch.Tensor:
    words = torch.stack([rows], -1).view(torch.int32)
    x = torch.arange(features, dtype=torch.int32, device=rows.device) * COLUMN_STRIDE + words[..., 1:]
    x = x * FIRST_MULTIPLIER
    x = ((x ^ ((x >> 15) & 0x1FFFF)) + words[..., :1]) * SECOND_MULTIPLIER
    x = (x ^ ((x >> 14) & 0x3FFFF)) * FIRST_MULTIPLIER
    return x >= bound


def hash_rows(keys: torch.Tensor, site: torch.Tensor, shape: torch.Size) -> torch.Tensor:
    """The rows of a layer's input [n, *shape, features], int64 [n, *shape]. keys: of its examples, int64 [n]."""
    rows = _mixed(keys ^ site)
    for size in shape:
        rows = _mixed(rows[..., None] + torch.arange(1, size + 1, device=rows.device))
    return rows


def hash_token_rows(keys: torch.Tensor, site: torch.Tensor, tokens: TokenPositions) -> torch.Tensor:
    """The rows of a layer's input [t, features], int64 [t]: those that the tokens have in [n, positions, features]."""
    examples, positions = tokens
    return _mixed(_mixed(keys ^ site)[examples] + (positions + 1))


def _mixed(x: torch.Tensor) -> torch.Tensor:
    return _opaque_hash(x) if torch.compiler.is_compiling() else _hash(x)


def _hash(x: torch.Tensor) -> torch.Tensor:
    x = x + SPLITMIX_INCREMENT
    for shift, factor in ROW_SHIFTS:
        x = (x ^ ((x >> shift) & ((1 << (64 - shift)) - 1))) * factor
    return x


# Inductor gets these operations whole: signed integers that overflow are undefined in the C++ that it writes.
_opaque_keeps = torch.library.custom_op("lockstep::keeps", _keeps, mutates_args=())
_opaque_keeps.register_fake(lambda rows, features, bound: rows.new_empty(*rows.shape, features, dtype=torch.bool))
_opaque_hash = torch.library.custom_op("lockstep::hash", _hash, mutates_args=())
_opaque_hash.register_fake(torch.empty_like)


class AlignedDropout(Dropout):
    """Dropout by keys: see `use_dropout_keys`."""

    site: torch.Tensor
    keys: torch.Tensor | None
    tokens: TokenPositions | None
    batch_first: bool = True

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if not self.training:
            return x
        assert self.keys is not None, "the model must call use_dropout_keys in its forward pass"
        if not self.batch_first:  # [tokens, n, features]
            return apply_dropout(x, self.p, hash_rows(self.keys, self.site, x.shape[:1]).transpose(0, 1))
        if self.tokens is not None and x.dim() == 3:  # [1, t, features]
            return apply_dropout(x, self.p, hash_token_rows(self.keys, self.site, self.tokens))
        return apply_dropout(x, self.p, hash_rows(self.keys, self.site, x.shape[1:-1]))


class AlignedDropout2d(Dropout2d):
    """Dropout of whole channels [n, channels, height, width]."""

    site: torch.Tensor
    keys: torch.Tensor | None
    tokens: TokenPositions | None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if not self.training:
            return x
        assert self.keys is not None, "the model must call use_dropout_keys in its forward pass"
        rows = hash_rows(self.keys, self.site, torch.Size())
        return apply_mask(x, self.p, compute_mask(rows, x.shape[1], self.p)[..., None, None])


ALIGNED = {Dropout: AlignedDropout, Dropout2d: AlignedDropout2d}


def align_dropout(model: Module) -> None:
    """Have the dropout layers and attentions of a model drop by keys. Those that drop nothing stay as they are."""
    unfold_attention(model, AlignedAttention)
    set_dropout_batch_first(model)
    for name, module in model.named_modules():
        if type(module) in ALIGNED and module.p > 0:
            module.register_buffer("site", torch.tensor(derive_site_key(name)), persistent=False)
            module.keys = module.tokens = None
            module.__class__ = ALIGNED[type(module)]


def use_dropout_keys(model: Module, keys: torch.Tensor | None, tokens: TokenPositions | None = None) -> None:
    """Give the aligned dropout layers of a model the keys of the examples that it is about to compute, int64 [n].

    tokens: where its inputs are tokens without padding [1, t, features]. In evaluation keys may be None.
    """
    for module in model.modules():
        if isinstance(module, AlignedDropout | AlignedDropout2d):
            module.keys, module.tokens = keys, tokens
