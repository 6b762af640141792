"""Tests that the contrastive loss is that of its sources over the global batch, also if several replicas compute it."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy, normalize

from common.config.task_kinds import ContrastiveSettings
from common.data.batches import GlobalBatch
from common.data.splits.array_column import Column
from common.data.splits.array_split import ArraySplit
from common.metrics.output_predictions import split_predictions
from common.models.task_outputs import OutputLayout
from torch_impl.batches import to_tensors
from torch_impl.step import backward, compute_evaluation_sums, evaluate
from torch_impl.strategies.dp import _get_targets
from torch_impl.task import build_task_functions

COUNT, SIZE = 7, 4
TASK = ContrastiveSettings("contrastive", None, "cosine", 0.05, False)
stream = np.random.default_rng(2)
EMBEDDINGS = stream.standard_normal((COUNT, 3, SIZE))
WEIGHTS = stream.random(COUNT)
CPU = torch.device("cpu")


def make_batch(size: int = COUNT, embeddings: int = 2) -> GlobalBatch:
    """Return a batch whose input is the flat embeddings of a model."""
    column = Column(EMBEDDINGS[:, :embeddings].reshape(COUNT, -1))
    split = ArraySplit({"x": column}, Column(np.zeros(COUNT, np.int32)), WEIGHTS, TASK)
    return GlobalBatch(1, np.arange(size), split, "global", mark_places=True)


def compute(task: ContrastiveSettings, embeddings: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the loss of a step, and the gradient of a scale of each number of an embedding."""
    scale = torch.ones(embeddings * SIZE, dtype=torch.float64, requires_grad=True)
    functions = build_task_functions(task, {"output_layouts": [layout(embeddings)]})
    batch = make_batch(embeddings=embeddings)
    shard = to_tensors(batch.shard(0, 1), CPU)
    loss = backward(lambda x: x * scale, functions, shard, batch.weight, "float64")
    assert scale.grad is not None
    return loss, scale.grad


def layout(embeddings: int) -> dict[str, object]:
    return {"output": [embeddings, SIZE], "labels": [], "is_integer": True}


@pytest.mark.parametrize("embeddings", [2, 3])
@pytest.mark.parametrize("symmetric", [False, True])
@pytest.mark.parametrize("similarity", ["cosine", "dot"])
def test_the_loss_is_that_of_its_sources(embeddings: int, symmetric: bool, similarity: str) -> None:
    """Source: MultipleNegativesRankingLoss of sentence-transformers; the loss of CLIP for two embeddings."""
    leaf = torch.tensor(EMBEDDINGS[:, :embeddings], requires_grad=True)
    anchors, *others = (normalize(x, dim=-1) if similarity == "cosine" else x for x in leaf.unbind(1))
    scores, targets = anchors @ torch.cat(others).T * 20, torch.arange(COUNT)
    losses = cross_entropy(scores, targets, reduction="none")
    if symmetric:
        losses = (losses + cross_entropy(scores[:, :COUNT].T, targets, reduction="none")) / 2
    weights = torch.from_numpy(WEIGHTS)
    wanted = (losses * weights).sum() / weights.sum()
    wanted.backward()
    assert leaf.grad is not None
    loss, gradient = compute(replace(TASK, symmetric=symmetric, similarity=similarity), embeddings)
    torch.testing.assert_close(loss, wanted.detach(), rtol=1e-12, atol=0)
    torch.testing.assert_close(gradient, (leaf.grad * leaf.detach()).sum(0).flatten(), rtol=1e-10, atol=1e-13)


@pytest.mark.parametrize("size", [COUNT, 2])
def test_the_parts_of_all_replicas_are_those_of_one(size: int) -> None:
    """The last batch has fewer examples than replicas, so a replica computes a copy of weight 0."""
    batch, settings = make_batch(size), {"output_layouts": [layout(2)]}
    shards = [to_tensors(batch.shard(rank, 3), CPU) for rank in range(3)]
    gather = build_task_functions(TASK, settings).gather
    assert gather is not None
    whole = torch.stack([gather(shard["x"], shard["batch_places"]) for (shard,) in shards]).sum(0)
    functions = build_task_functions(TASK, settings, lambda: lambda here: whole)
    sums = [compute_evaluation_sums(lambda x: x, functions, shard, "float64") for shard in shards]
    single = build_task_functions(TASK, settings)
    expected = compute_evaluation_sums(lambda x: x, single, to_tensors(batch.shard(0, 1), CPU), "float64")
    torch.testing.assert_close(torch.stack(sums).sum(0), expected, rtol=1e-12, atol=0)
    joined = _get_targets([micro_batch for shard in shards for micro_batch in shard], CPU)
    gathered = torch.cat([shard["x"] for (shard,) in shards])
    sums = [compute_evaluation_sums(lambda x: x, single, [{"x": gathered, **joined}], "float64")]
    torch.testing.assert_close(sums[0], expected, rtol=1e-12, atol=0)


def test_an_embedding_of_zeros_has_a_finite_gradient() -> None:
    leaf = torch.zeros(2, 2 * SIZE, requires_grad=True)
    functions = build_task_functions(TASK, {"output_layouts": [layout(2)]})
    functions.losses(leaf, torch.zeros(2)).sum().backward()
    assert leaf.grad is not None and leaf.grad.isfinite().all()


@pytest.mark.parametrize("world_size", [1, 3])
def test_the_partner_is_searched_among_all_validation_examples(world_size: int) -> None:
    """The embeddings are gathered by example, also if a batch has fewer examples than replicas."""
    batches = [
        replace(make_batch(), ids=ids, predictions="outputs") for ids in (np.arange(4), np.array([6, 5]), np.array([4]))
    ]
    settings = {"output_layouts": [layout(2)]}

    def compute_sums(batch: GlobalBatch) -> torch.Tensor:
        functions = replace(build_task_functions(TASK, settings), gather=None)
        shards = [to_tensors(batch.shard(rank, world_size), CPU) for rank in range(world_size)]
        return torch.stack([compute_evaluation_sums(lambda x: x, functions, s, "float64") for s in shards]).sum(0)

    layouts = [OutputLayout([2, SIZE], [], True)]
    predictions = split_predictions(evaluate(batches, compute_sums).predictions, TASK, layouts)
    np.testing.assert_array_equal(predictions[""].outputs, EMBEDDINGS[:, :2])
