"""Predictions that are gathered over replicas: each example once, at any world size and padding."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from common.data import batches as batches_module
from common.data.batches import Arrays, GlobalBatch, evaluation_batches
from common.data.splits.array_column import Column
from common.data.splits.array_split import ArraySplit
from common.errors import UserError
from common.metrics.predictions import Predictions, collect_predictions
from torch_impl.predictions import append_predictions

PADDINGS = ("global", "micro_batches", "unpadded")
NAN = float("nan")


def make_split(lengths: list[int], ragged_labels: bool) -> ArraySplit:
    """Return a split whose example i has `values` [i, i / 2], and the class i or the label i + p at each position p."""
    offsets = np.concatenate(([0], np.cumsum(lengths)))
    positions = np.concatenate([example + np.arange(length) for example, length in enumerate(lengths)])
    ids = np.arange(len(lengths))
    words = Column(positions.astype(np.int32), offsets)
    labels = words if ragged_labels else Column(ids.astype(np.int32))
    weights = (ids % 3).astype(float)  # an example of weight 0 is still an example
    return ArraySplit(
        {"values": Column(np.stack([ids, ids / 2], 1).astype(np.float32)), "words": words}, labels, weights
    )


def compute_outputs(arrays: Arrays) -> torch.Tensor:
    """Return the values of each example or, if a class is asked for, logits that are largest for the label."""
    if "class_places" in arrays:
        return torch.nn.functional.one_hot(torch.from_numpy(arrays["labels"]).long().clamp(min=0), 100).double()
    return torch.from_numpy(arrays["values"]).double()


def evaluate(split: ArraySplit, kind: str, batch_size: int, padding: str, world_size: int) -> Predictions:
    """Gather predictions as the strategies do: the sum over all micro-batches and replicas."""
    gathered = []
    for batch in evaluation_batches(split, batch_size, padding, predictions=kind):
        sums = torch.zeros(2, dtype=torch.float64)
        vectors = [
            append_predictions(
                sums, compute_outputs(arrays), {name: torch.from_numpy(array) for name, array in arrays.items()}
            )
            for rank in range(world_size)
            for arrays in batch.shard(rank, world_size)
        ]
        gathered.append((batch, torch.stack(vectors).sum(0)[2:].numpy()))
    predictions = collect_predictions(gathered)
    assert predictions is not None
    return predictions


def check_outputs(lengths: list[int], batch_size: int, padding: str, world_size: int) -> None:
    ids = np.arange(len(lengths))
    predictions = evaluate(make_split(lengths, ragged_labels=False), "outputs", batch_size, padding, world_size)
    assert predictions.ids.tolist() == predictions.labels.tolist() == ids.tolist()
    assert predictions.outputs.tolist() == np.stack([ids, ids / 2], 1).tolist()


lengths = st.lists(st.integers(1, 12), min_size=1, max_size=20)
runs = {
    "lengths": lengths,
    "batch_size": st.integers(1, 20),
    "padding": st.sampled_from(PADDINGS),
    "world_size": st.integers(1, 7),
}


@pytest.mark.slow
@given(**runs)
def test_outputs_of_each_example_once(lengths: list[int], batch_size: int, padding: str, world_size: int) -> None:
    check_outputs(lengths, batch_size, padding, world_size)


@pytest.mark.slow
@given(**runs)
def test_classes_at_each_position_once(lengths: list[int], batch_size: int, padding: str, world_size: int) -> None:
    predictions = evaluate(make_split(lengths, ragged_labels=True), "classes", batch_size, padding, world_size)
    assert predictions.ids.tolist() == list(range(len(lengths)))
    for example, length in enumerate(lengths):
        expected = [example + position for position in range(length)]
        assert predictions.labels[example, :length].tolist() == expected
        assert predictions.outputs[example, :length].tolist() == expected
        assert (predictions.labels[example, length:] < 0).all(), "padding has no label"


def test_a_row_that_fills_up_and_counts_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    def locate_all_rows(rows: np.ndarray, size: int) -> np.ndarray:
        places = np.full(size, -1, np.int32)
        places[np.where(rows < size, rows, 0)] = np.arange(len(rows))  # copies of the first example
        return places

    case = ([3, 4, 5, 6], 3, "global", 3)
    check_outputs(*case)
    monkeypatch.setattr(batches_module, "locate_rows", locate_all_rows)
    with pytest.raises(AssertionError):
        check_outputs(*case)


def test_classes_of_labels_that_are_probabilities() -> None:
    labels = Column(np.eye(3, dtype=np.float32)[[0, 2, 1, 2]])
    split = ArraySplit({"values": Column(np.zeros((4, 2), np.float32))}, labels)
    (batch,) = evaluation_batches(split, 4, "global", predictions="classes")
    assert batch.shard(1, 3)[0]["class_places"].shape == (4,)
    predictions = collect_predictions([(batch, np.arange(4.0))])
    assert predictions is not None
    assert predictions.outputs.tolist() == [0, 1, 2, 3] and predictions.labels.shape == (4, 3)


def test_outputs_as_many_as_labels_have_their_shape() -> None:
    labels = Column(np.zeros((2, 2, 3), np.float32))
    split = ArraySplit({"values": labels}, labels)
    (batch,) = evaluation_batches(split, 4, "global", predictions="outputs")
    predictions = collect_predictions([(batch, np.arange(12.0))])
    assert predictions is not None and predictions.outputs.shape == (2, 2, 3)


def test_outputs_of_other_shapes_are_refused() -> None:
    batches: list[GlobalBatch] = list(
        evaluation_batches(make_split([1] * 4, False), 2, "global", predictions="outputs")
    )
    with pytest.raises(UserError, match="^metrics: the shape of the model's outputs differs between batches"):
        collect_predictions([(batches[0], np.zeros(4)), (batches[1], np.zeros(6))])


def test_without_a_metric_a_shard_is_as_before() -> None:
    (batch,) = evaluation_batches(make_split([3], False), 2, "global")
    assert batch.shard(0, 1)[0].keys() == {"values", "words", "words_mask", "labels", "weights"}
    sums = torch.ones(2)
    assert append_predictions(sums, sums, {}) is sums
    assert collect_predictions([]) is None
