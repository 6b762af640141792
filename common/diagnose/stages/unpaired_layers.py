"""The stage "layers": layers and parameters that only one of two models of a user has.

A is the reference run of a diagnosis, and B the run that is compared with it.
"""

import re
from collections.abc import Sequence

from common.diagnose.comparison import SideComparison
from common.diagnose.findings import Stage
from common.diagnose.side_run import SideRun
from common.diagnose.stages.initial_weights import find_one_sided_ties
from common.map.unpaired_layers import UnpairedLayer

SEPARATOR = re.compile(r"[./]")  # between the parts of a variable's name
KERAS_KINDS = {"linear": "dense"}  # the lower-case name in Keras of kinds that PyTorch names otherwise


def compare_layer_lists(comparison: SideComparison) -> list[Stage]:
    """Name the layers and the parameters without a counterpart. The other stages compare the rest of both models."""
    unpaired = comparison.unpaired
    if not any(unpaired.values()):
        return []
    stage = Stage("layers")
    ties = find_one_sided_ties(comparison.a, comparison.b)  # the stage "gradients" reports them
    layers = {name: [layer for layer in unpaired[name] if not ties.keys() >= {*layer["variables"]}] for name in "ab"}
    counterparts = _pair_layers_of_other_sizes(layers["a"], layers["b"])
    for a, b in counterparts:
        sizes = [
            f"{layer['path']} ({layer['kind']}) of {title} has {_describe_sizes(layer, run)}"
            for layer, title, run in ((a, "A", comparison.a), (b, "B", comparison.b))
        ]
        stage.add_mismatch(a["path"])
        stage.add_cause("layer_sizes", "b", a["path"], f"{', '.join(sizes)}: other sizes or another number of groups")
    for index, (name, lacking) in enumerate((("a", "B"), ("b", "A"))):
        paired = [pair[index]["path"] for pair in counterparts]
        for layer in layers[name]:
            variables = [variable for variable in layer["variables"] if variable not in ties]
            if layer["path"] in paired:
                continue
            if layer["is_whole"]:
                sentence = f"{layer['path']}: {lacking} has no counterpart of this layer ({layer['kind']})"
                stage.add_mismatch(layer["path"])
                stage.add_cause("missing_layer", "b", layer["path"], sentence)
                continue
            for variable in variables:
                role = SEPARATOR.split(variable)[-1]
                sentence = f"{variable}: {lacking} has no counterpart of this {role} of a layer ({layer['kind']})"
                stage.add_mismatch(variable)
                stage.add_cause("missing_parameter", "b", variable, sentence)
    return [stage]


def _pair_layers_of_other_sizes(
    a: Sequence[UnpairedLayer], b: Sequence[UnpairedLayer]
) -> list[tuple[UnpairedLayer, UnpairedLayer]]:
    """Pair whole layers of one kind in order if both models have equally many of them."""
    groups: list[dict[str, list[UnpairedLayer]]] = []
    for layers in (a, b):
        groups.append({})
        for layer in layers:
            kind = layer["kind"].lower()
            groups[-1].setdefault(KERAS_KINDS.get(kind, kind), []).append(layer)
    groups_a, groups_b = groups
    return [
        pair
        for kind, layers in groups_a.items()
        if len(layers) == len(groups_b.get(kind, []))
        for pair in zip(layers, groups_b[kind], strict=True)
        if all(layer["is_whole"] for layer in pair)
    ]


def _describe_sizes(layer: UnpairedLayer, run: SideRun) -> str:
    """Return the shapes of a layer's variables, such as weight [4, 16] and bias [4]."""
    weights = run.states[0].weights
    shapes = [
        f"{SEPARATOR.split(name)[-1]} {list(weights[name].shape)}" for name in layer["variables"] if name in weights
    ]
    return " and ".join(shapes)
