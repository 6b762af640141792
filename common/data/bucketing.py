"""Padding of unpadded micro-batches to one of few shapes, because a compiler compiles a model once for every shape.

`TokenizedSplit.gather_unpadded` describes the arrays of an unpadded micro-batch: its t tokens stand one after the
other. `attention_mask` [n, width] is the mask of the padded layout, which only attention uses. `places` [t] are the
indices of the tokens in that layout, flattened.
"""

import numpy as np

from common.data.batches import Arrays


def pad_to_bucket(arrays: Arrays) -> Arrays:
    """Round up the numbers of tokens and columns of a micro-batch, so that micro-batches have few shapes (buckets).

    Filling tokens, which belong to no example, are appended. In the padded layout they are in additional rows, so that
    no example attends to them. A padded micro-batch already has one of few shapes, and is returned unchanged.
    """
    if "places" not in arrays:
        return arrays
    (token_count,), (rows, width) = arrays["input_ids"].shape, arrays["attention_mask"].shape
    token_step, bucket_width = _find_step(token_count, 4), _round_up(width, _find_step(width, 2))
    missing = _round_up(token_count, token_step) - token_count
    filling_rows = -(-token_step // bucket_width)  # enough for any number of filling tokens
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


def _find_step(count: int, steps: int) -> int:
    """Return the step between rounded numbers near `count`: one power of two is `steps` steps from the next."""
    return max(1, 2 ** (count - 1).bit_length() // (2 * steps))


def _round_up(count: int, step: int) -> int:
    return -(-count // step) * step
