"""The stage "layers": layers and parameters that only one of two models of a user has.

A is the reference run of a diagnosis, and B the run that is compared with it.
"""

from common.diagnose.comparison import SideComparison
from common.diagnose.findings import Stage
from common.diagnose.stages.initial_weights import find_one_sided_ties


def compare_layer_lists(comparison: SideComparison) -> list[Stage]:
    """Name the layers and the parameters without a counterpart. The other stages compare the rest of both models."""
    unpaired = comparison.unpaired
    if not any(unpaired.values()):
        return []
    stage = Stage("layers")
    ties = find_one_sided_ties(comparison.a, comparison.b)  # the stage "gradients" reports them
    for name, lacking in (("a", "B"), ("b", "A")):
        for layer in unpaired[name]:
            variables = [variable for variable in layer["variables"] if variable not in ties]
            if layer["is_whole"] and variables:
                sentence = f"{lacking} has no counterpart of layer {layer['path']} ({layer['kind']})"
                stage.add_mismatch(layer["path"])
                stage.add_cause("missing_layer", "b", layer["path"], sentence)
                continue
            for variable in variables:
                sentence = f"{lacking} has no counterpart of parameter {variable} of layer {layer['path']}"
                stage.add_mismatch(variable)
                stage.add_cause("missing_parameter", "b", variable, sentence)
    return [stage]
