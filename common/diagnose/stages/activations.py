"""The stages of the model: which layer adds a difference, or the code between two layers."""

import math
from collections.abc import Sequence

import numpy as np

from common.diagnose.explain.attention import activation_of, attention_of, by_example, pooling_of, scaled_activation_of
from common.diagnose.explain.layer import explain_layer, explain_numbers
from common.diagnose.findings import Check, Stage
from common.diagnose.observation import LayerPair, Model, Observation
from common.diagnose.rounding import UNITS, close, disturbed, noise
from common.map.description import Call
from common.map.differences import channels_last, relative

ZERO = Call(None, None)


def in_layout(
    array: np.ndarray | None, like: np.ndarray | None, flattened: tuple[int, ...] | None = None
) -> np.ndarray | None:
    """A's array in the layout of B's: channels first or last, heads or the tokens of all examples in one axis or two.

    None where none fits.

    flattened: the shape of A's examples before they were flattened, where B's had their channels elsewhere.
    """
    if array is None or like is None or array.size != like.size:
        return None
    if array.shape[:1] != like.shape[:1]:
        alike = _in_one_axis(array.shape) == like.shape or array.shape == _in_one_axis(like.shape)
        return array.reshape(like.shape) if alike else None
    if flattened is not None and array.shape[1:] == (int(np.prod(flattened)),):
        whole = array.reshape(-1, *flattened)
        candidates = [each.reshape(array.shape) for each in (channels_last(whole), np.moveaxis(whole, -1, 1))]
    else:
        candidates = [array]
        if array.ndim >= 3:
            candidates += [channels_last(array), np.moveaxis(array, -1, 1), array.swapaxes(0, 1)]
    fitting = [each for each in candidates if each.shape == like.shape]
    if not fitting and array.ndim != like.ndim:
        fitting = [array.reshape(like.shape)]
    return min(fitting, key=lambda each: relative(each, like), default=None)


def _in_one_axis(shape: tuple[int, ...]) -> tuple[int, ...]:
    """With the first two axes, those of examples and their tokens, as one."""
    return (math.prod(shape[:2]), *shape[2:])


def calls_for(pairs: Sequence[LayerPair], a: Observation, b: Observation) -> dict[str, Call]:
    """What A's layers received and returned, in the layout of their counterparts in B, by B's path."""
    given = {}
    for pair in pairs:
        ours, theirs = a.calls.get(pair.a), b.calls.get(pair.b)
        if ours is not None and theirs is not None:
            shapes = a.flattened.get(pair.a), b.flattened.get(pair.b)
            moved = in_layout(ours.received, theirs.received, shapes[0] if shapes[0] != shapes[1] else None)
            returned = in_layout(ours.returned, theirs.returned)
            if moved is not None and returned is not None and moved.dtype.kind == "f":
                given[pair.b] = Call(moved, returned)
            elif moved is not None and returned is not None:
                given[pair.b] = Call(None, returned)  # ids, which have other types of integers
    return given


def disturbed_calls(pairs: Sequence[LayerPair], a: Observation, seed: int) -> dict[str, Call]:
    """What A's layers received and returned, with a random unit in the last place more or less, by A's path."""
    given = {}
    for pair in pairs:
        if (call := a.calls.get(pair.a)) is not None:
            arrays = [
                disturbed(each, UNITS[each.dtype.name], seed) if each is not None and each.dtype.kind == "f" else None
                for each in (call.received, call.returned)
            ]
            given[pair.a] = Call(*arrays)
    return given


def compare_layers(name: str, model: Model) -> Stage:
    """Each layer's own difference, and what the code before it adds to that."""
    stage = Stage(name, precision=model.precision)
    given = calls_for(model.pairs, model.a, model.b)
    order = {path: index for index, path in enumerate(model.a.calls)}
    before: list[tuple[LayerPair, Call]] = []
    for pair in sorted(model.pairs, key=lambda each: order.get(each.a, 0)):
        if pair.b not in given or pair.b not in model.replayed.calls:
            continue
        expected, found, second = given[pair.b], model.replayed.calls[pair.b], model.b.calls[pair.b]
        ours, alone, noisy = (each.calls.get(pair.a, ZERO) for each in (model.a, model.rounded, model.disturbed))
        whole = noise(ours.returned, noisy.returned)
        x, y = expected.received, found.received
        if x is not None and y is not None and x.shape == y.shape:
            precision, own = model.precision_of(x, y), noise(ours.received, alone.received, whole)
            if stage.compare(f"input of {pair.title}", x, y, own, precision=precision).differs:
                _explain_between(stage, before, pair, x, y, model)
        if found.returned is not None and expected.returned is not None:
            precision = model.precision_of(expected.returned, found.returned)
            own = noise(ours.returned, alone.returned, whole)
            if stage.compare(pair.title, expected.returned, found.returned, own, precision=precision).differs:
                explain_layer(stage, pair, expected, found, model)
            elif second.returned is not None and second.returned.shape == expected.returned.shape:
                stage.compare(f"{pair.title} (whole model)", expected.returned, second.returned, whole, culprit=False)
        before.append((pair, expected))
    _compare_outputs(stage, before, model)
    return stage


def _compare_outputs(stage: Stage, before: Sequence[tuple[LayerPair, Call]], model: Model) -> None:
    """Of the first micro-batch, with which B was replayed."""
    a, b, replayed = (each.outputs[0] for each in (model.a, model.b, model.replayed))
    if a.shape != b.shape:
        stage.checks.append(Check("outputs", np.inf))
        words = f"outputs are {list(a.shape)} in A and {list(b.shape)} in B"
        stage.blame("shape_of_outputs", "b", "outputs", words)
        return
    whole = noise(a, model.disturbed.outputs[0])
    own = noise(a, model.rounded.outputs[0], whole)
    if stage.compare("outputs", a, replayed, own, precision=model.precision_of(a, replayed)).differs:
        _explain_between(stage, before, None, a, replayed, model)
    elif not np.array_equal(a, b, equal_nan=True):
        stage.compare("outputs (whole model)", a, b, whole, culprit=False)


def _explain_between(
    stage: Stage,
    before: Sequence[tuple[LayerPair, Call]],
    pair: LayerPair | None,
    a: np.ndarray,
    b: np.ndarray,
    model: Model,
) -> None:
    """The code between the layers before and this one: given the same arrays it computes something else."""
    title = pair.title if pair else "the outputs"
    tensor = f"input of {title}" if pair else "outputs"
    if a.shape != b.shape:
        stage.blame("shape", "b", tensor, f"{tensor} is {list(a.shape)} in A and {list(b.shape)} in B")
        return
    if explain_numbers(stage, tensor, a, b):
        return
    earlier = [(each.title, call.returned) for each, call in before[-4:] if call.returned is not None]
    masks = {name: each for name, each in model.batch.items() if each.ndim == 2 and set(np.unique(each)) <= {0, 1}}
    for previous, z in reversed(earlier):
        where = f"between {previous} and {title}"
        for explain, cause in (
            (activation_of, "activation"),
            (scaled_activation_of, "scale"),
            (lambda x, y: pooling_of(by_example(x, model.batch), y, masks), "pooling"),
        ):
            ours = explain(z, a)
            theirs = explain(z, b) if ours else None
            if ours and theirs and ours != theirs:
                stage.blame(cause, "b", tensor, f"{where}: A has {ours}, B {theirs}")
                return
    attended, other, *projections = (by_example(x, model.batch) for x in (a, b, *(z for _, z in earlier[-3:])))
    if len(projections) == 3 and attended.ndim == 3 and all(each.shape == attended.shape for each in projections):
        q, k, v = projections
        ours_ = attention_of((q, k, v), masks, attended)
        theirs_ = attention_of((q, k, v), masks, other) if ours_ else None
        if ours_ and theirs_:
            for name in ours_:
                if ours_[name] != theirs_[name]:
                    words = f"attention's {name} is {ours_[name]} in A and {theirs_[name]} in B"
                    stage.blame(f"attention_{name}", "b", tensor, f"before {title}: {words}")
            return
    if a.ndim == 2 and close(np.sort(a, axis=1), np.sort(b, axis=1)):
        stage.blame(
            "flatten_order", "b", tensor, f"{tensor} has the same values in another order: flattened differently"
        )
        return
    factor = float((a * b).sum() / (a * a).sum()) if a.any() else 0.0
    if factor and close(a * factor, b):
        stage.blame("scale", "b", tensor, f"{tensor} is {factor:.6g} times A's")
        return
    last = f" and {before[-1][0].title}" if before else ""
    words = f"given the same outputs of all layers, {tensor} differs: look between it{last}"
    stage.blame("code_between_layers", "b", tensor, words, confirmed=False)
