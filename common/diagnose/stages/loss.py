"""The stage "loss": the losses of each example, from the same outputs of the model.

A is the reference run of a diagnosis, and B the run that is compared with it.
"""

from common.diagnose.comparison import SideComparison
from common.diagnose.explain.loss_formulas import explain_losses
from common.diagnose.findings import Stage
from common.diagnose.rounding import measure_noise, precision_of_weights


def compare_losses(comparison: SideComparison) -> list[Stage]:
    """Compare A's losses [n] with the losses that B computes from A's outputs.

    If they agree, also compare them with the losses of B's own outputs. A run in bfloat16 has losses in float32.
    """
    stage, models = Stage("loss", precision=comparison.precision), comparison.evaluation_mode
    a, b = models.a.losses[0], comparison.losses_of_b
    if a.shape != b.shape:
        stage.add_mismatch("losses")
        sentence = f"the losses have the shape {list(b.shape)} in B and {list(a.shape)} in A; they must be [n]"
        stage.add_cause("broadcast_in_loss", "b", "losses", sentence)
        return [stage]
    # Isolated: every layer gets A's recorded input, moved by rounding. Perturbed: the whole model is computed.
    noise, model_noise = (
        measure_noise(a, observation.losses[0]) for observation in (models.a_isolated, models.a_perturbed)
    )
    precision = precision_of_weights(comparison.precision)
    if stage.compare_arrays("losses of A's outputs", a, b, noise, precision=precision).differs:
        stage.add_explanation("losses", explain_losses(models.a.outputs[0], comparison.labels, a, b))
    elif models.b.losses[0].shape == a.shape:
        # A difference of B's own outputs began at an earlier stage.
        stage.compare_arrays("losses (whole model)", a, models.b.losses[0], model_noise, may_begin_here=False)
    return [stage]
