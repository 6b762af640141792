"""The stage of the reduction: what makes an update's gradients differ from the sum over the replicas."""

import numpy as np

from common.diagnose.explain.step_gradients import Reduction, clipping, norm, total
from common.diagnose.findings import Stage
from common.diagnose.rounding import BITS
from common.map.proof import SMALL
from common.training.schedule import compute_learning_rate

OF_SLOTS = (
    "optimizer_state_lost",
    "rate_inside_velocity",
)  # causes that the optimizer's slots tell, and its update too
Named = tuple[str, str]  # a cause, and the sentence


def compare_reduction(stage: Stage, side: str, found: Reduction) -> None:
    """Compare the update's gradients with the sum over the shards, and name what made them differ."""
    largest = norm(found.summed)
    differing, where = [], f"{side.upper()}, step {found.step}"
    for name in found.names:
        summed, title = found.summed[name] * found.scale, f"{where}: {name}"
        size, precision = max(float(np.linalg.norm(summed)), SMALL * largest), found.config.train.precision
        noise = max(1e-13, found.rounding.get(name, 0.0) / size if size else 0.0)
        if stage.compare(title, summed, found.found[name], noise, least=size, precision=precision).differs:
            differing.append(name)
    if not differing or any(each.side == side for each in stage.causes):
        return
    for name in differing:
        if np.isfinite(found.summed[name]).all() and not np.isfinite(found.found[name]).all():
            words = f"in {where}: {name}: the sum over the shards is finite, the gradient of the update is not"
            stage.blame("not_finite", side, name, words)
            return
    frozen = [name for name in differing if not found.found[name].any()]
    if len(frozen) == len(differing) < len(found.names):
        stage.blame("no_gradient", side, frozen[0], f"in {where}: {', '.join(frozen[:3])}: gets no gradient")
        return
    cause, words = explain(found)
    stage.blame(cause, side, differing[0], f"in {where}: {words}", confirmed=cause != "reduction")


def explain(found: Reduction) -> Named:
    """The first explanation that gives exactly the update's gradients."""
    explanations = (_counted_otherwise, _clipped_otherwise, _scaled, _stale, _forgotten, _decayed, _rounded)
    named = next(filter(None, (each(found) for each in explanations)), None)
    return named or ("reduction", f"the gradients of the update are {_off(found):.1e} off the sum over the replicas")


def unexplained(found: Reduction) -> bool:
    """Whether the update was made from other gradients, and nothing here says which."""
    return not found.explains_update and explain(found)[0] == "reduction"


def _counted_otherwise(found: Reduction) -> Named | None:
    """Whether the shards count as they should not."""
    factors, count = found.factors, len(found.shards)
    if factors is None or count == 1:
        return None
    if np.allclose(factors / found.scale, 1 / count, rtol=found.same):
        return "averaged_twice", f"the gradients are averaged twice: each counts 1/{count}"
    if np.allclose(factors, count, rtol=found.same):
        return "not_averaged", f"the gradients are {count} times too large: summed where they should be averaged"
    missing = [each for each, factor in enumerate(factors) if abs(factor) < found.same * float(np.abs(factors).max())]
    if missing:
        return "missing_gradient", f"the gradient of replica {missing[0]} is missing"
    ratio = factors * found.share
    if np.ptp(found.share) > 1e-9 and np.allclose(ratio / ratio[0], 1, rtol=found.same):
        return "mean_of_means", "the loss is the mean of the replicas' means, though their shards differ in weight"
    return None


def _clipped_otherwise(found: Reduction) -> Named | None:
    """Whether each variable, or each replica, is clipped by its own norm."""
    largest = found.config.optimizer.max_grad_norm
    if largest is None or found.near(found.vector(found.summed) * found.scale, found.exact):
        return None
    by_variable = {name: each * min(1.0, largest / (norm({name: each}) + 1e-6)) for name, each in found.summed.items()}
    parts = []
    for each, share in zip(found.shards, found.share, strict=True):
        own = {name: array / share for name, array in each.items()}  # the gradient of the shard's own mean
        parts.append({name: array * clipping(found.config, own) * share for name, array in own.items()})
    for clipped, cause, words in (
        (by_variable, "clipped_per_variable", "each variable's gradient is clipped by its own norm, not that of all"),
        (total(parts), "clipped_before_reduction", "each replica clips its gradients before they are reduced"),
    ):
        for scale in (1.0, clipping(found.config, clipped)):  # perhaps once more, by the norm of all
            if found.near(found.vector(clipped) * scale, max(1e-6, found.exact)):
                return cause, words
    return None


def _scaled(found: Reduction) -> Named | None:
    """Whether the sum is multiplied by something else than it should be clipped by."""
    factors, optimizer = found.factors, found.config.optimizer
    if factors is None or not np.allclose(factors, factors[0], rtol=found.same):
        return None
    value, largest = float(factors[0]), optimizer.max_grad_norm
    if np.isclose(abs(value), compute_learning_rate(found.config, found.step) * found.scale, rtol=found.same):
        words = "the momentum has the learning rate inside: its slot is the rate times torch's"
        return "rate_inside_velocity", words
    if np.isclose(value, 1.0, rtol=found.same):
        return "not_clipped", f"the gradients are not clipped to optimizer.max_grad_norm ({norm(found.summed):.4g})"
    if largest is not None and np.isclose(value, min(1.0, largest / (found.reported + 1e-6)), rtol=found.same):
        return "clipping_norm", (
            f"the gradients are clipped by a norm of {found.reported:.6g} where theirs is {norm(found.summed):.6g}, as "
            "where repeated rows of an embedding's gradient are not merged"
        )
    factor = value / found.scale
    words = f"the gradients are {factor:.6g} times what they should be"
    if optimizer.beta1 and found.step == 1:
        words += f", or beta1 is {1 - factor * (1 - optimizer.beta1):.4g}"
    return "scaled_gradient", words


def _stale(found: Reduction) -> Named | None:
    if found.before is None:
        return None
    vector = found.vector(found.before) * clipping(found.config, found.before)
    words = "the update is made from the gradients of the step before"
    return ("stale_gradient", words) if found.near(vector, found.exact) else None


def _forgotten(found: Reduction) -> Named | None:
    """Whether the optimizer began from zero in the second step: the first gradient, which it should keep, is gone."""
    optimizer = found.config.optimizer
    keep = optimizer.momentum if optimizer.kind == "sgd" else optimizer.beta1
    if found.before is None or found.step != 2 or not keep:
        return None
    last = found.vector(found.before) * clipping(found.config, found.before)
    if not found.near(found.vector(found.summed) * found.scale - keep * last, found.exact):
        return None
    return "optimizer_state_lost", "the optimizer starts from zero: its state of the step before was not restored"


def _decayed(found: Reduction) -> Named | None:
    """Whether a multiple of the parameters is added."""
    columns = np.stack([found.vector(found.summed), found.vector(found.parameters)], axis=1)
    (kept, decay), *_ = np.linalg.lstsq(columns, found.target, rcond=None)
    added = abs(decay) * float(np.linalg.norm(columns[:, 1]))
    if not found.near(columns @ [kept, decay], found.exact) or added <= found.exact * norm(found.summed):
        return None
    penalty = found.config.optimizer.weight_decay
    if found.config.optimizer.kind != "adamw" and np.isclose(decay / kept, penalty, rtol=found.same):
        return "l2_counted_twice", (
            f"the L2 penalty counts twice: {2 * penalty:.4g} times the parameters are added to the gradients, as where "
            "it is in the loss and in the optimizer, or is Keras's l2, whose gradient is twice its factor"
        )
    return "weight_decay_coupled", (
        f"{decay / kept:.4g} times the parameters are added to the gradients: weight decay as an L2 penalty, which "
        "Adam divides by the gradients' size"
    )


def _rounded(found: Reduction) -> Named | None:
    """Whether the difference has the size of a precision's rounding."""
    off = _off(found)
    for name, bits in BITS.items():
        if name != found.config.train.precision and 0.01 * 2.0**-bits < off < 4 * 2.0**-bits:
            return f"reduced_in_{name}", f"the gradients are reduced in {name}: off by {off:.1e}"
    return None


def _off(found: Reduction) -> float:
    """By how much the update's gradients are off the sum, relative to that; clipped by the norm that was reported."""
    largest, summed = found.config.optimizer.max_grad_norm, found.vector(found.summed)
    scale = 1.0 if largest is None else min(1.0, largest / (found.reported + 1e-6))
    return float(np.linalg.norm(summed - found.target / scale) / np.linalg.norm(summed))
