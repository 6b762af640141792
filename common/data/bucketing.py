"""Micro-batches in few shapes, for a compiler that compiles a model once for each shape."""

import numpy as np

from common.data.batches import Arrays


def pad_to_bucket(part: Arrays) -> Arrays:
    """A micro-batch whose shape is one of few. Tokens that belong to no example fill up an unpadded one.

    They have rows of their own in the layout of attention, so that no example attends to them. Padded text is as it
    was, since its width is one of few already, and so are images.
    """
    if "places" not in part:
        return part
    (tokens,), (rows, width) = part["input_ids"].shape, part["attention_mask"].shape
    step, wide = _step(tokens, 4), _up(width, _step(width, 2))
    missing = _up(tokens, step) - tokens
    mask = np.zeros((rows + -(-step // wide), wide), np.int32)  # room for all that could be missing
    mask[:rows, :width] = part["attention_mask"]
    mask.reshape(-1)[rows * wide :][:missing] = 1
    places = part["places"] // width * wide + part["places"] % width
    keys = {"dropout_keys": np.pad(part["dropout_keys"], (0, len(mask) - rows))} if "dropout_keys" in part else {}
    return {
        **part,
        **keys,
        **{name: np.pad(part[name], (0, missing)) for name in ("input_ids", "token_type_ids", "position_ids")},
        "places": np.concatenate((places, rows * wide + np.arange(missing))).astype(np.int32),
        "attention_mask": mask,
    }


def _step(count: int, parts: int) -> int:
    """What counts between two powers of two are rounded up to multiples of, so that there are `parts` of them."""
    return max(1, 2 ** (count - 1).bit_length() // (2 * parts))


def _up(count: int, step: int) -> int:
    return -(-count // step) * step
