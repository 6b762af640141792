"""Values of contrastive and triplet losses, against those of PyTorch's functions."""

import numpy as np
import pytest
import torch
from torch.nn import functional

from common.diagnose.recorded.losses.embedding_formulas import list_embedding_formulas

VIEWS = torch.randn(3, 6, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
OWN = torch.arange(6)
NORMALIZED, OVER_BATCH = functional.normalize(VIEWS, dim=-1), functional.normalize(VIEWS, dim=1)
ANCHOR, POSITIVE, NEGATIVE = VIEWS


def compute_cross_entropy(first: torch.Tensor, second: torch.Tensor, temperature: float) -> float:
    return float(functional.cross_entropy(first @ second.T / temperature, OWN))


def compute_among_both(temperature: float) -> float:
    views = torch.cat([NORMALIZED[0], NORMALIZED[1]])
    logits = (views @ views.T / temperature).masked_fill(torch.eye(12, dtype=torch.bool), -torch.inf)
    return float(functional.cross_entropy(logits, torch.cat([OWN + 6, OWN])))


LOSSES = {
    "the contrastive loss of normalized embeddings with the temperature 0.1, first direction only": (
        2, compute_cross_entropy(NORMALIZED[0], NORMALIZED[1], 0.1),
    ),
    "the contrastive loss of embeddings with the temperature 1, second direction only": (
        2, compute_cross_entropy(VIEWS[1], VIEWS[0], 1.0),
    ),
    "the contrastive loss of embeddings normalized over the batch with the temperature 0.5, first direction only": (
        2, compute_cross_entropy(OVER_BATCH[0], OVER_BATCH[1], 0.5),
    ),
    "the contrastive loss of normalized embeddings with the temperature 0.5, among the views of both calls": (
        2, compute_among_both(0.5),
    ),
    "the triplet loss of distances of embeddings with the margin 1, mean": (
        3, float(functional.triplet_margin_loss(ANCHOR, POSITIVE, NEGATIVE, margin=1.0, eps=0.0)),
    ),
    "the triplet loss of distances of embeddings with the margin 0.2, positive and negative examples exchanged, sum": (
        3, float(functional.triplet_margin_loss(ANCHOR, NEGATIVE, POSITIVE, margin=0.2, eps=0.0, reduction="sum")),
    ),
    "the triplet loss of cosine distances of embeddings with the margin 0.5, mean": (
        3,
        float(
            functional.triplet_margin_with_distance_loss(
                ANCHOR, POSITIVE, NEGATIVE, margin=0.5,
                distance_function=lambda x, y: 1 - functional.cosine_similarity(x, y),
            )
        ),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", LOSSES)
def test_a_formula_computes_the_loss_of_pytorch(name: str) -> None:
    calls, loss = LOSSES[name]
    assert dict(list_embedding_formulas([*VIEWS.numpy()[:calls]]))[name] == pytest.approx(loss, rel=1e-6)


def test_outputs_of_other_shapes_are_no_embeddings() -> None:
    assert not [*list_embedding_formulas([np.ones((4, 3)), np.ones((5, 3))])]
    assert not [*list_embedding_formulas([np.ones((4, 3, 2)), np.ones((4, 3, 2))])]
    assert not [*list_embedding_formulas([np.ones((1000, 3)), np.ones((1000, 3))])]
