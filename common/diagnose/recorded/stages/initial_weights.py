"""The stage "initial weights": the variables before the first recorded step.

A is the reference record of a diagnosis, and B the record that is compared with it.
"""

import math
from collections.abc import Sequence

import numpy as np

from common.diagnose.explain.moving_statistics import is_moving_statistic
from common.diagnose.findings import Explanation, Stage
from common.diagnose.recorded.operations.fresh_layers import describe_fresh_layer
from common.diagnose.recorded.operations.weight_uses import describe_shared_weights
from common.diagnose.recorded.record_pair import RecordPair, describe_seeds, find_weight_precision
from common.diagnose.recorded.recorded_side import RecordedSide
from common.diagnose.stages.initial_weights import explain_weight

LISTED = 3  # number of variables that a sentence names


def compare_initial_weights(pair: RecordPair) -> Stage:
    """Compare the weights by name, or as common.map pairs them."""
    stage = Stage("initial weights", precision="float32")
    weights_a, weights_b = (side.read_weights(0) for side in pair.sides)
    _report_unpaired(stage, pair)
    common_a, differing = {}, {}
    is_narrow = any("16" in find_weight_precision(side) for side in pair.sides)
    precision = "bfloat16" if is_narrow else stage.precision
    for match in pair.models.variables:
        a, b = match.read_a(weights_a), match.read_b(weights_b)
        if a is None or b is None:
            continue
        if a.shape != b.shape:
            stage.add_mismatch(match.title)
            sentence = f"{match.title} of B has the shape {list(b.shape)}, A's {list(a.shape)}"
            stage.add_cause("shape", "b", match.title, sentence)
            continue
        a, b = a.astype(np.float64), b.astype(np.float64)
        common_a[match.title] = a
        if stage.compare_arrays(match.title, a, b, precision=precision).differs:
            differing[match.title] = b
    _explain(stage, common_a, differing, describe_seeds(pair))
    if sampled := pair.name_sampled("weight", 0):
        stage.omit(f"{sampled} is recorded as a sample only: raise max_bytes= of the recorders")
    elif not pair.models.variables:
        stage.omit("the records have no variables in common")
    return stage


def _explain(stage: Stage, weights_a: dict[str, np.ndarray], differing: dict[str, np.ndarray], seeds: str) -> None:
    """Add a cause for each weight whose difference is explained, and one cause for all others.

    Args:
        stage: The stage.
        weights_a: A's weights by the title of the pair.
        differing: B's weights that differ, by title.
        seeds: Words for the seeds of both scripts; empty if they are the same or unknown.
    """
    unexplained = []
    for name, b in differing.items():
        a = weights_a[name]
        factor = float((a * b).sum() / (a * a).sum()) if a.any() else 0.0
        if factor and np.allclose(a * factor, b, rtol=1e-5, atol=1e-8):
            stage.add_cause("scaled_weights", "b", name, f"{name} of B is {factor:.6g} times A's")
            continue
        explanation: Explanation = explain_weight(name, b, weights_a)
        if explanation.confirmed:
            stage.add_explanation(name, explanation, prefix=f"{name} of B ")
        else:
            unexplained.append(name)
    if unexplained:
        sentence = (
            f"{len(unexplained)} of {len(weights_a)} variables of B have other values, such as {unexplained[0]}: "
            f"another seed, or another checkpoint{seeds}"
        )
        stage.add_cause("other_weights", "b", unexplained[0], sentence, confirmed=False)


def _report_unpaired(stage: Stage, pair: RecordPair) -> None:
    """Add the trainable variables without a counterpart as causes, unless no loss depends on them."""
    unseen = [side.title for side in pair.sides if not any(side.batches.count_examples(pair.steps[0]))]
    if unseen and pair.a.is_torch != pair.b.is_torch:
        stage.omit(f"the forward pass of {unseen[0]} is not recorded, so that its layers cannot be paired")
        return
    unpaired = [
        [name for name in names if name in side.trainable & (pair.find_used(side) or set())]
        for side, names in ((pair.a, pair.models.unpaired_a), (pair.b, pair.models.unpaired_b))
    ]
    unpaired = [[name for name in names if not is_moving_statistic(name)] for names in unpaired]
    counts = [_count_elements(side, names) for side, names in zip(pair.sides, unpaired, strict=True)]
    if counts[0] == counts[1] > 0 and pair.a.is_torch != pair.b.is_torch:
        first = [f"{names[0]} of {side.name.upper()}" for side, names in zip(pair.sides, unpaired, strict=True)]
        stage.omit(
            f"no counterparts were found of {' and '.join(first)}, though they may have some: pair them by map=FILE"
        )
        return
    if all(unpaired):
        listed = [_list_shapes(side, names) for side, names in zip(pair.sides, unpaired, strict=True)]
        stage.add_mismatch(unpaired[0][0])
        sentence = f"A's {listed[0]} and B's {listed[1]} are no counterparts: their layers have other sizes"
        stage.add_cause("other_sizes", "b", unpaired[0][0], sentence)
        return
    for side, lacking, trained in ((pair.a, "b", unpaired[0]), (pair.b, "a", unpaired[1])):
        for name in trained:
            stage.add_mismatch(name)
        if trained:
            sentence = f"{', '.join(trained[:LISTED])}: the model of {lacking.upper()} has no counterpart"
            if len(trained) > LISTED:
                sentence += f", as for {len(trained) - LISTED} more"
            if tied := _find_tied(pair, side, trained):
                sentence = f"{trained[0]} is trained separately in {side.name.upper()}: {lacking.upper()} ties {tied}"
                stage.add_cause("tied_on_one_side", side.name, trained[0], sentence)
            else:
                sentence += _describe_calls(pair, lacking)
                stage.add_cause("missing_parameter", lacking, trained[0], sentence)


def _describe_calls(pair: RecordPair, lacking: str) -> str:
    """Return words for layers that a script calls in place of those that it lacks; empty if it does not."""
    side = pair.b if lacking == "b" else pair.a
    if fresh := describe_fresh_layer(side.record.ranks[0].operations):
        return f"; {lacking.upper()} makes a layer anew in each forward pass, untrained: {fresh}"
    shared = describe_shared_weights(pair, lacking)
    return f"; {shared}: it calls a layer in the place of another one" if shared else ""


def _list_shapes(side: RecordedSide, names: Sequence[str]) -> str:
    """Return the names of variables with their shapes, and the axis of a norm of Keras that has some of them."""
    model = side.record.facts["model"]
    assert model is not None
    words = [f"{name} {model['variables'][name]['shape']}" for name in names[:LISTED]]
    norms = [
        x for x in model["layers"] if "axis" in x["attributes"] and not {*x["variables"].values()}.isdisjoint(names)
    ]
    axis = f" ({norms[0]['path']} has axis={norms[0]['attributes']['axis']})" if norms else ""
    return ", ".join(words) + (f" and {len(names) - LISTED} more" if len(names) > LISTED else "") + axis


def _count_elements(side: RecordedSide, names: Sequence[str]) -> int:
    model = side.record.facts["model"]
    return 0 if model is None else sum(math.prod(model["variables"][name]["shape"]) for name in names)


def _find_tied(pair: RecordPair, side: RecordedSide, trained: list[str]) -> str:
    """Return the names of the variables that the other side ties, if one of its layers is a side's single variable.

    Args:
        pair: The records.
        side: The side whose variable has no counterpart.
        trained: The names of its variables without counterpart.
    """
    model, other = side.record.facts["model"], (pair.b if side is pair.a else pair.a).record.facts["model"]
    if len(trained) > 1 or model is None or other is None:
        return ""
    shape = sorted(model["variables"][trained[0]]["shape"])
    shapes = {name: sorted(facts["shape"]) for name, facts in other["variables"].items()}
    fitting = [names for names in other["tied"] if any(shapes.get(name) == shape for name in names)]
    return " and ".join(sorted(fitting[0])) if len(fitting) == 1 else ""
