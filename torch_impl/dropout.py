"""Dropout with the masks that common/data/dropout.py defines, equal on both sides.

A row is all elements along the last axis. Its key is a hash of the key of the example, the key of the dropout layer
(the site key) and the coordinates of the row. The key of the row and the position of an element in the row decide
whether the element is dropped, or select a normally distributed number for it. All keys are int64; overflow wraps
around.
"""

import logging
from collections.abc import Callable
from functools import cache

import torch

from common.data.dropout import (
    COLUMN_STRIDE,
    FIRST_MULTIPLIER,
    ROW_SHIFTS,
    SECOND_MULTIPLIER,
    SPLITMIX_INCREMENT,
    compute_threshold,
)
from common.errors import describe_error

log = logging.getLogger("lockstep")

TokenPositions = tuple[torch.Tensor, torch.Tensor]  # for each token: the index of its example, and its position, [t]


def apply_mask(x: torch.Tensor, factor: float, mask: torch.Tensor) -> torch.Tensor:
    """Return x * factor for elements whose mask is true, and 0 for the others. x must be finite."""
    # A product, because torch.where takes twice as long on a CPU; not in bfloat16, which would round the factor.
    scale = mask.to(torch.promote_types(x.dtype, torch.float32)) * factor
    return (x * scale).to(x.dtype)


def compute_mask(row_keys: torch.Tensor, features: int, rate: float) -> torch.Tensor:
    """Return the mask of elements that are not dropped, bool [..., features], from the keys of their rows."""
    hash_to_mask = _opaque_hash_to_mask if _is_compiled_for_cpu(row_keys) else _fuse(_hash_to_mask, row_keys)
    return hash_to_mask(row_keys, features, compute_threshold(rate))


def compute_normal(row_keys: torch.Tensor, features: int, table: torch.Tensor) -> torch.Tensor:
    """Return normally distributed numbers [..., features] from the keys of their rows.

    table: The numbers of `compute_normal_table`. The sum of two random ones of them is a standard normal number.
    """
    hash_elements = _opaque_hash_elements if _is_compiled_for_cpu(row_keys) else _fuse(_hash_elements, row_keys)
    words = hash_elements(row_keys, features)
    return table[words & 0xFFFF] + table[(words >> 16) & 0xFFFF]


def _hash_to_mask(row_keys: torch.Tensor, features: int, threshold: int) -> torch.Tensor:
    return _hash_elements(row_keys, features) >= threshold


def _hash_elements(row_keys: torch.Tensor, features: int) -> torch.Tensor:
    low, high = row_keys[..., None].int(), (row_keys[..., None] >> 32).int()  # the halves of each key
    x = torch.arange(features, dtype=torch.int32, device=row_keys.device) * COLUMN_STRIDE + high
    x *= FIRST_MULTIPLIER  # in place, which saves a fifth of the time
    x ^= (x >> 15) & 0x1FFFF
    x += low
    x *= SECOND_MULTIPLIER
    x ^= (x >> 14) & 0x3FFFF
    x *= FIRST_MULTIPLIER
    return x


def hash_rows(example_keys: torch.Tensor, site_key: torch.Tensor, shape: torch.Size) -> torch.Tensor:
    """Return the keys of the rows of a layer's input [n, *shape, features].

    Args:
        example_keys: The keys of the examples, int64 [n].
        site_key: The key of the dropout layer, int64.
        shape: The axes between the examples and the features.

    Returns:
        int64 [n, *shape]
    """
    return _fuse(_hash_rows, example_keys)(example_keys, site_key, shape)


def _hash_rows(example_keys: torch.Tensor, site_key: torch.Tensor, shape: torch.Size) -> torch.Tensor:
    row_keys = _mix(example_keys ^ site_key)
    for size in shape:
        row_keys = _mix(row_keys[..., None] + torch.arange(1, size + 1, device=row_keys.device))
    return row_keys


def hash_token_rows(example_keys: torch.Tensor, site_key: torch.Tensor, tokens: TokenPositions) -> torch.Tensor:
    """Return the keys, int64 [t], of the rows of unpadded tokens [t, features].

    The keys equal those of `hash_rows` for the same tokens in a padded input [n, positions, features].
    """
    return _fuse(_hash_token_rows, example_keys)(example_keys, site_key, *tokens)


def _hash_token_rows(
    example_keys: torch.Tensor, site_key: torch.Tensor, examples: torch.Tensor, positions: torch.Tensor
) -> torch.Tensor:
    return _mix(_mix(example_keys ^ site_key)[examples] + (positions + 1))


def _mix(x: torch.Tensor) -> torch.Tensor:
    """Apply one step of SplitMix64, an invertible hash, to int64 words."""
    return _opaque_hash(x) if _is_compiled_for_cpu(x) else _split_mix(x)


def _split_mix(x: torch.Tensor) -> torch.Tensor:
    x = x + SPLITMIX_INCREMENT
    for shift, factor in ROW_SHIFTS:
        x = (x ^ ((x >> shift) & ((1 << (64 - shift)) - 1))) * factor
    return x


def _is_compiled_for_cpu(keys: torch.Tensor) -> bool:
    return torch.compiler.is_compiling() and not keys.is_cuda


def _fuse(function: Callable[..., torch.Tensor], keys: torch.Tensor) -> Callable[..., torch.Tensor]:
    """Return a function that is compiled to one kernel if the keys are on a GPU. To launch up to forty takes long."""
    return _compile(function) if keys.is_cuda and not torch.compiler.is_compiling() and _can_compile() else function


@cache
def _compile(function: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    # One thread compiles in this process. PyTorch's pool of processes would keep running, with hundreds of MB for each.
    return torch.compile(function, dynamic=True, options={"compile_threads": 1})


@cache
def _can_compile() -> bool:
    """Make a kernel, and return whether that is possible: a kernel needs Triton, a C compiler and Python's headers."""
    try:
        _compile(_split_mix)(torch.zeros(2, dtype=torch.int64, device="cuda"))
    except Exception as error:
        log.warning("aligned dropout is slow, because PyTorch cannot compile its kernels: %s", describe_error(error))
        return False
    return True


# Inductor must not compile these operations for a CPU: overflow of signed integers is undefined in the C++ that it
# generates. In its kernels for a GPU, overflow wraps around. `register_fake` takes the function that Inductor calls to
# learn the strides of a result. Here this function is the operation itself, so the strides are right for transposed
# keys, too.
_opaque_hash_to_mask = torch.library.custom_op("lockstep::keeps", _hash_to_mask, mutates_args=())
_opaque_hash_to_mask.register_fake(_hash_to_mask)
_opaque_hash_elements = torch.library.custom_op("lockstep::words", _hash_elements, mutates_args=())
_opaque_hash_elements.register_fake(_hash_elements)
_opaque_hash = torch.library.custom_op("lockstep::hash", _split_mix, mutates_args=())
_opaque_hash.register_fake(_split_mix)
