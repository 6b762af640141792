"""The stage "initial weights": parameters and moving statistics before the first compared step.

A is the reference run of a diagnosis, and B the run that is compared with it.
"""

import re
from collections.abc import Mapping

import numpy as np

from common.diagnose.comparison import SideComparison
from common.diagnose.explain.gates import GATES, describe_order, find_block_order
from common.diagnose.findings import Explanation, Stage
from common.diagnose.side_run import SideRun

RECURRENT_WEIGHT = re.compile(r"(weight|bias)_(ih|hh)|recurrent_kernel|lstm.*/(kernel|bias)|gru.*/(kernel|bias)")


def compare_initial_weights(comparison: SideComparison) -> list[Stage]:
    """Compare the weights that both runs start from, by name."""
    stage = Stage("initial weights")
    weights_a, weights_b = (run.states[0].weights for run in comparison.runs.values())
    ties = find_one_sided_ties(comparison.a, comparison.b)  # the stage "gradients" reports them
    for name in sorted((weights_a.keys() ^ weights_b.keys()) - ties.keys() - comparison.unpaired_names):
        stage.add_mismatch(name)
        side, lacking = ("b", "B") if name in weights_a else ("a", "A")
        stage.add_cause("missing_parameter", side, name, f"{name}: the model of {lacking} lacks it")
    for name, a in weights_a.items():
        if name not in weights_b:
            continue
        b = weights_b[name]
        if a.shape != b.shape:
            stage.add_mismatch(name)
            sentence = f"{name} of B has the shape {list(b.shape)}, A's {list(a.shape)}"
            stage.add_cause("shape", "b", name, sentence)
        elif stage.compare_arrays(name, a, b).differs:
            stage.add_explanation(name, explain_weight(name, b, weights_a), prefix=f"{name} of B ")
    return [stage]


def find_one_sided_ties(a: SideRun, b: SideRun) -> dict[str, str]:
    """Return the parameters that one run ties to another parameter and the other run has separately.

    An output layer may be tied to an embedding, for example. This function recognizes the tie by equal initial values
    of the two parameters in the run without the tie.

    Returns:
        The parameter that both runs have, by the name of the parameter that only the run without the tie has.
    """
    ties = {}
    for run, other in ((a, b), (b, a)):
        weights, other_weights = run.states[0].weights, other.states[0].weights
        for name, weight in weights.items():
            if name in other_weights or weight.ndim != 2 or not np.ptp(weight):
                continue
            for shared_name in (candidate for candidate in weights if candidate in other_weights):
                if any(np.array_equal(weight, layout) for layout in (weights[shared_name], weights[shared_name].T)):
                    ties[name] = shared_name
    return ties


def explain_weight(name: str, b: np.ndarray, weights_a: Mapping[str, np.ndarray]) -> Explanation:
    """Explain B's initial value of a parameter by A's weights."""
    a = weights_a[name]
    if a.ndim > 1 and a.T.shape == b.shape and np.array_equal(a.T, b):
        return Explanation("transposed_kernel", "is A's transposed")
    for count in (4, 3):  # the gates of an LSTM and of a GRU; 3 are also query, key and value
        if (order := find_block_order(a, b, count)) and len(a) >= 2 * count:  # blocks of one row may agree by chance
            return _explain_blocks(name, order)
    for other, array in weights_a.items():
        if other != name and array.shape == b.shape and array.any() and np.array_equal(array, b):
            return Explanation("swapped_weights", f"is A's {other}")
    sentence = "has other values: it was initialized with another seed, or loaded from another file"
    return Explanation("other_weights", sentence, confirmed=False)


def _explain_blocks(name: str, order: tuple[int, ...]) -> Explanation:
    """Explain a weight whose blocks are in another order in B. `order` has the position in B of each block of A."""
    if RECURRENT_WEIGHT.search(name):
        sentence = f"has the gates {describe_order(order)}, but A has {', '.join(GATES[len(order)])}"
        return Explanation("gate_order", sentence)
    positions = ", ".join(str(order.index(position) + 1) for position in range(len(order)))
    sentence = (
        f"has A's {len(order)} blocks in the order {positions}: compare the order of gates, or of query, key and value"
    )
    return Explanation("block_order", sentence)
