"""What code between two layers may compute: candidates that explain an array exactly."""

from collections.abc import Callable, Iterator, Mapping
from itertools import product

import numpy as np
from scipy.optimize import least_squares
from scipy.special import erf, expit, log_softmax, softmax

from common.diagnose.rounding import close

FEW = 8  # examples, or tokens: what a factor is fitted to

Function = Callable[[np.ndarray], np.ndarray]

ACTIVATIONS: dict[str, Function] = {
    "no activation": lambda x: x,
    "relu": lambda x: np.maximum(x, 0),
    "relu6": lambda x: np.clip(x, 0, 6),
    "exact gelu": lambda x: x * (1 + erf(x / np.sqrt(2))) / 2,
    "gelu's tanh approximation": lambda x: x / 2 * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3))),
    "gelu's sigmoid approximation": lambda x: x * expit(1.702 * x),
    "tanh": np.tanh,
    "sigmoid": expit,
    "silu": lambda x: x * expit(x),
    "softplus": lambda x: np.logaddexp(0, x),
    "elu": lambda x: np.where(x > 0, x, np.expm1(np.minimum(x, 0))),
    "leaky relu of slope 0.01": lambda x: np.where(x > 0, x, 0.01 * x),
    "leaky relu of slope 0.2": lambda x: np.where(x > 0, x, 0.2 * x),
    "leaky relu of slope 0.3": lambda x: np.where(x > 0, x, 0.3 * x),
    "softmax": lambda x: softmax(x, -1),
    "log_softmax": lambda x: log_softmax(x, -1),
}


def activation_of(received: np.ndarray, returned: np.ndarray) -> str | None:
    """The activation that makes one of the other."""
    if received.shape != returned.shape:
        return None
    return next((name for name, function in ACTIVATIONS.items() if close(function(received), returned)), None)


def scaled_activation_of(received: np.ndarray, returned: np.ndarray) -> str | None:
    """The activation that makes one of the other after a multiplication by some factor."""
    if received.shape != returned.shape or not returned.any() or not np.isfinite(received + returned).all():
        return None
    for name, function in ACTIVATIONS.items():
        factor = _factor(function, received[:FEW], returned[:FEW])
        if name != "no activation" and close(function(factor * received), returned):
            return name if np.isclose(factor, 1) else f"{name} of {factor:.6g} times its input"
    return None


def _factor(function: Function, received: np.ndarray, returned: np.ndarray) -> float:
    """Of the input, with which a function comes nearest to what was returned."""
    fitted = least_squares(
        lambda factor: (function(factor * received) - returned).ravel(), 1.0, ftol=1e-15, xtol=1e-15, gtol=1e-15
    )
    return float(fitted.x[0])


def epsilon_of(received: np.ndarray, gamma: np.ndarray, beta: np.ndarray, returned: np.ndarray) -> float | None:
    """The epsilon with which a layer norm makes one of the other; None of another layer."""
    if received.shape != returned.shape or gamma.shape != received.shape[-1:]:
        return None
    centred, variance = received - received.mean(-1, keepdims=True), received.var(-1, keepdims=True)
    shrunk = (centred**2 * gamma**2).sum(-1, keepdims=True) / ((returned - beta) ** 2).sum(-1, keepdims=True)
    epsilon = max(0.0, float(np.median(shrunk - variance)))
    normal = centred / np.sqrt(variance + epsilon) * gamma + beta
    return epsilon if close(normal, returned) else None


def by_example(array: np.ndarray, batch: Mapping[str, np.ndarray]) -> np.ndarray:
    """What all tokens of a batch as one sequence have, as [n, tokens, ...], zero in the padding; else as it is.

    array: [t, ...] or [1, t, ...] of unpadded tokens, or [n * tokens, ...].
    """
    mask = batch.get("attention_mask", np.empty(0))
    places = batch.get("places", np.arange(mask.size))
    values = array[0] if array.shape[:1] == (1,) and places.size > 1 else array
    if values.shape[:1] != places.shape:
        return array
    found = np.zeros((mask.size, *values.shape[1:]))
    found[places] = values
    return found.reshape(*mask.shape, *values.shape[1:])


def attention_of(
    projections: tuple[np.ndarray, np.ndarray, np.ndarray], masks: Mapping[str, np.ndarray], attended: np.ndarray
) -> dict[str, str] | None:
    """How attention was computed of query, key and value [n, tokens, features]: scale, mask, and what is swapped.

    masks: [n, tokens], 1 for what is attended to. Tokens that have only zeros in `attended` are not looked at.
    """
    query, key, value = projections
    known = np.asarray(attended.any(-1, keepdims=True))
    features = query.shape[-1]
    for heads in (each for each in range(1, features + 1) if features % each == 0 and each <= 64):
        size = features // heads
        for (order, (q, k)), (scale, factor), (mask, bias) in product(
            {"query and key": (query, key), "key and query": (key, query)}.items(),
            _scales(size, features),
            _biases(query, masks),
        ):
            if all(
                close(_attend(q[rows], k[rows], value[rows], heads, factor, bias[rows]) * known[rows], attended[rows])
                for rows in (slice(1), slice(None))  # one example refuses most candidates
            ):
                return {"heads": str(heads), "scale": scale, "mask": mask, "order": order}
    return None


def _attend(
    query: np.ndarray, key: np.ndarray, value: np.ndarray, heads: int, factor: float, bias: np.ndarray
) -> np.ndarray:
    """Attention of arrays [n, tokens, features]."""
    q, k, v = (_split(each, heads) for each in (query, key, value))
    scores = np.einsum("nhid,nhjd->nhij", q, k) * factor + bias
    with np.errstate(invalid="ignore"):
        return np.einsum("nhij,nhjd->nihd", softmax(scores, -1), v).reshape(query.shape)


def _scales(size: int, features: int) -> list[tuple[str, float]]:
    return [
        ("1 / sqrt(head size)", size**-0.5),
        ("no scale", 1.0),
        ("1 / sqrt(all features)", features**-0.5),
        ("1 / head size", 1 / size),
    ]


def _biases(query: np.ndarray, masks: Mapping[str, np.ndarray]) -> Iterator[tuple[str, np.ndarray]]:
    """What is added to the scores [n, heads, tokens, tokens]."""
    tokens = query.shape[1]
    past = np.tril(np.ones((tokens, tokens)))[None, None]
    given = {"no mask": np.ones((1, 1, 1, 1))} | {name: each[:, None, None] for name, each in masks.items()}
    for name, keep in given.items():
        for causal, both in ((name, keep), (f"causal, {name}", keep * past)):
            for low, words in ((-1e300, ""), (-1e4, " of -1e4"), (-1e9, "")):
                yield causal + words, np.where(both > 0, 0.0, low)
        if name != "no mask":
            yield f"inverted {name}", np.where(keep > 0, -1e300, 0.0)
            yield f"{name} added", keep * 1.0


def _split(x: np.ndarray, heads: int) -> np.ndarray:
    return x.reshape(*x.shape[:2], heads, -1).transpose(0, 2, 1, 3)


def pooling_of(received: np.ndarray, returned: np.ndarray, masks: Mapping[str, np.ndarray]) -> str | None:
    """How [n, ..., features], or [n, features, ...], became [n, features], perhaps after an activation."""
    if received.ndim < 3 or returned.ndim != 2:
        return None
    for features_last in (received, np.moveaxis(received, 1, -1)):
        if returned.shape == (len(received), features_last.shape[-1]):
            for activation in ("no activation", "relu", "tanh", "exact gelu"):
                found = _pooled(ACTIVATIONS[activation](features_last), masks)
                name = next((name for name, each in found.items() if close(each, returned)), None)
                if name is not None:
                    return name
    return None


def _pooled(x: np.ndarray, masks: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    axes = tuple(range(1, x.ndim - 1))
    found = {"the mean": x.mean(axes), "the maximum": x.max(axes), "the sum": x.sum(axes)}
    if x.ndim != 3:
        return found
    found |= {"the first token": x[:, 0], "the last token": x[:, -1]}
    for name, mask in masks.items():
        if mask.shape == x.shape[:2]:
            keep = mask[..., None]
            found[f"the mean where {name} is 1"] = (x * keep).sum(1) / np.maximum(keep.sum(1), 1)
            found[f"the maximum where {name} is 1"] = np.where(keep > 0, x, -np.inf).max(1)
            last = np.maximum(mask.sum(1).astype(int) - 1, 0)
            found[f"the last token where {name} is 1"] = x[np.arange(len(x)), last]
    return found
