"""Tests that the metrics of a search are those of scikit-learn and of their definition."""

import numpy as np
import pytest
from sklearn.metrics import label_ranking_average_precision_score, top_k_accuracy_score

from common.config.task_kinds import ContrastiveSettings
from common.metrics import retrieval_metrics
from common.metrics.retrieval_metrics import compute_retrieval_metric

COUNT = 37
stream = np.random.default_rng(4)
ANCHORS = stream.standard_normal((COUNT, 5))
PARTNERS = ANCHORS + 0.7 * stream.standard_normal((COUNT, 5))
EMBEDDINGS = np.stack([ANCHORS, PARTNERS, stream.standard_normal((COUNT, 5))], 1)


@pytest.mark.parametrize("similarity", ["cosine", "dot"])
@pytest.mark.parametrize("embeddings", [2, 3])
@pytest.mark.parametrize("block", [8, 1024])
def test_metrics_are_those_of_scikit_learn(
    monkeypatch: pytest.MonkeyPatch, similarity: str, embeddings: int, block: int
) -> None:
    monkeypatch.setattr(retrieval_metrics, "BLOCK", block)
    task = ContrastiveSettings("contrastive", None, similarity, 0.05, False)
    vectors = EMBEDDINGS[:, :embeddings]
    if similarity == "cosine":
        vectors = vectors / np.linalg.norm(vectors, axis=-1, keepdims=True)
    scores = vectors[:, 0] @ np.concatenate(list(vectors[:, 1:].swapaxes(0, 1))).T
    targets, columns = np.arange(COUNT), np.arange(scores.shape[1])
    for k in (1, 5, 10):
        wanted = top_k_accuracy_score(targets, scores, k=k, labels=columns)
        assert compute_retrieval_metric(f"recall_at_{k}", task, EMBEDDINGS[:, :embeddings]) == wanted
    wanted = label_ranking_average_precision_score(targets[:, None] == columns, scores)
    mean_rank = compute_retrieval_metric("mean_reciprocal_rank", task, EMBEDDINGS[:, :embeddings])
    np.testing.assert_allclose(mean_rank, wanted, rtol=1e-12)


def test_equal_embeddings_find_nothing() -> None:
    task = ContrastiveSettings("contrastive", None, "dot", 0.05, False)
    assert compute_retrieval_metric("recall_at_5", task, np.ones((COUNT, 2, 3))) == 0
    assert compute_retrieval_metric("mean_reciprocal_rank", task, np.ones((COUNT, 2, 3))) == pytest.approx(1 / COUNT)


@pytest.mark.parametrize("similarity", ["cosine", "dot"])
def test_a_copy_of_the_partner_is_ranked_before_it_despite_rounding(similarity: str) -> None:
    task = ContrastiveSettings("contrastive", None, similarity, 0.05, False)
    pairs = np.repeat(np.stack([ANCHORS, ANCHORS], 1), 2, 0)  # each pair twice
    if similarity == "dot":
        pairs /= np.linalg.norm(pairs, axis=-1, keepdims=True)
        pairs *= 100
    rounded = pairs * (1 + 1e-7 * np.random.default_rng(1).uniform(-1, 1, pairs.shape))
    assert compute_retrieval_metric("recall_at_1", task, rounded) == 0
    assert compute_retrieval_metric("mean_reciprocal_rank", task, rounded) == 0.5
