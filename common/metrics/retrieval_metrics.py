"""Metrics of the search for the partner of each example among all validation examples, for task=contrastive."""

import numpy as np

from common.config.metrics import RECALLS
from common.config.task_kinds import ContrastiveSettings

BLOCK = 1024  # anchors that are compared with all candidates at once


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

    Candidates with the score of the partner are ranked before it, so that equal embeddings find nothing.
    """
    if task.similarity == "cosine":
        embeddings = embeddings / np.sqrt(np.maximum(np.square(embeddings).sum(-1, keepdims=True), 1e-24))
    candidates = embeddings[:, 1:].swapaxes(0, 1).reshape(-1, embeddings.shape[-1])
    ranks = []
    for start in range(0, len(embeddings), BLOCK):
        scores = embeddings[start : start + BLOCK, 0] @ candidates.T
        partner_scores = scores[np.arange(len(scores)), start + np.arange(len(scores))]
        ranks.append((scores >= partner_scores[:, None]).sum(1))  # the partner itself makes it at least 1
    return np.concatenate(ranks)
