"""Variants of attention: its scale, its mask, the number of heads, and the order of query and key."""

from collections.abc import Iterable, Iterator, Mapping
from itertools import product

import numpy as np
from scipy.special import softmax

from common.diagnose.rounding import is_close

MOST_HEADS = 64
SAMPLED_QUERIES = 4
# Largest number of scores for which a softmax over the queries is tried, since it needs all of them
MOST_SCORES_OVER_QUERIES = 2**18
OVER_KEYS, OVER_QUERIES = "over the keys", "over the queries"
# The axis of the scores [n, heads, queries, keys], by name in reports
SOFTMAX_AXES = {OVER_KEYS: -1, OVER_QUERIES: 2, "over the heads": 1, "over the examples": 0, "missing": None}


def list_masks(batch: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return masks [n, tokens] by name: arrays of zeros and ones in a batch, and which token ids are not 0."""
    masks = {}
    for name, array in batch.items():
        if array.ndim == 2 and set(np.unique(array)) <= {0, 1}:
            masks[name] = array
        elif array.ndim == 2 and array.dtype.kind in "iu" and not array.all():
            title = f"input {name}" if name.isdecimal() else name  # "0 != 0" would read as a contradiction
            masks[f"{title} != 0"] = (array != 0).astype(int)
    return masks


def find_attention(
    projections: tuple[np.ndarray, np.ndarray, np.ndarray],
    masks: Mapping[str, np.ndarray],
    attended: np.ndarray,
    is_known: np.ndarray | None = None,
    expected: Mapping[str, str] | None = None,
) -> dict[str, str] | None:
    """Return the variant of attention that computes `attended`, by aspect, such as "scale", or None.

    Args:
        projections: Query [n, tokens, features], and key and value, which may have another number of tokens.
        masks: Masks [n, tokens] by name, 1 for a token that is attended to. Masks that do not fit the keys are ignored.
        attended: Result [n, tokens, features]. Tokens with only zeros count as padding and are not compared.
        is_known: A mask of the elements of the result to compare; None compares all elements.
        expected: The variant of the other side. Of several variants that fit, as with equal keys, the nearest to it
            is returned.
    """
    query, key, value = projections
    expected = expected or {}
    softmaxes = list(SOFTMAX_AXES)
    if query.shape[1] * key.shape[1] > MOST_SCORES_OVER_QUERIES:
        softmaxes.remove(OVER_QUERIES)
    is_compared = attended.any(-1, keepdims=True) & (np.ones_like(attended, bool) if is_known is None else is_known)
    attended = attended * is_compared
    features = query.shape[-1]
    orders = {"query and key": (query, key)}
    if query.shape == key.shape:
        orders["key and query"] = (key, query)
    nearest = expected.get("softmax"), expected.get("mask")
    counts = [count for count in range(1, min(features, MOST_HEADS) + 1) if features % count == 0]
    for heads in sorted(counts, key=lambda count: str(count) != expected.get("heads")):
        biases = _list_biases(query.shape[1], key.shape[1], masks)
        scales = _list_scales(features // heads, features, key.shape[1])
        for (order, (q, k)), (scale, factor), (softmax_name, mask, bias) in product(
            sorted(orders.items(), key=lambda x: x[0] != expected.get("order")),
            sorted(scales, key=lambda x: x[0] != expected.get("scale")),
            sorted(_list_softmaxes(softmaxes, biases), key=lambda x: x[:2] != nearest),
        ):
            axis = SOFTMAX_AXES[softmax_name]
            # First a few queries of the first head and example, which reject most variants
            for sample in (_choose_sample(q.shape, heads, axis), (slice(None),) * 3):
                rows, queries, channels = sample
                result = _attend(
                    (q[sample], k[rows, :, channels], value[rows, :, channels]),
                    heads if channels.stop is None else 1,
                    factor,
                    bias[rows, :, queries] if bias.shape[2] > 1 else bias[rows],
                    axis,
                )
                if not is_close(result * is_compared[sample], attended[sample]):
                    break
            else:
                return {"heads": str(heads), "scale": scale, "mask": mask, "order": order, "softmax": softmax_name}
    return None


def _choose_sample(shape: tuple[int, ...], heads: int, axis: int | None) -> tuple[slice, slice, slice]:
    """Return a small part of a result as slices of examples, queries and features, which need few of the scores.

    Args:
        shape: Shape [n, queries, features] of the result.
        heads: Number of heads. Only the features of the first head are chosen, unless softmax is over the heads.
        axis: Axis of the softmax over the scores [n, heads, queries, keys].
    """
    step = max(1, shape[1] // SAMPLED_QUERIES)
    return (
        slice(None) if axis == 0 else slice(1),
        slice(None) if axis == 2 else slice(None, None, step),
        slice(None) if axis == 1 else slice(shape[2] // heads),
    )


def _list_softmaxes(
    names: Iterable[str], biases: Iterable[tuple[str, np.ndarray]]
) -> Iterator[tuple[str, str, np.ndarray]]:
    """Yield names of softmaxes with names of masks and their biases. Only the usual softmax has a mask."""
    for name in names:
        for mask, bias in biases if name == OVER_KEYS else [("no mask", np.zeros((1, 1, 1, 1)))]:
            yield name, mask, bias


def _attend(
    projections: tuple[np.ndarray, np.ndarray, np.ndarray],
    heads: int,
    factor: float,
    bias: np.ndarray,
    axis: int | None,
) -> np.ndarray:
    """Return the attention [n, tokens, features] of query, key and value [n, tokens, features].

    The scores [n, heads, queries, keys] of query and key are multiplied by `factor`, and `bias` is added to them.
    Softmax is over `axis` of the scores; None leaves it out.
    """
    q, k, v = (_split_heads(array, heads) for array in projections)
    scores = np.einsum("nhid,nhjd->nhij", q, k) * factor + bias
    with np.errstate(invalid="ignore"):
        weights = scores if axis is None else softmax(scores, axis)
        return np.einsum("nhij,nhjd->nihd", weights, v).reshape(projections[0].shape)


def _split_heads(x: np.ndarray, heads: int) -> np.ndarray:
    return x.reshape(*x.shape[:2], heads, -1).transpose(0, 2, 1, 3)


def _list_scales(head_size: int, features: int, keys: int) -> list[tuple[str, float]]:
    """Return names of scales, and the factors by which they multiply the scores."""
    return [
        ("1 / sqrt(head size)", head_size**-0.5),
        ("no scale", 1.0),
        ("1 / sqrt(all features)", features**-0.5),
        ("1 / head size", 1 / head_size),
        ("1 / number of keys", 1 / keys),
        ("sqrt(head size)", head_size**0.5),
    ]


def _list_biases(queries: int, keys: int, masks: Mapping[str, np.ndarray]) -> Iterator[tuple[str, np.ndarray]]:
    """Yield names of masks, and their biases, which are added to the scores [n, heads, queries, keys]."""
    past = np.tril(np.ones((queries, keys)))[None, None]
    no_mask = {"no mask": np.ones((1, 1, 1, 1))}
    fitting = {name: mask[:, None, None] for name, mask in masks.items() if mask.shape[1] == keys}
    for name, keep in (no_mask | fitting).items():
        causal = "causal" if name == "no mask" else f"causal, {name}"
        for title, kept in ((name, keep), (causal, keep * past)):
            for masked_score, suffix in ((-1e300, ""), (-1e4, " of -1e4"), (-1e9, "")):
                yield title + suffix, np.where(kept > 0, 0.0, masked_score)
        if name != "no mask":
            yield f"inverted {name}", np.where(keep > 0, -1e300, 0.0)
            yield f"{name} added", keep * 1.0
