"""Micro-batches padded to few shapes, for a compiler that compiles a model once for every shape."""

import numpy as np

from common.data.batches import Arrays


def pad_to_bucket(arrays: Arrays) -> Arrays:
    """Return a micro-batch whose shape is one of few.

    An unpadded micro-batch is filled up with tokens that belong to no example. These tokens have their own rows in the
    layout of attention, so no example attends to them. Padded text and images already have one of few shapes, and are
    returned unchanged.
    """
    if "places" not in arrays:
        return arrays
    (token_count,), (rows, width) = arrays["input_ids"].shape, arrays["attention_mask"].shape
    token_step, bucket_width = _bucket_step(token_count, 4), _round_up(width, _bucket_step(width, 2))
    missing = _round_up(token_count, token_step) - token_count
    filling_rows = -(-token_step // bucket_width)  # enough rows for the most tokens that can be missing
    mask = np.zeros((rows + filling_rows, bucket_width), np.int32)
    mask[:rows, :width] = arrays["attention_mask"]
    mask.reshape(-1)[rows * bucket_width :][:missing] = 1
    places = arrays["places"] // width * bucket_width + arrays["places"] % width
    padded = {name: np.pad(arrays[name], (0, missing)) for name in ("input_ids", "token_type_ids", "position_ids")}
    if "dropout_keys" in arrays:
        padded["dropout_keys"] = np.pad(arrays["dropout_keys"], (0, filling_rows))
    return {
        **arrays,
        **padded,
        "places": np.concatenate((places, rows * bucket_width + np.arange(missing))).astype(np.int32),
        "attention_mask": mask,
    }


def _bucket_step(count: int, buckets: int) -> int:
    """Return the step between sizes, of which there are `buckets` between two powers of two around `count`."""
    return max(1, 2 ** (count - 1).bit_length() // (2 * buckets))


def _round_up(count: int, step: int) -> int:
    return -(-count // step) * step
