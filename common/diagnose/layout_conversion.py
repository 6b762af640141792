"""Layouts of arrays: A's arrays in the layout of their counterparts in B.

A is the reference run of a diagnosis, and B the run that is compared with it. A layout is the order of an array's axes:
PyTorch has channels in the second axis, Keras in the last.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from common.diagnose.layer_match import LayerMatch
from common.diagnose.observation import Observation
from common.diagnose.rounding import MACHINE_EPSILON, is_close, perturb
from common.diagnose.zero_borders import fit_borders
from common.map.array_differences import move_channels_last, relative_difference
from common.map.description import MOST_CALLS, RecordedCall, drop_call_number, name_call
from common.map.reshaped_features import has_moved

RECURRENT = ("LSTM", "GRU", "RNN")
WITH_CHANNELS = ("convolution", "transposed convolution", "batch norm")  # kinds of layers


def convert_layout(
    array: np.ndarray | None, target: np.ndarray | None, unflattened_shape: tuple[int, ...] | None = None
) -> np.ndarray | None:
    """Return A's array in the layout of B's array, or None if no layout fits.

    Channels may be the second or the last axis. The axis of attention heads may be before or after the axis of tokens.
    Tokens may have an axis of their own, before or after the axis of examples, or the two may be one axis. One side may
    pad before a layer, and the other within it, so the result has as many zeros at its ends as B's array. If several
    layouts fit, the result is the one closest to B's array.

    Args:
        array: A's array.
        target: B's array.
        unflattened_shape: Shape of an example of A before A's model flattened it. None if both models flatten in the
            same order of axes, or do not flatten.
    """
    if array is None or target is None:
        return None
    if array.size != target.size:
        padded = [fit_borders(candidate, target) for candidate in _list_layouts(array)]
        return _choose_closest([candidate for candidate in padded if candidate is not None], target)
    if array.shape[:1] != target.shape[:1]:
        shares_axis = _merge_first_axes(array.shape) == target.shape or array.shape == _merge_first_axes(target.shape)
        if shares_axis:
            return array.reshape(target.shape)
        is_swapped = array.ndim >= 3 and array.swapaxes(0, 1).shape == target.shape  # [tokens, n, features]
        return array.swapaxes(0, 1) if is_swapped else None
    if unflattened_shape is not None and array.shape[1:] == (int(np.prod(unflattened_shape)),):
        unflattened = array.reshape(-1, *unflattened_shape)
        channels_moved = (move_channels_last(unflattened), np.moveaxis(unflattened, -1, 1))
        candidates = [candidate.reshape(array.shape) for candidate in channels_moved]
        if len({*unflattened_shape}) == 1:
            candidates.append(array)  # with equal sizes, the shape does not show whether B moved the channels
    else:
        candidates = _list_layouts(array)
    fitting = [candidate for candidate in candidates if candidate.shape == target.shape]
    if not fitting and array.ndim != target.ndim:
        fitting = [array.reshape(target.shape)]
    return _choose_closest(fitting, target)


def _convert_channels(
    array: np.ndarray | None, target: np.ndarray | None, other: np.ndarray | None, other_target: np.ndarray | None
) -> np.ndarray | None:
    """Convert an array whose axis of channels only another array of the layer shows. Return None if it shows none.

    Args:
        array: The input or the output of A's layer.
        target: The same array of B's layer.
        other: The output of A's layer if `array` is its input, or else its input.
        other_target: The same array of B's layer.
    """
    arrays = [x for x in (array, target, other, other_target) if x is not None and x.ndim > 2]
    if len(arrays) < 4 or len({x.ndim for x in arrays}) > 1:
        return None
    layouts, other_layouts = _list_layouts(arrays[0])[:3], _list_layouts(arrays[2])[:3]
    fitting = [x for x, moved in zip(layouts, other_layouts, strict=True) if moved.shape == arrays[3].shape]
    return fitting[0] if len(fitting) == 1 and fitting[0].shape == arrays[1].shape else None


def _list_layouts(array: np.ndarray) -> list[np.ndarray]:
    """Return an array unchanged, and with its channels or its tokens in other axes."""
    if array.ndim < 3:
        return [array]
    return [array, move_channels_last(array), np.moveaxis(array, -1, 1), array.swapaxes(0, 1)]


def _choose_closest(candidates: Sequence[np.ndarray], target: np.ndarray) -> np.ndarray | None:
    if len(candidates) == 1:
        return candidates[0]
    return min(candidates, key=lambda candidate: relative_difference(candidate, target), default=None)


def _merge_first_axes(shape: tuple[int, ...]) -> tuple[int, ...]:
    return (math.prod(shape[:2]), *shape[2:])


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
            by_returned, by_received = _convert_channels(*arrays), _convert_channels(*arrays[2:], *arrays[:2])
            received = received if by_returned is None else by_returned
            returned = returned if by_received is None else by_received
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
