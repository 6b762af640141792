"""The stage "gradients": the gradient of the loss by each parameter, from the same weights and examples.

A is the reference run of a diagnosis, and B the run that is compared with it. One of them may tie two parameters, such
as an embedding and the weight of the output layer: its model has one parameter, whose gradient is the sum of the two
gradients in the other model.
"""

import numpy as np

from common.diagnose.comparison import Gradients, SideComparison
from common.diagnose.explain.gradient_difference import explain_gradient
from common.diagnose.findings import Stage
from common.diagnose.rounding import EXPLANATION_TOLERANCE, is_close, measure_noise
from common.diagnose.stages.activations import EVALUATION_MODE, TRAINING_MODE
from common.diagnose.stages.initial_weights import find_one_sided_ties
from common.map.array_differences import compute_norm
from common.map.gradient_comparison import SMALL_GRADIENT_SHARE

SCALED_GRADIENT = "scaled_gradient"


def compare_gradients(comparison: SideComparison) -> list[Stage]:
    """Compare the gradients in evaluation mode: dropout is off, and BatchNorm uses its moving statistics."""
    stage, models = Stage("gradients", precision=comparison.precision), comparison.evaluation_mode
    a, b, perturbed = models.a.gradients, models.b.gradients, models.a_perturbed.gradients
    ties = find_one_sided_ties(comparison.a, comparison.b)
    may_begin_here = not comparison.has_difference(EVALUATION_MODE, TRAINING_MODE, "loss")
    for untied_name, shared_name in ties.items():
        if shared_name in a and shared_name in b:
            _compare_tied(stage, untied_name, shared_name, a, b)
    for name in sorted((a.keys() ^ b.keys()) - ties.keys() - comparison.unpaired_names):
        trained_in, frozen_in = ("A", "b") if name in a else ("B", "a")
        stage.add_mismatch(name)
        sentence = f"{name} is trained in {trained_in} only: the other side has it frozen"
        stage.add_cause("not_trained", frozen_in, name, sentence)
    min_norm = SMALL_GRADIENT_SHARE * max((compute_norm(gradient) for gradient in a.values()), default=0.0)
    for name, gradient in a.items():
        if name not in b or name in ties.values():  # compared above
            continue
        noise = measure_noise(gradient, perturbed[name], min_norm=min_norm)
        check = stage.compare_arrays(name, gradient, b[name], noise, may_begin_here=may_begin_here, min_norm=min_norm)
        if check.begins_here:
            tolerance = EXPLANATION_TOLERANCE[comparison.precision]
            stage.add_explanation(name, explain_gradient(gradient, b[name], tolerance), prefix=f"{name}: ")
    _merge_scaled(stage)
    return [stage]


def _compare_tied(stage: Stage, untied_name: str, shared_name: str, a: Gradients, b: Gradients) -> None:
    """Compare two parameters that one run ties and the other run trains separately, and add the tie as a cause.

    Args:
        stage: The stage.
        untied_name: Parameter that only the run without the tie has.
        shared_name: Parameter that both runs have. In the run with the tie it serves as both.
        a: Gradients of A.
        b: Gradients of B.
    """
    stage.compare_arrays(shared_name, a[shared_name], b[shared_name])
    (tied_side, tied), (separate_side, separate) = (("B", b), ("A", a)) if untied_name in a else (("A", a), ("B", b))
    untied_gradient = separate.get(untied_name, np.zeros_like(separate[shared_name]))  # a frozen parameter has none
    if untied_gradient.shape != separate[shared_name].shape:
        untied_gradient = untied_gradient.T
    is_sum = is_close(separate[shared_name] + untied_gradient, tied[shared_name])
    sentence = (
        f"{untied_name} is tied to {shared_name} in {tied_side} only: {tied_side} has one parameter, {separate_side} "
        "trains two"
    )
    if is_sum:
        sentence += f", and the gradient of {tied_side} is the sum of the two of {separate_side}"
    stage.add_cause("tied_on_one_side", "b", untied_name, sentence, confirmed=is_sum)


def _merge_scaled(stage: Stage) -> None:
    """Replace several causes "scaled_gradient", one for each parameter, by a single cause for all of them."""
    scaled = [cause for cause in stage.causes if cause.cause == SCALED_GRADIENT]
    if len(scaled) > 1:  # their sentences are "NAME: its gradient is ..." and differ in the name only
        sentence = scaled[0].sentence.partition(": ")[2].replace("its gradient", "every gradient")
        stage.causes = [cause for cause in stage.causes if cause.cause != SCALED_GRADIENT]
        stage.add_cause(SCALED_GRADIENT, "b", f"{len(scaled)} parameters", sentence)
