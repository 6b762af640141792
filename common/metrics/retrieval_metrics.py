"""Metrics of the search for the partner of each example among all validation examples, for task=contrastive."""

import numpy as np

from common.config.metrics import RECALLS
from common.config.task_kinds import ContrastiveSettings

BLOCK = 1024  # anchors that are compared with all candidates at once
ROUNDING = 1e-6  # cosines that differ by less are equal: float32 embeddings of equal examples differ in the last digits


def compute_retrieval_metric(metric: str, task: ContrastiveSettings, embeddings: np.ndarray) -> float:
    """Return the share of the anchors whose partner is among the first k candidates, or the mean of 1 / rank.

    Args:
        metric: A key of RECALLS, or mean_reciprocal_rank.
        task: The settings of the task.
        embeddings: The embeddings of all examples, [n, 2 or more, size]: anchors, partners, and further negatives.
    """
    ranks = rank_partners(task, embeddings)
    return float((ranks <= RECALLS[metric]).mean() if metric in RECALLS else (1 / ranks).mean())


def rank_partners(task: ContrastiveSettings, embeddings: np.ndarray) -> np.ndarray:
    """Return the rank of each anchor's partner among the partners and negatives of all examples, from 1, int64 [n].

    Candidates whose score equals the partner's, up to rounding, are ranked before the partner. So equal embeddings find
    nothing, and a copy of the partner has the same rank on both sides and at any number of replicas.
    """
    if task.similarity == "cosine":
        embeddings = embeddings / np.sqrt(np.maximum(np.square(embeddings).sum(-1, keepdims=True), 1e-24))
    candidates = embeddings[:, 1:].swapaxes(0, 1).reshape(-1, embeddings.shape[-1])
    lengths = np.linalg.norm(embeddings, axis=-1)
    margins = ROUNDING * lengths[:, 0] * lengths[:, 1]
    ranks = []
    for start in range(0, len(embeddings), BLOCK):
        scores = embeddings[start : start + BLOCK, 0] @ candidates.T
        rows = np.arange(len(scores))
        limits = scores[rows, start + rows] - margins[start : start + BLOCK]
        ranks.append((scores >= limits[:, None]).sum(1))  # the partner itself makes it at least 1
    return np.concatenate(ranks)
