"""Formulas of losses that compare embeddings: contrastive losses of two views, and triplet losses.

A script computes such a loss by hand, from the outputs of several calls of its model. The temperature and the margin
are not recorded, so usual values are tried.
"""

from collections.abc import Callable, Iterator, Sequence

import numpy as np

TEMPERATURES = (0.01, 0.02, 0.03, 0.04, 0.05, 0.06, 0.07, 0.08, 0.1, 0.15, 0.2, 0.25, 0.3, 0.4, 0.5, 0.7, 1.0, 2.0)
MARGINS = (0.0, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 1.0, 1.5, 2.0, 5.0, 10.0)
TEMPERATURE, MARGIN = "the temperature", "the margin"  # words before the value of the parameter
MOST_EXAMPLES = 256  # in a batch: the similarities of all pairs are computed, for each temperature
TINY = 1e-12  # added to norms, so that they are not 0
Formula = tuple[str, float]


def _normalize(embeddings: np.ndarray, axis: int) -> np.ndarray:
    return np.asarray(embeddings / (np.linalg.norm(embeddings, axis=axis, keepdims=True) + TINY))


PREPARATIONS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "normalized embeddings": lambda x: _normalize(x, 1),
    "embeddings": lambda x: x,
    "embeddings normalized over the batch": lambda x: _normalize(x, 0),
}
DISTANCES: dict[str, Callable[[np.ndarray, np.ndarray], np.ndarray]] = {  # of rows [n, features]
    "squared distances": lambda x, y: ((x - y) ** 2).sum(1),
    "distances": lambda x, y: np.linalg.norm(x - y, axis=1),
    "squared distances, averaged over the features": lambda x, y: ((x - y) ** 2).mean(1),
    "distances in each feature": lambda x, y: np.abs(x - y).sum(1),
    "cosine distances": lambda x, y: 1 - (_normalize(x, 1) * _normalize(y, 1)).sum(1),
}


def list_embedding_formulas(calls: Sequence[np.ndarray]) -> Iterator[Formula]:
    """Yield the names and values of all formulas that fit the outputs [n, features] of the calls of a model.

    Two calls are views of the same examples, and three calls anchors, positive and negative examples.
    """
    if len({call.shape for call in calls}) != 1 or calls[0].ndim != 2 or not 1 < len(calls[0]) <= MOST_EXAMPLES:
        return
    if not all(np.isfinite(call).all() for call in calls):
        return
    arrays = [call.astype(np.float64) for call in calls]
    if len(arrays) == 2:
        yield from _list_contrastive(*arrays)
    if len(arrays) == 3:
        yield from _list_triplet(*arrays)


def _list_contrastive(first: np.ndarray, second: np.ndarray) -> Iterator[Formula]:
    """Yield the contrastive losses of two views: the second view of an example is the right one of all second views."""
    count = len(first)
    examples = np.arange(count)
    for prepared, prepare in PREPARATIONS.items():
        views = prepare(first), prepare(second)
        joined = np.concatenate(views)
        similarities, all_similarities = views[0] @ views[1].T, joined @ joined.T
        others = np.where(np.eye(2 * count, dtype=bool), -np.inf, all_similarities)
        partners = np.concatenate([examples + count, examples])
        for temperature in TEMPERATURES:
            name = f"the contrastive loss of {prepared} with {TEMPERATURE} {temperature:g}"
            losses = [_compare_rows(x, examples, temperature) for x in (similarities, similarities.T)]
            yield f"{name}, mean of both directions", float(np.mean(losses))
            yield f"{name}, first direction only", losses[0]
            yield f"{name}, second direction only", losses[1]
            yield f"{name}, sum of both directions", float(np.sum(losses))
            for words, table in (("", others), (", with each view as its own negative", all_similarities)):
                yield f"{name}, among the views of both calls{words}", _compare_rows(table, partners, temperature)


def _compare_rows(similarities: np.ndarray, partners: np.ndarray, temperature: float) -> float:
    """Return the mean cross entropy of rows of similarities [n, m] whose right columns are the partners [n]."""
    largest = similarities.max(1)
    sums = np.exp((similarities - largest[:, None]) / temperature).sum(1)
    right = similarities[np.arange(len(partners)), partners]
    return float((np.log(sums) - (right - largest) / temperature).mean())


def _list_triplet(anchor: np.ndarray, positive: np.ndarray, negative: np.ndarray) -> Iterator[Formula]:
    """Yield the triplet losses."""
    for prepared, prepare in list(PREPARATIONS.items())[1::-1]:
        x, y, z = map(prepare, (anchor, positive, negative))
        for title, measure in DISTANCES.items():
            near, far = measure(x, y), measure(x, z)
            name = f"the triplet loss of {title} of {prepared}"
            for margin in MARGINS:
                named = f"{name} with {MARGIN} {margin:g}"
                for words, gap in (("", near - far), (", positive and negative examples exchanged", far - near)):
                    losses = np.maximum(gap + margin, 0)
                    yield f"{named}{words}, mean", float(losses.mean())
                    yield f"{named}{words}, sum", float(losses.sum())
                if margin:
                    yield f"{named} added after the maximum, mean", float((np.maximum(near - far, 0) + margin).mean())
            yield f"{name} with a soft margin, mean", float(np.logaddexp(0, near - far).mean())
