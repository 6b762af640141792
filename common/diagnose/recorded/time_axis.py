"""Batches that have the time before the examples, as PyTorch's recurrent layers and attentions take them by default.

Recorded arrays are read with the examples first, and a script that follows gets them in the order of its own.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence

import numpy as np

from common.recording.record_format import LayerFacts
from common.recording.tensor_file import TensorFile

TimeSizes = tuple[int, int]  # time steps, examples
StateSizes = tuple[int, int]  # layers (twice as many if bidirectional), features


def takes_time_first(layer: LayerFacts) -> bool:
    """Check whether a layer takes arrays with the time in the first axis."""
    return layer["attributes"].get("batch_first") is False


def find_sizes(
    layers: Iterable[LayerFacts], calls: Mapping[str, np.ndarray], inputs: Iterable[np.ndarray]
) -> TimeSizes | None:
    """Return the sizes of inputs that have the time first; None if the examples are first, or if it is not known.

    A layer that takes the time first shows it, unless the model itself exchanges the axes before.

    Args:
        layers: The layers of the model.
        calls: What the layers received, as "PATH/input".
        inputs: What the model received.
    """
    shapes = {array.shape[:2] for array in inputs if array.ndim > 1}
    for layer in layers:
        received = calls.get(f"{layer['path']}/input")
        if takes_time_first(layer) and received is not None and received.ndim == 3:
            time, examples = received.shape[:2]
            if time != examples and (time, examples) in shapes and (examples, time) not in shapes:
                return time, examples
    return None


def find_recorded_sizes(layers: Sequence[LayerFacts], file: TensorFile) -> TimeSizes | None:
    """Return the sizes of the first micro-batch of a step; None if its examples are first.

    Args:
        layers: The layers of the model.
        file: What a process recorded of the step. It is only read if a layer takes the time first.
    """
    if not any(map(takes_time_first, layers)):
        return None
    return find_sizes(layers, file.select("layer"), file.select("batch/0/input").values())


def put_examples_first(array: np.ndarray, sizes: TimeSizes) -> np.ndarray:
    """Return an array with the examples first. Time steps and examples may be two axes, or flattened into one."""
    time, examples = sizes
    if array.shape[:2] == sizes:
        return array.swapaxes(0, 1)
    if array.shape[:1] == (time * examples,):
        return array.reshape(time, examples, *array.shape[1:]).swapaxes(0, 1).reshape(array.shape)
    return array


def list_state_sizes(layers: Iterable[LayerFacts]) -> set[StateSizes]:
    """Return the numbers of layers and of features of the states that PyTorch's recurrent layers take and return."""
    sizes = set()
    for attributes in (layer["attributes"] for layer in layers):
        count, *features = (attributes.get(name) for name in ("num_layers", "hidden_size", "proj_size"))
        if isinstance(count, int) and "bidirectional" in attributes:
            sizes |= {(count * (1 + bool(attributes["bidirectional"])), x) for x in features if isinstance(x, int)}
    return sizes


def put_layers_second(array: np.ndarray, examples: int, state_sizes: Collection[StateSizes]) -> np.ndarray:
    """Return states of several layers [layers, n, features] with the examples first; a single layer has no axis.

    Args:
        array: An array that the model receives or returns.
        examples: The number of examples.
        state_sizes: The numbers of layers and of features of states. An array of other sizes is no state.
    """
    if array.ndim != 3 or array.dtype.kind != "f" or array.shape[1] != examples or len(array) == examples:
        return array
    if (array.shape[0], array.shape[2]) not in state_sizes:
        return array
    return array[0] if len(array) == 1 else array.swapaxes(0, 1)


def put_time_first(array: np.ndarray, sizes: TimeSizes) -> np.ndarray:
    """Undo `put_examples_first`."""
    time, examples = sizes
    return put_examples_first(array, (examples, time))


def infer_follower_sizes(leaves: Iterable[np.ndarray], arrays: Iterable[np.ndarray]) -> TimeSizes | None:
    """Return (time, examples) of a following script's batch if its arrays must be time-first, otherwise None.

    Args:
        leaves: Arrays of the script's batch.
        arrays: Arrays of a record, examples-first.
    """
    leaves, arrays = list(leaves), list(arrays)
    sequence_arrays = [array for array in arrays if array.ndim == 3 or (array.ndim == 2 and array.dtype.kind in "iu")]
    for leaf in leaves:
        # An array that fits examples-first shows that the batch is examples-first.
        if any(leaf.ndim == array.ndim and leaf.shape[1:] == array.shape[1:] for array in sequence_arrays):
            return None
    # If the record has a 1-D array, such as labels, the lengths of the script's 1-D arrays are its batch size.
    has_numbers = any(array.ndim == 1 for array in arrays)
    batch_sizes = {len(leaf) for leaf in leaves if leaf.ndim == 1} if has_numbers else set()
    for leaf in leaves:
        for array in sequence_arrays:
            is_alike = leaf.ndim == array.ndim and leaf.dtype.kind == array.dtype.kind
            # leaf [time, n, ...], array [examples, time, ...]
            if is_alike and (leaf.shape[0], *leaf.shape[2:]) == array.shape[1:] and leaf.shape[0] not in batch_sizes:
                return leaf.shape[0], leaf.shape[1]
    return None
