"""The stage "reduction": the gradients that each update used, against the sum over the replicas' shards.

A shard is a replica's part of a global batch. The gradients that an update used are recovered from the optimizer's
slots, and the gradients of the shards are computed again, separately for each side of a diagnosis, A and B.
"""

import numpy as np

from common.diagnose.explain.reduction_faults import explain_reduction
from common.diagnose.explain.step_gradients import StepGradients, global_norm
from common.diagnose.findings import Stage
from common.map.array_differences import compute_norm
from common.map.gradient_comparison import SMALL_GRADIENT_SHARE

SMALLEST_NOISE = 1e-13  # relative noise that is assumed if the estimated noise is smaller
LISTED_PARAMETERS = 3  # number of parameters that a sentence names


def compare_reduction(stage: Stage, side: str, gradients: StepGradients) -> None:
    """Compare one step of one side, "a" or "b". Explain it if it is the side's first step that differs."""
    place = f"{side.upper()}, step {gradients.step}"
    differing = _compare_gradients(stage, place, gradients)
    if not differing or stage.has_cause_of(side):
        return
    recovered = gradients.recovered
    for name in differing:
        if np.isfinite(gradients.expected_sum[name]).all() and not np.isfinite(recovered[name]).all():
            words = "sum over the shards" if len(gradients.shard_gradients) > 1 else "gradient of the batch"
            sentence = f"in {place}: {name}: the {words} is finite, the gradient of the update is not"
            stage.add_cause("not_finite", side, name, sentence)
            return
    if len(differing) < len(gradients.names) and not any(recovered[name].any() for name in differing):
        sentence = f"in {place}: {', '.join(differing[:LISTED_PARAMETERS])}: no gradient reaches the update"
        stage.add_cause("no_gradient", side, differing[0], sentence)
        return
    explanation = explain_reduction(gradients)
    stage.add_cause(explanation.cause, side, differing[0], f"in {place}: {explanation.sentence}", explanation.confirmed)


def _compare_gradients(stage: Stage, place: str, gradients: StepGradients) -> list[str]:
    """Compare each gradient of the update with the clipped sum. Return the parameters that differ."""
    smallest_norm = SMALL_GRADIENT_SHARE * global_norm(gradients.expected_sum)
    differing = []
    for name in gradients.names:
        expected = gradients.expected_sum[name] * gradients.expected_factor
        norm = max(compute_norm(expected), smallest_norm)
        noise = max(SMALLEST_NOISE, gradients.noise.get(name, 0.0) / norm if norm else 0.0)
        check = stage.compare_arrays(
            f"{place}: {name}",
            expected,
            gradients.recovered[name],
            noise,
            min_norm=norm,
            precision=gradients.settings.precision,
        )
        if check.differs:
            differing.append(name)
    return differing
