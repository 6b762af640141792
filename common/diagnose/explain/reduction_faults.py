"""Faults of a strategy or an optimizer that change the gradients of an update.

An update should use the sum of the gradients of the replicas' shards, clipped by its norm. A shard is a replica's part
of a global batch. The gradients that the update really used are recovered from the optimizer's slots, such as Adam's
first moments.
"""

import numpy as np

from common.diagnose.explain.step_gradients import StepGradients, clip_factor, global_norm, sum_gradients
from common.diagnose.findings import Explanation
from common.diagnose.rounding import SIGNIFICANT_BITS
from common.map.array_differences import compute_norm

UNEXPLAINED = "reduction"  # name of the cause if no fault is found
USED_GRADIENTS = "used_gradients"  # the same if there is one shard, so that nothing is reduced
# Causes that change the slots. Gradients are recovered from the slots, so the update of such a step differs, too.
SLOT_CAUSES = ("optimizer_state_lost", "rate_inside_velocity")


def explain_reduction(gradients: StepGradients) -> Explanation:
    """Return the first fault that reproduces the gradients that an update used.

    The check of the precision comes last, because it only looks at the size of the error.
    """
    vectors = (gradients.recovered_vector, *map(gradients.flatten, gradients.shard_gradients))
    if not all(np.isfinite(vector).all() for vector in vectors):
        sentence = "the gradients of the step, or those that its update used, have infinite elements or NaN"
        return Explanation("not_finite", sentence, confirmed=False)
    for explain in (
        _explain_shard_factors,
        _explain_clipping,
        _explain_scale,
        _explain_stale_gradients,
        _explain_lost_state,
        _explain_weight_decay,
        _explain_precision,
    ):
        if explanation := explain(gradients):
            return explanation
    error = _relative_error(gradients)
    if len(gradients.shard_gradients) == 1:
        sentence = f"the gradients that the update used are {error:.1e} off the expected ones"
        return Explanation(USED_GRADIENTS, sentence, confirmed=False)
    sentence = f"the gradients of the update are {error:.1e} off the sum over the replicas"
    return Explanation(UNEXPLAINED, sentence, confirmed=False)


def is_unexplained(gradients: StepGradients) -> bool:
    """Check whether an update used other gradients than the sum, and no fault explains them."""
    return not gradients.is_as_expected and explain_reduction(gradients).cause in (UNEXPLAINED, USED_GRADIENTS)


def _explain_shard_factors(gradients: StepGradients) -> Explanation | None:
    """Check whether the update used sum(f[i] * shard[i]) with factors f that are not all 1, such as a mean."""
    factors, count, tolerance = gradients.shard_factors, len(gradients.shard_gradients), gradients.factor_tolerance
    if factors is None or count == 1:
        return None
    if np.allclose(factors / gradients.expected_factor, 1 / count, rtol=tolerance):
        return Explanation("averaged_twice", f"the gradients are averaged twice: each counts 1/{count}")
    if np.allclose(factors, count, rtol=tolerance):
        sentence = f"the gradients are {count} times too large: summed instead of averaged"
        return Explanation("not_averaged", sentence)
    missing = [rank for rank, factor in enumerate(factors) if abs(factor) < tolerance * float(np.abs(factors).max())]
    if missing:
        return Explanation("missing_gradient", f"the gradient of replica {missing[0]} is missing")
    weighted = factors * gradients.shard_shares
    if np.ptp(gradients.shard_shares) > 1e-9 and np.allclose(weighted / weighted[0], 1, rtol=tolerance):
        sentence = "the loss is the mean of the replicas' means, though their shards differ in weight"
        return Explanation("mean_of_means", sentence)
    return None


def _explain_clipping(gradients: StepGradients) -> Explanation | None:
    """Check whether each variable, or each replica, is clipped by its own norm."""
    max_norm = gradients.settings.max_grad_norm
    if max_norm is None or gradients.is_as_expected:
        return None
    per_variable = {
        name: gradient * clip_factor(global_norm({name: gradient}), max_norm)
        for name, gradient in gradients.expected_sum.items()
    }
    clipped_shards = []
    for shard, share in zip(gradients.shard_gradients, gradients.shard_shares, strict=True):
        mean = {name: gradient / share for name, gradient in shard.items()}  # mean over the shard's examples
        factor = gradients.clip_factor(mean)
        clipped_shards.append({name: gradient * factor * share for name, gradient in mean.items()})
    candidates = {
        "clipped_per_variable": (per_variable, "each variable's gradient is clipped by its own norm, not that of all"),
        "clipped_before_reduction": (
            sum_gradients(clipped_shards),
            "each replica clips its gradients before they are reduced",
        ),
    }
    for cause, (clipped, sentence) in candidates.items():
        for factor in (1.0, gradients.clip_factor(clipped)):  # possibly clipped again by the global norm
            if gradients.matches(gradients.flatten(clipped) * factor, max(1e-6, gradients.tolerance)):
                return Explanation(cause, sentence)
    return None


def _explain_scale(gradients: StepGradients) -> Explanation | None:
    """Check whether the sum is multiplied by a factor that differs from the one of clipping."""
    factors, tolerance = gradients.shard_factors, gradients.factor_tolerance
    settings = gradients.settings
    if factors is None or not np.allclose(factors, factors[0], rtol=tolerance):
        return None
    factor, norm = float(factors[0]), global_norm(gradients.expected_sum)
    if np.isclose(abs(factor), settings.rate * gradients.expected_factor, rtol=tolerance):
        sentence = "the momentum includes the learning rate: its slot is the rate times torch's"
        return Explanation("rate_inside_velocity", sentence)
    if np.isclose(factor, 1.0, rtol=tolerance):
        if settings.max_grad_norm is None:
            return None
        sentence = f"the gradients are not clipped to the norm {settings.max_grad_norm} (theirs is {norm:.4g})"
        return Explanation("not_clipped", sentence)
    reported_factor = clip_factor(gradients.reported_norm, settings.max_grad_norm)
    if settings.max_grad_norm is not None and np.isclose(factor, reported_factor, rtol=tolerance):
        sentence = (
            f"the gradients are clipped by a norm of {gradients.reported_norm:.6g}, but their norm is {norm:.6g}; this "
            "happens if repeated rows of an embedding's gradient are not merged"
        )
        return Explanation("clipping_norm", sentence)
    excess = factor / gradients.expected_factor
    sentence = f"the gradients are {excess:.6g} times what they should be"
    if settings.betas[0] and gradients.step == 1:
        sentence += f", or beta1 is {1 - excess * (1 - settings.betas[0]):.4g}"
    return Explanation("scaled_gradient", sentence)


def _explain_stale_gradients(gradients: StepGradients) -> Explanation | None:
    """Check whether the update used the gradients of the step before."""
    previous = _clip_previous(gradients)
    if previous is None or not gradients.matches(previous, gradients.tolerance):
        return None
    return Explanation("stale_gradient", "the update uses the gradients of the step before")


def _explain_lost_state(gradients: StepGradients) -> Explanation | None:
    """Check whether the slots were empty again before the second step, so that they lack the first step's gradient.

    The gradient that is recovered from such slots is too small by decay * (gradient of the first step).
    """
    settings, previous = gradients.settings, _clip_previous(gradients)
    decay = settings.momentum if settings.kind == "sgd" else settings.betas[0]
    if previous is None or gradients.step != 2 or not decay:
        return None
    if not gradients.matches(gradients.expected_vector - decay * previous, gradients.tolerance):
        return None
    sentence = "the optimizer starts from zero: its state of the step before was not restored"
    return Explanation("optimizer_state_lost", sentence)


def _clip_previous(gradients: StepGradients) -> np.ndarray | None:
    """Return the clipped gradients of the step before, as one vector."""
    previous = gradients.previous_sum
    return None if previous is None else gradients.flatten(previous) * gradients.clip_factor(previous)


def _explain_weight_decay(gradients: StepGradients) -> Explanation | None:
    """Check whether a multiple of the parameters is added to the gradients."""
    columns = np.stack([gradients.flatten(gradients.expected_sum), gradients.flatten(gradients.weights)], axis=1)
    (factor, decay), *_ = np.linalg.lstsq(columns, gradients.recovered_vector, rcond=None)
    added_norm = abs(decay) * compute_norm(columns[:, 1])
    is_negligible = added_norm <= gradients.tolerance * global_norm(gradients.expected_sum)
    if is_negligible or not gradients.matches(columns @ [factor, decay], gradients.tolerance):
        return None
    penalty = gradients.settings.weight_decay
    if gradients.settings.kind != "adamw" and np.isclose(decay / factor, penalty, rtol=gradients.factor_tolerance):
        sentence = (
            f"the L2 penalty counts twice: {2 * penalty:.4g} times the parameters are added to the gradients; either "
            "the loss and the optimizer both contain it, or it is Keras's l2, whose gradient is twice its factor"
        )
        return Explanation("l2_counted_twice", sentence)
    sentence = (
        f"{decay / factor:.4g} times the parameters are added to the gradients: weight decay as an L2 penalty, which "
        "Adam divides by the gradients' size"
    )
    return Explanation("weight_decay_coupled", sentence)


def _explain_precision(gradients: StepGradients) -> Explanation | None:
    """Check whether the gradients are off by as much as the rounding errors of a lower precision."""
    error = _relative_error(gradients)
    for name, bits in SIGNIFICANT_BITS.items():
        if name != gradients.settings.precision and 0.01 * 2.0**-bits < error < 4 * 2.0**-bits:
            return Explanation(f"reduced_in_{name}", f"the gradients are reduced in {name}: off by {error:.1e}")
    return None


def _relative_error(gradients: StepGradients) -> float:
    """Return the difference between the update's gradients before clipping and the sum, relative to the sum."""
    factor = clip_factor(gradients.reported_norm, gradients.settings.max_grad_norm)
    expected = gradients.flatten(gradients.expected_sum)
    difference = compute_norm(expected - gradients.recovered_vector / factor)
    norm = compute_norm(expected)
    return difference / norm if norm else np.inf
