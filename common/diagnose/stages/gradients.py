"""The stage "gradients": the gradient of the loss by each parameter, from the same weights and examples."""

import numpy as np

from common.diagnose.comparison import Gradients, SideComparison
from common.diagnose.explain.gradient_difference import explain_gradient
from common.diagnose.findings import Stage
from common.diagnose.rounding import EXPLANATION_TOLERANCE, is_close, measure_noise
from common.diagnose.stages.activations import EVALUATION_MODE, TRAINING_MODE
from common.diagnose.stages.initial_weights import find_one_sided_ties
from common.map.proof import SMALL_GRADIENT_SHARE

SCALED_GRADIENT = "scaled_gradient"


def compare_gradients(comparison: SideComparison) -> list[Stage]:
    """Compare the gradients in evaluation mode."""
    stage, models = Stage("gradients", precision=comparison.precision), comparison.evaluation_mode
    a, b, perturbed = models.a.gradients, models.b.gradients, models.a_perturbed.gradients
    tied = find_one_sided_ties(comparison.a, comparison.b)
    may_begin_here = not comparison.has_difference(EVALUATION_MODE, TRAINING_MODE, "loss")
    for name, partner in tied.items():
        if partner in a and partner in b:
            _compare_tied(stage, name, partner, a, b)
    for name in sorted((a.keys() ^ b.keys()) - tied.keys()):
        trained_in, frozen_in = ("A", "b") if name in a else ("B", "a")
        stage.add_mismatch(name)
        sentence = f"{name} is trained in {trained_in} only: the other side has it frozen"
        stage.add_cause("not_trained", frozen_in, name, sentence)
    min_norm = SMALL_GRADIENT_SHARE * max((float(np.linalg.norm(gradient)) for gradient in a.values()), default=0.0)
    for name, gradient in a.items():
        if name not in b or name in tied.values():
            continue
        noise = measure_noise(gradient, perturbed[name], min_norm=min_norm)
        check = stage.compare_arrays(name, gradient, b[name], noise, may_begin_here=may_begin_here, min_norm=min_norm)
        if check.begins_here:
            tolerance = EXPLANATION_TOLERANCE[comparison.precision]
            stage.add_explanation(name, explain_gradient(gradient, b[name], tolerance), prefix=f"{name}: ")
    _merge_scaled(stage)
    return [stage]


def _compare_tied(stage: Stage, name: str, partner: str, a: Gradients, b: Gradients) -> None:
    """Compare a parameter that one side ties to its partner and the other side trains separately."""
    stage.compare_arrays(partner, a[partner], b[partner])
    (tied_side, tied), (separate_side, separate) = (("B", b), ("A", a)) if name in a else (("A", a), ("B", b))
    gradient = separate.get(name, np.zeros_like(separate[partner]))
    if gradient.shape != separate[partner].shape:
        gradient = gradient.T
    is_sum = is_close(separate[partner] + gradient, tied[partner])
    sentence = (
        f"{name} is tied to {partner} in {tied_side} only: {tied_side} has one parameter, {separate_side} trains two"
    )
    if is_sum:
        sentence += f", and the gradient of {tied_side} is the sum of the two of {separate_side}"
    stage.add_cause("tied_on_one_side", "b", name, sentence, confirmed=is_sum)


def _merge_scaled(stage: Stage) -> None:
    """Replace the causes of all parameters with scaled gradients by one cause."""
    scaled = [cause for cause in stage.causes if cause.cause == SCALED_GRADIENT]
    if len(scaled) > 1:  # their sentences are "NAME: its gradient is ..." and differ in the name only
        sentence = scaled[0].sentence.partition(": ")[2].replace("its gradient", "every gradient")
        stage.causes = [cause for cause in stage.causes if cause.cause != SCALED_GRADIENT]
        stage.add_cause(SCALED_GRADIENT, "b", f"{len(scaled)} parameters", sentence)
