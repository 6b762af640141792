"""The first stages: config, global batches, initial weights."""

import re
from collections.abc import Collection, Mapping

import numpy as np

from common.config.compose import collect_values
from common.config.keys import CURVE
from common.diagnose.explain.batch_arrays import contents, explain_array
from common.diagnose.explain.gates import GATES, blocks_of, in_words
from common.diagnose.findings import Check, Stage
from common.diagnose.side_run import Run
from common.errors import UserError

GUESSES = ("other_values", "truncation_side", "renumbered")  # what more than one mistake may look like
OF_GATES = re.compile(r"(weight|bias)_(ih|hh)|recurrent_kernel|lstm.*/(kernel|bias)|gru.*/(kernel|bias)")
OF_THIS_COMMAND = ("train.steps", "schedule.total_steps", "model.kind", "model.arguments")


def config_differences(a: Run, b: Run) -> dict[str, tuple[object, object]]:
    """The values of keys that decide the curve and differ, but for those of the strategies."""
    ours, theirs = (collect_values(each.config, CURVE) for each in (a, b))
    return {
        key: (ours[key], theirs[key])
        for key in ours
        if key in theirs and ours[key] != theirs[key] and not key.startswith("strategy.") and key not in OF_THIS_COMMAND
    }


def compare_configs(a: Run, b: Run) -> Stage:
    """Keys that decide the curve. Each that differs is a cause. Raises UserError for two kinds of models."""
    if a.config.model.kind != b.config.model.kind:
        raise UserError(f"model.kind: is {a.config.model.kind} in a and {b.config.model.kind} in b; compare one model")
    stage = Stage("config")
    found = config_differences(a, b)
    for key, (x, y) in found.items():
        stage.checks.append(Check(key, np.inf))
        stage.blame(key, "b", key, f"{key} is {x} in A and {y} in B", confirmed=False)
    if not found:
        stage.checks.append(Check("all keys that decide the curve", 0.0))
    return stage


def compare_batches(a: Run, b: Run) -> Stage:
    """The examples of each step and their arrays."""
    stage = Stage("batch")
    known = contents(part for batch in a.batches for part in batch.shard(0, 1))
    for ours, theirs in zip(a.batches, b.batches, strict=True):
        where = f"step {ours.step}"
        if len(ours.ids) != len(theirs.ids):
            stage.checks.append(Check(f"{where}: ids", np.inf))
            stage.blame(
                "batch_size", "b", "ids", f"{where} has {len(ours.ids)} examples in A and {len(theirs.ids)} in B"
            )
            return stage
        other = int((ours.ids != theirs.ids).sum())
        stage.checks.append(Check(f"{where}: ids", other / len(ours.ids)))
        if other:
            same = sorted(ours.ids.tolist()) == sorted(theirs.ids.tolist())
            what = "the same examples in another order" if same else f"{other} of {len(ours.ids)} examples are others"
            stage.blame("order_of_examples" if same else "other_examples", "b", "ids", f"{where}: in B {what}")
            return stage
        mine, other_arrays = ours.shard(0, 1), theirs.shard(0, 1)
        if len(mine) == len(other_arrays):
            for first, second in zip(mine, other_arrays, strict=True):
                _compare_arrays(stage, where, first, second, known)
        if stage.causes:
            return stage
    return stage


def _compare_arrays(
    stage: Stage,
    where: str,
    a: Mapping[str, np.ndarray],
    b: Mapping[str, np.ndarray],
    known: Mapping[str, Collection[bytes]],
) -> None:
    for name in [*a, *(each for each in b if each not in a)]:
        if name not in a or name not in b:
            stage.checks.append(Check(f"{where}: {name}", np.inf))
            stage.blame("missing_array", "b" if name in a else "a", name, f"{name} is in one of the two batches only")
        elif a[name].shape != b[name].shape:
            stage.checks.append(Check(f"{where}: {name}", np.inf))
            stage.blame("shape", "b", name, f"{name} is {list(a[name].shape)} in A and {list(b[name].shape)} in B")
        else:
            x, y = a[name].astype(np.float64), b[name].astype(np.float64)
            if stage.compare(f"{where}: {name}", x, y).differs:
                cause, words = explain_array(x, y, known[name])
                stage.blame(cause, "b", name, f"{where}: {name} of B {words}", confirmed=cause not in GUESSES)


def compare_weights(a: Run, b: Run) -> Stage:
    """Parameters and moving statistics before the first step."""
    stage = Stage("initial weights")
    ours, theirs = a.states[0].weights, b.states[0].weights
    for name in sorted((ours.keys() ^ theirs.keys()) - untied(a, b).keys()):
        stage.checks.append(Check(name, np.inf))
        stage.blame("missing_parameter", "b" if name in ours else "a", name, f"{name}: one of the two models lacks it")
    for name in [each for each in ours if each in theirs]:
        x, y = ours[name], theirs[name]
        if x.shape != y.shape:
            stage.checks.append(Check(name, np.inf))
            words = f"{name} of B has the shape {list(y.shape)}, A's {list(x.shape)}"
            stage.blame("shape", "b", name, words)
        elif stage.compare(name, x, y).differs:
            cause, words = _explain_weight(name, x, y, ours)
            stage.blame(cause, "b", name, f"{name} of B {words}", confirmed=cause != "other_weights")
    return stage


def untied(a: Run, b: Run) -> dict[str, str]:
    """Parameters that are tied to another on the side that lacks them, by that of both sides with the same values."""
    found = {}
    for mine, other in ((a, b), (b, a)):
        ours, theirs = mine.states[0].weights, other.states[0].weights
        for name in [each for each in ours if each not in theirs and ours[each].ndim == 2 and np.ptp(ours[each])]:
            for twin in [each for each in ours if each in theirs]:
                if any(np.array_equal(ours[name], each) for each in (ours[twin], ours[twin].T)):
                    found[name] = twin
    return found


def _explain_weight(name: str, a: np.ndarray, b: np.ndarray, all_of_a: Mapping[str, np.ndarray]) -> tuple[str, str]:
    if a.ndim > 1 and a.T.shape == b.shape and np.array_equal(a.T, b):
        return "transposed_kernel", "is A's transposed"
    for count in (4, 3):
        if (order := blocks_of(a, b, count)) and len(a) >= 2 * count:
            return _explain_blocks(name, order)
    for other, array in all_of_a.items():
        if other != name and array.shape == b.shape and array.any() and np.array_equal(array, b):
            return "swapped_weights", f"is A's {other}"
    return "other_weights", "has other values: it was drawn or loaded from elsewhere"


def _explain_blocks(name: str, order: tuple[int, ...]) -> tuple[str, str]:
    """order: where B has each block of A."""
    if OF_GATES.search(name):
        return "gate_order", f"has the gates {in_words(order)} where A has {', '.join(GATES[len(order)])}"
    places = ", ".join(str(order.index(place) + 1) for place in range(len(order)))
    words = f"has A's {len(order)} blocks in the order {places}: compare the order of gates, or of query, key and value"
    return "block_order", words
