"""Inputs, outputs and weights of the layers of two records, for the same examples.

A is the reference record of a diagnosis, and B the record that is compared with it. A "call" is the input and the
output of a layer. B followed A if its script took A's initial weights and batches.
"""

from collections.abc import Mapping, Sequence

import numpy as np

from common.diagnose.observation import Observation
from common.diagnose.recorded.record_pair import RecordPair
from common.diagnose.recorded.recorded_side import RecordedSide
from common.map.description import RecordedCall

KERAS_ROLES = {  # the role of a variable in Keras, and the name of this role in PyTorch
    "kernel": "weight", "gamma": "weight", "embeddings": "weight", "scale": "weight", "beta": "bias", "bias": "bias",
    "moving_mean": "running_mean", "moving_variance": "running_var",
}  # fmt: skip


def observe_sides(pair: RecordPair, step: int) -> tuple[Observation, Observation]:
    """Return the calls of A's and of B's layers for the examples that both first micro-batches have.

    The rows of both are in the same order. Without such examples there are no calls.
    """
    order = pair.orders[step]
    ids = [_list_first_examples(pair.a, step), order[_list_first_examples(pair.b, step)]]
    common = np.intersect1d(*ids)
    observations = []
    for side, side_ids in zip(pair.sides, ids, strict=True):
        rows = np.argsort(side_ids)[np.searchsorted(np.sort(side_ids), common)]
        observations.append(_observe(side, step, rows, len(side_ids)))
    return observations[0], observations[1]


def _list_first_examples(side: RecordedSide, step: int) -> np.ndarray:
    """Return the numbers of the examples in the first call of the first micro-batch of each process."""
    numbers, start = [], 0
    for rank, number in side.batches.list_micro_batches(step):
        rows = side.batches.count_rows(step, rank, number)
        if number == 0:
            numbers.append(np.arange(start, start + rows[0]))
        start += sum(rows)
    return np.concatenate(numbers)


def _observe(side: RecordedSide, step: int, rows: np.ndarray, count: int) -> Observation:
    calls = {
        path: RecordedCall(_select(call.received, rows, count), _select(call.returned, rows, count))
        for path, call in (side.read_layer_calls(step).items() if rows.size else ())
    }
    return Observation([], [], calls, side.unflattened_shapes, {})


def _select(array: np.ndarray | None, rows: np.ndarray, count: int) -> np.ndarray | None:
    """Return the rows of some examples. Each example may have several rows, such as its tokens."""
    if array is None or not array.ndim or not count or len(array) % count:
        return None
    if len(rows) == count and (rows == np.arange(count)).all():
        return array
    return array.reshape(count, -1, *array.shape[1:])[rows].reshape(-1, *array.shape[1:])


def read_layer_weights(side: RecordedSide) -> dict[str, np.ndarray]:
    """Return the initial weights of the layers as PATH.ROLE, with PyTorch's roles and layout."""
    weights, named = side.read_weights(0), {}
    for layer in side.layers:
        for role, name in layer["variables"].items():
            if name not in weights:
                continue
            array = weights[name]
            if role == "kernel" and array.ndim >= 2:
                array = array.transpose(array.ndim - 1, array.ndim - 2, *range(array.ndim - 2))
            named[f"{layer['path']}.{role if side.is_torch else KERAS_ROLES.get(role, role)}"] = array
    return named


def read_followed(pair: RecordPair, a: Observation) -> Mapping[str, np.ndarray]:
    """Return the outputs of B's layers for the inputs of A's layers, by path; empty if B did not follow A.

    Args:
        pair: The records.
        a: The calls of A's layers to compare. The result is empty if these calls leave out some of A's examples.
    """
    step = pair.equal_steps[0]
    if not pair.has_followed:
        return {}
    recorded = pair.a.read_layer_calls(step)
    for path, call in a.calls.items():
        received = recorded[path].received
        if received is not None and (call.received is None or not np.array_equal(received, call.received)):
            return {}
    return pair.b.read_followed(step)


def list_leaves(paths: Sequence[str], order: Mapping[str, int]) -> list[str]:
    """Return the paths of layers that contain no other recorded layer, in the order of execution."""
    parents = {path.rpartition(separator)[0] for path in paths for separator in "./"} | {"", "model"}
    ancestors = set()
    for parent in parents:
        while parent and parent not in ancestors:
            ancestors.add(parent)
            parent = max(parent.rpartition(".")[0], parent.rpartition("/")[0], key=len)
    return sorted((path for path in paths if path not in ancestors), key=lambda path: order.get(path, 0))
