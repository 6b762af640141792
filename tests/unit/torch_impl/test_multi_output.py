"""Tests that the losses of several outputs are those of PyTorch over the global batch, however it is divided."""

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy, mse_loss

from common.data.batches import GlobalBatch
from common.metrics.output_predictions import split_predictions
from common.models.task_outputs import OutputLayout
from common.training.evaluation_values import fetch_losses
from common.training.strategy import Evaluation
from tests.unit.output_samples import CLASSES, COUNT, LAYOUTS, NUMBERS, OUTPUTS, PIXELS, SPLIT, TASK, WEIGHTS
from torch_impl.batches import to_tensors
from torch_impl.models.custom import _select_outputs
from torch_impl.step import backward, compute_evaluation_sums, evaluate
from torch_impl.task import TaskFunctions, build_task_functions

CPU = torch.device("cpu")


def make_functions() -> TaskFunctions:
    return build_task_functions(TASK, {"output_layouts": LAYOUTS})


def compute_expected(outputs: torch.Tensor, ids: list[int]) -> list[torch.Tensor]:
    """Return the mean loss of each output over some examples, as PyTorch computes it."""
    mask, group, age = outputs[ids].split([24, 4, 1], 1)
    pixels = torch.from_numpy(PIXELS[ids]).long()
    classes, weights = torch.from_numpy(CLASSES[ids]).long(), torch.tensor(WEIGHTS, dtype=torch.float64)
    return [
        cross_entropy(mask.reshape(-1, 2, 4, 3).movedim(-1, 1), pixels),
        cross_entropy(group, classes, weights),
        mse_loss(age[:, 0], torch.from_numpy(NUMBERS[ids]).double()),
    ]


def test_outputs_are_flat_one_after_the_other() -> None:
    returned = {"age": torch.tensor([1.0, 2.0]), "group": torch.tensor([[3.0, 4.0], [5.0, 6.0]])}
    names = ["output.group", "output.age"]
    selected = _select_outputs(names, [None, None], torch.nn.Module(), (), returned)
    assert selected.tolist() == [[3, 4, 1], [5, 6, 2]]


@pytest.mark.parametrize(("world_size", "micro_batches"), [(1, 1), (3, 1), (2, 3)])
def test_a_step_has_the_losses_and_the_gradients_of_pytorch(world_size: int, micro_batches: int) -> None:
    ids = [0, 4, 9, 2, 7, 5, 10]
    leaf = torch.tensor(OUTPUTS, requires_grad=True)
    batch = GlobalBatch(
        1, np.array(ids), SPLIT, "global", micro_batches=micro_batches, output_weights=TASK.output_weights
    )
    scale, parts = torch.ones(OUTPUTS.shape[1], dtype=torch.float64, requires_grad=True), torch.zeros(3)
    for rank in range(world_size):
        shard = to_tensors(batch.shard(rank, world_size), CPU)
        parts = parts + backward(lambda x: x * scale, make_functions(), shard, batch.weight, "float64")
    expected = compute_expected(leaf, ids)
    wanted = torch.stack(expected) @ torch.tensor(TASK.output_weights, dtype=torch.float64)
    wanted.backward()
    losses = fetch_losses(TASK, parts)
    assert list(losses) == ["loss", "mask_loss", "group_loss", "age_loss"]
    np.testing.assert_allclose(
        np.array([*losses.values()]), np.array([x.item() for x in (wanted, *expected)]), rtol=1e-12
    )
    assert leaf.grad is not None and scale.grad is not None
    np.testing.assert_allclose(scale.grad, (leaf.grad * leaf.detach()).sum(0), rtol=1e-12, atol=1e-15)


def test_an_evaluation_has_the_means_over_all_batches() -> None:
    batches = [GlobalBatch(1, np.array(ids), SPLIT, "global") for ids in ([3, 1, 2, 10], [0, 4, 5, 6, 7], [8, 9])]

    def compute_sums(batch: GlobalBatch) -> torch.Tensor:
        shards = (to_tensors(batch.shard(rank, 3), CPU) for rank in range(3))
        sums = [compute_evaluation_sums(lambda x: x, make_functions(), shard, "float64") for shard in shards]
        return torch.stack(sums).sum(0)

    evaluation: Evaluation = evaluate(batches, compute_sums)
    expected = [loss.item() for loss in compute_expected(torch.from_numpy(OUTPUTS), list(range(COUNT)))]
    values = TASK.values(evaluation.loss, evaluation.metric)
    assert [values[f"{name}_loss"] for name in ("mask", "group", "age")] == pytest.approx(expected, rel=1e-12)
    assert values["loss"] == pytest.approx(np.dot(TASK.output_weights, expected), rel=1e-12)
    is_right, is_labelled = OUTPUTS[:, :24].reshape(-1, 2, 4, 3).argmax(-1) == PIXELS, PIXELS != -100
    assert values["mask_accuracy"] == pytest.approx(is_right.sum() / is_labelled.sum(), rel=1e-12)
    weights = np.array(WEIGHTS)[CLASSES.clip(min=0)] * (CLASSES != -100)
    is_right = OUTPUTS[:, 24:28].argmax(1) == CLASSES
    assert values["group_accuracy"] == pytest.approx((is_right * weights).sum() / weights.sum(), rel=1e-12)
    assert values["age_mean_absolute_error"] == pytest.approx(np.abs(OUTPUTS[:, 28] - NUMBERS).mean(), rel=1e-12)


@pytest.mark.parametrize("kind", ["outputs", "classes"])
@pytest.mark.parametrize(("world_size", "micro_batches"), [(1, 1), (3, 1), (4, 2)])
def test_each_output_has_its_predictions(world_size: int, micro_batches: int, kind: str) -> None:
    parts = ([3, 1, 2, 10], [0, 4, 5, 6, 7], [8, 9])
    batches = [
        GlobalBatch(1, np.array(ids), SPLIT, "global", micro_batches=micro_batches, predictions=kind) for ids in parts
    ]

    def compute_sums(batch: GlobalBatch) -> torch.Tensor:
        shards = (to_tensors(batch.shard(rank, world_size), CPU) for rank in range(world_size))
        sums = [compute_evaluation_sums(lambda x: x, make_functions(), shard, "float64") for shard in shards]
        return torch.stack(sums).sum(0)

    layouts = [OutputLayout(**layout) for layout in LAYOUTS]  # type: ignore[arg-type]
    predictions = split_predictions(evaluate(batches, compute_sums).predictions, TASK, layouts)
    expected = {
        "mask": (PIXELS, OUTPUTS[:, :24]),
        "group": (CLASSES, OUTPUTS[:, 24:28]),
        "age": (NUMBERS, OUTPUTS[:, 28]),
    }
    if kind == "classes":
        expected["mask"] = PIXELS, OUTPUTS[:, :24].reshape(-1, 2, 4, 3).argmax(-1)
        expected["group"] = CLASSES, OUTPUTS[:, 24:28].argmax(-1)
    assert [output.kind for output in predictions.values()] == [kind, kind, "outputs"]
    assert list(predictions) == list(expected)
    for name, (labels, outputs) in expected.items():
        assert predictions[name].labels.dtype == labels.dtype
        assert predictions[name].ids.tolist() == list(range(COUNT))
        np.testing.assert_array_equal(predictions[name].labels, labels)
        np.testing.assert_array_equal(predictions[name].outputs, outputs)


def test_nothing_is_split_if_nothing_was_gathered() -> None:
    assert split_predictions(None, TASK, []) == {}


def test_an_output_without_labels_in_the_batch_counts_nothing() -> None:
    ids = np.array([9, 10])
    batch = GlobalBatch(1, ids, SPLIT, "global", output_weights=TASK.output_weights)
    (shard,) = to_tensors(batch.shard(0, 1), CPU)
    (empty,) = to_tensors(GlobalBatch(1, ids[1:], SPLIT, "global", output_weights=TASK.output_weights).shard(0, 1), CPU)
    for arrays in (shard, empty):
        assert torch.isfinite(arrays["weights"]).all()
    mask = backward(lambda x: x.requires_grad_(), make_functions(), [empty], 1.0, "float64")[0]
    assert mask == 0
