"""The calls of A's layers in the layout of their counterparts in B.

A is the reference run of a diagnosis, and B the run that is compared with it. A layout is the order of an array's axes:
PyTorch has channels in the second axis, Keras in the last.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from common.diagnose.array_layouts import convert_channels, convert_layout, move_equal_axes
from common.diagnose.layer_match import LayerMatch
from common.diagnose.observation import Observation
from common.diagnose.rounding import MACHINE_EPSILON, is_close, perturb
from common.map.array_differences import relative_difference
from common.map.description import MOST_CALLS, RecordedCall, drop_call_number, name_call
from common.map.reshaped_features import has_moved

RECURRENT = ("LSTM", "GRU", "RNN")
WITH_CHANNELS = ("convolution", "transposed convolution", "batch norm")  # kinds of layers


def _is_closest_as_it_is(a: np.ndarray | None, b: np.ndarray | None, shape: tuple[int, ...] | None) -> bool:
    """Check whether A's array is at least as close to B's without moving the channels that A flattened."""
    unmoved, moved = convert_layout(a, b), convert_layout(a, b, shape)
    if unmoved is None or moved is None or b is None:
        return False
    return relative_difference(unmoved, b) <= relative_difference(moved, b)


def convert_calls(layers: Sequence[LayerMatch], a: Observation, b: Observation) -> dict[str, RecordedCall]:
    """Return the inputs and outputs of A's layers in the layout of B's layers, by the path of the layer in B.

    An input of indices, such as token ids, becomes None.
    """
    converted = {}
    for layer in layers:
        call_a, call_b = layer.get_call_of_a(a.calls), layer.get_call_of_b(b.calls)
        if call_a is None or call_b is None:
            continue
        # Only single layers have a flattened input; an attention, which may be several layers, has none
        name_a, name_b = drop_call_number(layer.path_a), drop_call_number(layer.path_b)
        shape_a, shape_b = a.unflattened_shapes.get(name_a), b.unflattened_shapes.get(name_b)
        is_same = shape_a == shape_b and len({*(shape_a or ())}) != 1
        unflattened_shape = None if is_same else shape_a  # equal shapes have equal layouts, unless all sizes are equal
        if shape_b is None and _is_closest_as_it_is(call_a.received, call_b.received, shape_a):
            unflattened_shape = None  # this input is not the array that A flattened, but has the same size
        has_indices = any(call.received is not None and call.received.dtype.kind != "f" for call in (call_a, call_b))
        received = None if has_indices else convert_layout(call_a.received, call_b.received, unflattened_shape)
        output_shape = unflattened_shape
        if layer.kind == "linear":  # its output has new features, which the model may divide into several axes
            divided_a, divided_b = a.reshaped_shapes.get(name_a), b.reshaped_shapes.get(name_b)
            output_shape = divided_a if has_moved(divided_a, divided_b) or has_moved(divided_b, divided_a) else None
        returned = convert_layout(call_a.returned, call_b.returned, output_shape)
        if layer.kind in WITH_CHANNELS and not has_indices:
            arrays = call_a.received, call_b.received, call_a.returned, call_b.returned
            by_returned, by_received = convert_channels(*arrays), convert_channels(*arrays[2:], *arrays[:2])
            received = received if by_returned is None else by_returned
            returned = returned if by_received is None else by_received
            received = move_equal_axes(layer, received, call_a.received, call_b.received)
            returned = move_equal_axes(layer, returned, call_a.returned, call_b.returned)
        # A recurrent layer may return one state in A and all states in B
        is_known = returned is not None or layer.kind in RECURRENT
        if (received is not None or has_indices) and is_known:
            converted[layer.path_b] = RecordedCall(received, returned)
    return converted


def list_comparable_calls(layers: Sequence[LayerMatch], a: Observation, b: Observation) -> list[LayerMatch]:
    """Return a match for each call of a layer of A that has a counterpart: the first call and the later ones."""
    matches = []
    for layer in (layer for layer in layers if has_comparable_call(layer, a, b)):
        matches.append(layer)
        if layer.entries_a or layer.entries_b or not _have_equal_counts(layer, a, b):
            continue
        later = _list_calls(layer, a.counts.get(layer.path_a, 1))[1:]
        matches += [match for match in later if match.path_a in a.calls and match.path_b in b.calls]
    return matches


def has_comparable_call(layer: LayerMatch, a: Observation, b: Observation) -> bool:
    """Check whether the first calls of two layers are counterparts.

    If a layer is called several times, such as one that two branches share, the models may call it in another order.
    The first calls then count as counterparts if they receive the same array. They also do if both models call the
    layer equally often, all calls are known, and B does not just call it in another order (see `_is_crossed`).
    """
    paths = [(a, path) for path in layer.paths_a] + [(b, path) for path in layer.paths_b]
    if all(observation.counts.get(path, 1) == 1 for observation, path in paths):
        return True
    call_a, call_b = layer.get_call_of_a(a.calls), layer.get_call_of_b(b.calls)
    if call_a is None or call_a.received is None or call_b is None or call_b.received is None:
        return True
    if _receive_the_same(layer, layer, a, b):
        return True
    if layer.entries_a or layer.entries_b or not _have_equal_counts(layer, a, b):
        return False
    count = a.counts.get(layer.path_a, 1)
    return count <= MOST_CALLS and not _is_crossed(_list_calls(layer, count), a, b)


def list_crossed_layers(layers: Sequence[LayerMatch], a: Observation, b_isolated: Observation) -> set[str]:
    """Return the paths in B of the layers that B calls in another order than A.

    b_isolated: The isolated computation: a difference in earlier layers does not change the input of a call.
    """
    calls: dict[str, list[LayerMatch]] = {}
    for layer in layers:
        calls.setdefault(drop_call_number(layer.path_b), []).append(layer)
    return {path for path, matches in calls.items() if len(matches) > 1 and _is_crossed(matches, a, b_isolated)}


def _list_calls(layer: LayerMatch, count: int) -> list[LayerMatch]:
    """Return the matches of the first calls of two layers."""
    return [
        replace(layer, path_a=name_call(layer.path_a, index), path_b=name_call(layer.path_b, index))
        for index in range(count)
    ]


def _is_crossed(calls: Sequence[LayerMatch], a: Observation, b: Observation) -> bool:
    """Check whether the calls of a layer receive the same arrays in A and B, but in another order.

    If the layer has more calls than are recorded, one array that moved to another call is enough.
    """
    moved = [call for call in calls if not _receive_the_same(call, call, a, b)]
    remaining = list(moved)
    for call in moved:
        same = next((other for other in remaining if _receive_the_same(call, other, a, b)), None)
        if same is not None:
            remaining.remove(same)
    has_all_calls = a.counts.get(drop_call_number(calls[0].path_a), 1) <= MOST_CALLS
    return len(remaining) < len(moved) if not has_all_calls else bool(moved) and not remaining


def _have_equal_counts(layer: LayerMatch, a: Observation, b: Observation) -> bool:
    counts = {a.counts.get(path, 1) for path in layer.paths_a} | {b.counts.get(path, 1) for path in layer.paths_b}
    return len(counts) == 1


def _receive_the_same(layer: LayerMatch, other: LayerMatch, a: Observation, b: Observation) -> bool:
    """Check whether A's layer of one match receives the same input as B's layer of another match."""
    call_a, call_b = layer.get_call_of_a(a.calls), other.get_call_of_b(b.calls)
    if call_a is None or call_a.received is None or call_b is None or call_b.received is None:
        return False
    if call_a.received.dtype.kind != "f":
        return np.array_equal(call_a.received, call_b.received)
    converted = convert_calls([replace(layer, path_b=other.path_b)], a, b).get(other.path_b)
    if converted is None or converted.received is None:
        return False  # the two inputs have different sizes
    return is_close(converted.received, call_b.received)


def select_replacements(
    layers: Sequence[LayerMatch], calls: Mapping[str, RecordedCall], b: Observation
) -> dict[str, RecordedCall]:
    """Return the calls of A whose arrays B's layers receive and return instead of their own, by the path in B.

    If a layer of A corresponds to several layers of B, the layers that receive the input get A's input, and the last
    layer returns A's output.

    Args:
        layers: Pairs of layers.
        calls: A's calls in the layout of B, by the path in B.
        b: Computation of B's model without replacements.
    """
    replacements: dict[str, RecordedCall] = {}
    for layer in layers:
        call = calls.get(layer.path_b)
        if call is None:
            continue
        replacements |= _divide_call(layer.path_b, layer.entries_b, call, b.calls)
    return replacements


def _divide_call(
    path: str, entries: Sequence[str], call: RecordedCall, unreplaced_calls: Mapping[str, RecordedCall]
) -> dict[str, RecordedCall]:
    """Divide a call into the calls of the layers that receive the input and of the layer that returns the output.

    Args:
        path: Path of the layer that returns the output.
        entries: Paths of the layers that may receive the input; the first one does.
        call: The input and the output of all these layers together.
        unreplaced_calls: The layers' calls without replacements.
    """
    if not entries:
        return {path: call}
    first = unreplaced_calls[entries[0]].received
    sharing = [
        entry
        for entry in entries
        if first is not None
        and (received := unreplaced_calls[entry].received) is not None
        and np.array_equal(received, first)
    ]
    return {entry: RecordedCall(call.received, None) for entry in sharing} | {path: RecordedCall(None, call.returned)}


def perturb_calls(layers: Sequence[LayerMatch], a: Observation, seed: int) -> dict[str, RecordedCall]:
    """Return the inputs and outputs of A's layers, moved at random by one machine epsilon, by the path in A."""
    perturbed: dict[str, RecordedCall] = {}
    for layer in layers:
        if (call := layer.get_call_of_a(a.calls)) is not None:
            perturbed_call = RecordedCall(_perturb_floats(call.received, seed), _perturb_floats(call.returned, seed))
            perturbed |= _divide_call(layer.path_a, layer.entries_a, perturbed_call, a.calls)
    return perturbed


def _perturb_floats(array: np.ndarray | None, seed: int) -> np.ndarray | None:
    if array is None or array.dtype.kind != "f":
        return None
    return perturb(array, MACHINE_EPSILON[array.dtype.name], seed)
