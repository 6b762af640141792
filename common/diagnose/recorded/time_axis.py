"""Conversion of time-first (time-major) arrays, the default of PyTorch's recurrent layers and attentions.

Readers of records swap time-first arrays [time, n, ...] to examples-first (batch-first) arrays [n, time, ...]. A
following script receives the arrays in the order of its own batches.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence

import numpy as np

from common.recording.record_format import LayerFacts
from common.recording.tensor_file import TensorFile

TimeSizes = tuple[int | None, int]  # time steps, examples; None: each array has its own number of time steps
StateSizes = tuple[int, int]  # layers (twice as many if bidirectional), features


def takes_time_first(layer: LayerFacts) -> bool:
    """Check whether a layer takes time-first arrays (batch_first=False)."""
    return layer["attributes"].get("batch_first") is False


def describe_exchange(path: str, side: str) -> str:
    """Describe that a time-first layer of side "a" or "b" receives examples-first arrays. path: of the layer."""
    return f"{path} in {side.upper()} takes the time in the first axis (batch_first) and gets the examples there"


def is_sequence(array: np.ndarray) -> bool:
    """Check whether an array may have axes of time and examples: token ids or vectors."""
    return array.ndim == 3 or (array.ndim == 2 and array.dtype.kind in "iu")


def find_examples(sequences: Collection[np.ndarray], counts: Collection[int]) -> int | None:
    """Return the number of examples of sequences that must have the time first; None if that is not certain.

    Sequences of different lengths share the axis of the examples. Otherwise a known number of examples shows this axis.

    Args:
        sequences: Arrays of a batch.
        counts: Numbers of examples that other arrays of the batch have.
    """
    times, examples = {len(x) for x in sequences}, {x.shape[1] for x in sequences}
    if len(examples) != 1 or not (len(times) > 1 or (examples & {*counts} and not examples & times)):
        return None
    return examples.pop()


def find_sizes(
    layers: Iterable[LayerFacts],
    calls: Mapping[str, np.ndarray],
    inputs: Iterable[np.ndarray],
    labels: Iterable[np.ndarray] = (),
) -> TimeSizes | None:
    """Return (time, examples) of time-first inputs; None if the inputs are examples-first, or if the order is unknown.

    The input of a layer with batch_first=False reveals the order, unless the model swaps the axes before that layer.
    The layer receives only the tokens of packed sequences. Arrays with one number for each example then reveal it.

    Args:
        layers: The layers of the model.
        calls: The inputs of the layers, by "PATH/input".
        inputs: The inputs of the model.
        labels: The labels that the loss function received.
    """
    inputs, labels = list(inputs), list(labels)
    shapes = {array.shape[:2] for array in inputs if array.ndim > 1}
    sequences = [array for array in inputs if is_sequence(array)]
    numbers = [array for array in [*inputs, *labels] if array.ndim == 1 and array.dtype.kind in "iu"]
    for layer in layers:
        received = calls.get(f"{layer['path']}/input")
        if not takes_time_first(layer) or received is None:
            continue
        if received.ndim == 3:
            time, examples = received.shape[:2]
            if _have_examples(labels, time, examples):
                return None  # the layer takes the examples for time steps
            if time != examples and (time, examples) in shapes and (examples, time) not in shapes:
                has_other_times = find_examples(sequences, ()) == examples
                return None if has_other_times else time, examples
        elif received.ndim == 2:
            lengths = [array for array in numbers if array.sum() == len(received)]
            count = find_examples(sequences, {len(array) for array in lengths or numbers})
            if count is not None and len(received) <= count * max(map(len, sequences)):
                return None, count
    return None


def _have_examples(labels: Iterable[np.ndarray], count: int, other_count: int) -> bool:
    """Check whether some labels have a row for each of `count` examples, and none have rows for `other_count`."""
    shapes = [array.shape for array in labels if array.ndim]
    has_rows = any(shape[0] == count and shape[1:2] != (other_count,) for shape in shapes)
    return has_rows and count != other_count and not any(shape[0] == other_count for shape in shapes)


def find_recorded_sizes(layers: Sequence[LayerFacts], file: TensorFile) -> TimeSizes | None:
    """Return (time, examples) of the first micro-batch of a step; None if the micro-batch is examples-first.

    Args:
        layers: The layers of the model.
        file: The record of the step by one process. The file is only read if a layer takes time-first arrays.
    """
    if not any(map(takes_time_first, layers)):
        return None
    inputs, labels = (file.select(f"batch/0/{kind}").values() for kind in ("input", "label"))
    return find_sizes(layers, file.select("layer"), inputs, labels)


def has_time_first(array: np.ndarray, sizes: TimeSizes) -> bool:
    """Check whether an array is [time, n, ...]."""
    time, examples = sizes
    if array.ndim < 2 or array.shape[1] != examples:
        return False
    if time is None:
        return len(array) != examples or is_sequence(array) or array.ndim > 3
    return len(array) == time


def put_examples_first(array: np.ndarray, sizes: TimeSizes) -> np.ndarray:
    """Convert [time, n, ...] to [n, time, ...] and [time * n, ...] to [n * time, ...]. Do not change other arrays."""
    if has_time_first(array, sizes):
        return array.swapaxes(0, 1)
    time, examples = sizes
    if time is None:
        time = len(array) // examples if array.ndim else 1
    if time > 1 and array.shape[:1] == (time * examples,):
        return array.reshape(time, examples, *array.shape[1:]).swapaxes(0, 1).reshape(array.shape)
    return array


def list_state_sizes(layers: Iterable[LayerFacts]) -> set[StateSizes]:
    """Return the sizes (layers, features) of the hidden states of PyTorch's recurrent layers."""
    sizes = set()
    for attributes in (layer["attributes"] for layer in layers):
        count, *features = (attributes.get(name) for name in ("num_layers", "hidden_size", "proj_size"))
        if isinstance(count, int) and "bidirectional" in attributes:
            sizes |= {(count * (1 + bool(attributes["bidirectional"])), x) for x in features if isinstance(x, int)}
    return sizes


def is_state(shape: Sequence[int], state_sizes: Collection[StateSizes]) -> bool:
    """Check whether an array [layers, n, features] may be a state. state_sizes: the (layers, features) of states."""
    return len(shape) == 3 and (shape[0], shape[2]) in state_sizes


def put_layers_second(array: np.ndarray, examples: int, state_sizes: Collection[StateSizes]) -> np.ndarray:
    """Move the layer axis of a state [layers, n, features] to second place. Drop the axis if there is one layer.

    Args:
        array: An array that the model receives or returns.
        examples: The number of examples.
        state_sizes: The (layers, features) sizes of states. Arrays of other sizes are returned unchanged.
    """
    if array.ndim != 3 or array.dtype.kind != "f" or array.shape[1] != examples or len(array) == examples:
        return array
    if not is_state(array.shape, state_sizes):
        return array
    return array[0] if len(array) == 1 else array.swapaxes(0, 1)


def put_time_first(array: np.ndarray, sizes: TimeSizes) -> np.ndarray:
    """Undo `put_examples_first`. If the number of time steps is None, the array must be one that it has changed."""
    time, examples = sizes
    if time is None:
        time = array.shape[1] if len(array) == examples else len(array) // examples
    return put_examples_first(array, (examples, time))


def is_timed(array: np.ndarray, sizes: TimeSizes) -> bool:
    """Check whether an array of a script's batch, or an input of its model, may be time-first."""
    return sizes[0] is not None or put_examples_first(array, sizes) is not array


def infer_follower_sizes(leaves: Iterable[np.ndarray], arrays: Iterable[np.ndarray]) -> TimeSizes | None:
    """Return (time, examples) of a following script's batch if the batch must be time-first, otherwise None.

    Args:
        leaves: Arrays of the script's batch.
        arrays: Examples-first arrays of a record.
    """
    leaves, arrays = list(leaves), list(arrays)
    sequence_arrays = [array for array in arrays if is_sequence(array)]
    # If the record has a 1-D array, such as labels, the lengths of the script's 1-D arrays are its batch size.
    has_numbers = any(array.ndim == 1 for array in arrays)
    batch_sizes = {len(leaf) for leaf in leaves if leaf.ndim == 1} if has_numbers else set()
    sequences = [leaf for leaf in leaves if is_sequence(leaf)]
    if (examples := find_examples(sequences, batch_sizes)) is not None:
        times = {len(leaf) for leaf in sequences}
        has_recorded_time = len(times) == 1 and times <= {array.shape[1] for array in sequence_arrays}
        return times.pop() if has_recorded_time else None, examples
    for leaf in leaves:
        # An array that fits examples-first shows that the batch is examples-first.
        if any(leaf.ndim == array.ndim and leaf.shape[1:] == array.shape[1:] for array in sequence_arrays):
            return None
    for leaf in leaves:
        for array in sequence_arrays:
            is_alike = leaf.ndim == array.ndim and leaf.dtype.kind == array.dtype.kind
            # leaf [time, n, ...], array [examples, time, ...]
            if is_alike and (leaf.shape[0], *leaf.shape[2:]) == array.shape[1:] and leaf.shape[0] not in batch_sizes:
                return leaf.shape[0], leaf.shape[1]
    return None
