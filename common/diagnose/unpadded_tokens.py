"""Tokens of a batch as padded examples."""

from collections.abc import Mapping

import numpy as np


def unpack_tokens(array: np.ndarray, batch: Mapping[str, np.ndarray]) -> np.ndarray:
    """Return the tokens of a batch as padded examples [n, tokens, ...], with zeros as padding.

    An array whose first axis is not the tokens of the whole batch is returned unchanged.

    Args:
        array: Unpadded tokens [t, ...] or [1, t, ...], or padded tokens [n * tokens, ...].
        batch: Arrays of the batch. `attention_mask` [n, tokens] gives the shape, and `places` [t] the position of each
            unpadded token in the padded examples.
    """
    mask = batch.get("attention_mask", np.empty(0))
    places = batch.get("places", np.arange(mask.size))
    tokens = array[0] if array.shape[:1] == (1,) and places.size > 1 else array
    if tokens.shape[:1] != places.shape:
        return array
    padded = np.zeros((mask.size, *tokens.shape[1:]))
    padded[places] = tokens
    return padded.reshape(*mask.shape, *tokens.shape[1:])
