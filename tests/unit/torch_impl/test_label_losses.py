"""Tests that the mean over the labels of a global batch does not depend on the division of the batch into shards."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from common.config.tasks import CustomTaskSettings, TaskSettings
from common.data.batches import GlobalBatch
from common.data.splits.array_column import Column
from common.data.splits.array_split import ArraySplit
from tests.unit.reference_losses import BINARY, CLASSIFICATION, expected
from torch_impl.batches import to_tensors
from torch_impl.step import sum_losses
from torch_impl.task import build_task_functions

COUNT, WEIGHTS = 12, [0.5, 2.0, 1.0]
stream = np.random.default_rng(3)
LOGITS = stream.standard_normal((COUNT, 4, 5, 3))
LABELS = stream.integers(0, 3, (COUNT, 4, 5)).astype(np.int32)
LABELS[stream.random(LABELS.shape) < np.linspace(0, 1, COUNT)[:, None, None]] = -100  # the last example has no labels
EXAMPLE_WEIGHTS = stream.random(COUNT)
TASKS: dict[str, TaskSettings] = {
    "cross entropy": CLASSIFICATION,
    "class weights": replace(CLASSIFICATION, class_weights=WEIGHTS),
    "focal": replace(CLASSIFICATION, loss="focal"),
    "dice": replace(CLASSIFICATION, loss="dice"),
    "binary": replace(BINARY, ignore_label=-100, class_weights=WEIGHTS[:2]),
    "binary dice": replace(BINARY, ignore_label=-100, loss="dice"),
}


def make_batch(task: TaskSettings, ids: list[int], weights: np.ndarray | None = None) -> GlobalBatch:
    """Return a batch whose input is the output of a model."""
    is_binary = task.kind == "binary"
    labels = LABELS.clip(max=1) if is_binary else LABELS
    outputs = LOGITS[..., 0] if is_binary else LOGITS
    return GlobalBatch(1, np.array(ids), ArraySplit({"x": Column(outputs)}, Column(labels), weights, task), "global")


def compute_mean(task: TaskSettings, batch: GlobalBatch, world_size: int, micro_batches: int = 1) -> float:
    """Return the loss of a step: the sum of the losses of all micro-batches of all shards."""
    functions, loss = build_task_functions(task), 0.0
    batch = replace(batch, micro_batches=micro_batches)
    for rank in range(world_size):
        for micro_batch in to_tensors(batch.shard(rank, world_size), torch.device("cpu")):
            loss += float(sum_losses(functions, micro_batch["x"], micro_batch) / batch.weight)
    return loss


@settings(max_examples=40)
@given(
    name=st.sampled_from(list(TASKS)),
    ids=st.lists(st.integers(0, COUNT - 1), min_size=1, max_size=COUNT, unique=True),
    world_size=st.integers(1, 5),
    micro_batches=st.integers(1, 3),
)
def test_the_loss_does_not_depend_on_the_shards(name: str, ids: list[int], world_size: int, micro_batches: int) -> None:
    batch = make_batch(TASKS[name], ids, EXAMPLE_WEIGHTS)
    one = compute_mean(TASKS[name], batch, 1)
    assert compute_mean(TASKS[name], batch, world_size, micro_batches) == pytest.approx(one, rel=1e-12, abs=1e-15)


@pytest.mark.parametrize("weights", [None, WEIGHTS])
def test_the_loss_is_the_mean_of_pytorch_over_all_labels(weights: list[float] | None) -> None:
    task, ids = replace(CLASSIFICATION, class_weights=weights), list(range(COUNT))
    class_weights = None if weights is None else torch.tensor(weights, dtype=torch.float64)
    wanted = torch.nn.CrossEntropyLoss(class_weights, ignore_index=-100)(
        torch.from_numpy(LOGITS).movedim(-1, 1), torch.from_numpy(LABELS).long()
    )
    loss = compute_mean(task, make_batch(task, ids), 3)
    assert loss == pytest.approx(float(wanted), rel=1e-12)
    shards = [ids[start::3] for start in range(3)]
    mean_of_means = np.mean([compute_mean(task, make_batch(task, shard), 1) for shard in shards])
    assert abs(mean_of_means - loss) > 1e-3 * loss, "a mean of the means of the shards is another number"


def test_a_batch_without_labels_has_no_loss() -> None:
    for task in TASKS.values():
        assert compute_mean(task, make_batch(task, [COUNT - 1]), 2) == 0


def test_dice_is_the_mean_over_the_examples_with_labels() -> None:
    task, labels = TASKS["dice"], LABELS[:5]
    wanted = expected(task, LOGITS[:5], labels)["losses"].mean()
    assert compute_mean(task, make_batch(task, [*range(5), COUNT - 1]), 2) == pytest.approx(wanted, rel=1e-12)


@pytest.mark.parametrize("world_size", [1, 3])
def test_a_loss_of_the_user_is_the_mean_over_the_examples(world_size: int) -> None:
    task = CustomTaskSettings("custom", f"{__name__}:compute_shares", None)
    batch = make_batch(task, list(range(8)))
    expected_loss = (LABELS[:8] == 1).mean((1, 2)).mean()
    assert expected_loss > 0.1 and compute_mean(task, batch, world_size) == pytest.approx(expected_loss)


def compute_shares(outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Return a value for each example: the share of its pixels that are of class 1."""
    return (labels == 1).to(outputs.dtype).mean((1, 2))
