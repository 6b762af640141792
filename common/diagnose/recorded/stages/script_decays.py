"""Weight decay that one script adds to its gradients, and the other script's optimizer computes.

A is the reference record of a diagnosis, and B the record that is compared with it. With a coupled weight decay d, the
optimizer replaces a gradient g by g + d * w. A script may do so itself, before its optimizer receives the gradient.
"""

import numpy as np

from common.diagnose.recorded.optimizer_settings import read_optimizer_settings
from common.diagnose.recorded.record_pair import RecordPair
from common.diagnose.recorded.stages.loss import find_closest_losses

LARGEST_REMAINDER = 0.05  # largest unexplained part of the gradients' difference, if weight decay explains it


def find_script_decays(pair: RecordPair) -> dict[str, float]:
    """Return the multiple of the weights by which B's gradient exceeds A's, by the title of the variable.

    Return nothing if the first step's gradients do not show that a script adds the decay that its optimizer lacks, or
    if it does so by a penalty in the loss.
    """
    settings = [read_optimizer_settings(side) for side in pair.sides]
    paired = [
        (match, a, b)
        for match in pair.models.variables
        if (a := settings[0].get(match.names_a[0])) is not None
        and (b := settings[1].get(match.names_b[0])) is not None
        and a.weight_decay != b.weight_decay
    ]
    if not paired or any(x.decay_matters and x.is_decoupled for _, a, b in paired for x in (a, b)):
        return {}
    step = pair.steps[0]
    weights_a, gradients_a = pair.a.read_weights(step - 1), pair.a.gradients.read_reduced(step)
    gradients_b = pair.b.gradients.read_reduced(step)
    decays: dict[str, float] = {}
    explained = unexplained = penalty = 0.0  # the first two are sums of squares
    for match, a, b in paired:
        weight, gradient_a = match.read_a(weights_a), match.read_a(gradients_a, is_gradient=True)
        gradient_b = match.read_b(gradients_b, is_gradient=True)
        if weight is None or gradient_a is None or gradient_b is None:
            return {}
        if not weight.shape == gradient_a.shape == gradient_b.shape:
            return {}
        decays[match.title] = a.weight_decay - b.weight_decay
        added = decays[match.title] * weight.astype(np.float64)
        explained += float(np.square(added).sum())
        unexplained += float(np.square(gradient_b.astype(np.float64) - gradient_a - added).sum())
        penalty += 0.5 * abs(float((weight * added).sum()))
    losses = find_closest_losses(pair, step)
    if losses is None or not explained or unexplained > LARGEST_REMAINDER**2 * explained:
        return {}
    is_in_loss = abs(losses[0] - losses[1]) > LARGEST_REMAINDER * penalty
    return {} if is_in_loss else decays
