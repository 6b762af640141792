"""The stage of the reduction: what a strategy makes of the gradients of its replicas' shards."""

from collections.abc import Mapping, Sequence

import numpy as np

from common.config.schema import Config
from common.diagnose.ladder import Check, Stage
from common.mapping.differences import relative
from common.training.schedule import learning_rate

Gradients = Mapping[str, np.ndarray]
SMALL = 1e-4  # of all gradients: smaller ones are compared relative to that


def recovered(config: Config, before: Gradients, after: Gradients, weights: Gradients) -> dict[str, np.ndarray]:
    """The gradients that an update was made from, clipped, by the optimizer's slots before and after it.

    Adam's m' = beta1 m + (1 - beta1) g, SGD's b' = momentum b + g, each solved for g. weights: before the update, since
    Adam and SGD add weight_decay times these to the gradient.
    """
    settings = config.optimizer
    if settings.kind == "sgd":
        slot, keep, share = "momentum_buffer", settings.momentum or 0.0, 1.0
    else:
        assert settings.beta1 is not None
        slot, keep, share = "exp_avg", settings.beta1, 1 - settings.beta1
    found = {}
    for name in [each.removeprefix(f"{slot}.") for each in after if each.startswith(f"{slot}.")]:
        now = after[f"{slot}.{name}"].astype(np.float64)
        last = before.get(f"{slot}.{name}", np.zeros_like(now))
        found[name] = (now - keep * last) / share
        if settings.kind != "adamw":
            found[name] = found[name] - settings.weight_decay * weights[name]
    return found


def clipping(config: Config, summed: Gradients) -> float:
    """What torch.nn.utils.clip_grad_norm_ multiplies the gradients by."""
    largest = config.optimizer.max_grad_norm
    return 1.0 if largest is None else min(1.0, largest / (norm(summed) + 1e-6))


def norm(gradients: Gradients) -> float:
    """Of all of them as one vector."""
    return float(np.sqrt(sum(float(np.square(each).sum()) for each in gradients.values())))


def compare_reduction(
    stage: Stage,
    side: str,
    config: Config,
    step: int,
    shards: Sequence[Gradients],
    weights: Sequence[float],
    found: Gradients,
    before: Gradients | None,
    reported: float,
    parameters: Gradients,
) -> None:
    """One step of one side.

    shards: of each replica, over the weight of the global batch. weights: of their examples. found: the gradients that
    the update was made from. before: the sum that the step before should have had. reported: the norm before clipping
    that the run wrote. parameters: before the step.
    """
    summed = {name: np.sum([each[name] for each in shards], axis=0) for name in shards[0]}
    scale = clipping(config, summed)
    largest = norm(summed)
    differing = []
    for name in [each for each in summed if each in found]:
        check = Check(
            f"{side.upper()}, step {step}: {name}", relative(summed[name] * scale, found[name], SMALL * largest), 1e-13
        )
        stage.checks.append(check)
        if check.differs:
            differing.append(name)
    if not differing or any(each.side == side for each in stage.causes):
        return
    names = [each for each in summed if each in found]
    frozen = [name for name in differing if not found[name].any()]
    if len(frozen) == len(differing) < len(names):
        stage.blame("no_gradient", side, frozen[0], f"{', '.join(frozen[:3])}: gets no gradient in the update")
        return
    kept = {name: found[name] for name in names}
    cause, words = explain(config, step, shards, weights, summed, kept, before, reported, parameters)
    stage.blame(cause, side, differing[0], f"step {step}: {words}", confirmed=cause != "reduction")


def explain(
    config: Config,
    step: int,
    shards: Sequence[Gradients],
    weights: Sequence[float],
    summed: Gradients,
    found: Gradients,
    before: Gradients | None,
    reported: float,
    parameters: Gradients,
) -> tuple[str, str]:
    """What was made of the shards' gradients."""
    names, count = list(found), len(shards)
    target = _flat(found, names)
    columns = np.stack([_flat(each, names) for each in shards], axis=1)
    whole = columns.sum(1)
    size = float(np.linalg.norm(target)) or 1.0
    scale = clipping(config, summed)
    factors, *_ = np.linalg.lstsq(columns, target, rcond=None)
    off = float(np.linalg.norm(columns @ factors - target)) / size
    share = np.asarray(weights) / sum(weights)
    rate, largest = learning_rate(config, step), config.optimizer.max_grad_norm
    if off < 1e-9 and np.linalg.matrix_rank(columns) == count:
        relative_to_clipped = factors / scale
        if np.allclose(relative_to_clipped, 1 / count, rtol=1e-6) and count > 1:
            return "averaged_twice", f"the gradients are averaged twice: each counts 1/{count}"
        if np.allclose(factors, count, rtol=1e-6) and count > 1:
            return "not_averaged", f"the gradients are {count} times too large: summed where they should be averaged"
        missing = [each for each, factor in enumerate(factors) if abs(factor) < 1e-6 * float(np.abs(factors).max())]
        if missing:
            return "missing_gradient", f"the gradient of replica {missing[0]} is missing"
        ratio = factors * share
        if count > 1 and np.ptp(share) > 1e-9 and np.allclose(ratio / ratio[0], 1, rtol=1e-6):
            return "mean_of_means", "the loss is the mean of the replicas' means, though their shards differ in weight"
        mean = _clipped_alike(config, shards, weights, target, names)
        if mean:
            return mean
        if np.allclose(factors, factors[0], rtol=1e-6):
            value = float(factors[0])
            if np.isclose(abs(value), rate * scale, rtol=1e-6):
                return (
                    "rate_inside_velocity",
                    "the momentum has the learning rate inside: its slot is the rate times torch's",
                )
            if np.isclose(value, 1.0, rtol=1e-6):
                return "not_clipped", f"the gradients are not clipped to optimizer.max_grad_norm ({norm(summed):.4g})"
            if largest is not None and np.isclose(value, min(1.0, largest / (reported + 1e-6)), rtol=1e-6):
                return "clipping_norm", (
                    f"the gradients are clipped by a norm of {reported:.6g} where theirs is {norm(summed):.6g}, as "
                    "where repeated rows of an embedding's gradient are not merged"
                )
            if np.isclose(scale, 1.0) or not np.isclose(value, scale):
                kept = 1 - value / scale * (1 - (config.optimizer.beta1 or 0.0))
                return "scaled_gradient", (
                    f"the gradients are {value / scale:.6g} times what they should be"
                    + (f", or beta1 is {kept:.4g}" if config.optimizer.beta1 and step == 1 else "")
                )
    clipped = _clipped_alike(config, shards, weights, target, names)
    if clipped:
        return clipped
    if before is not None:
        stale = _flat(before, names) * clipping(config, before)
        if float(np.linalg.norm(stale - target)) < 1e-9 * size:
            return "stale_gradient", "the update is made from the gradients of the step before"
    decayed = np.stack([whole, _flat(parameters, names)], axis=1)
    (kept, decay), *_ = np.linalg.lstsq(decayed, target, rcond=None)
    if float(np.linalg.norm(decayed @ [kept, decay] - target)) < 1e-9 * size and abs(decay) > 1e-9:
        return "weight_decay_coupled", (
            f"{decay / kept:.4g} times the parameters are added to the gradients: weight decay as an L2 penalty, which "
            "Adam divides by the gradients' size"
        )
    unclipped = target if largest is None else target / min(1.0, largest / (reported + 1e-6))
    rounding = float(np.linalg.norm(whole - unclipped) / np.linalg.norm(whole))
    for bits, name in ((8, "bfloat16"), (11, "float16"), (24, "float32")):
        if 0.01 * 2.0**-bits < rounding < 4 * 2.0**-bits:
            return f"reduced_in_{name}", f"the gradients are reduced in {name}: off by {rounding:.1e}"
    return "reduction", f"the gradients of the update are {rounding:.1e} off the sum over the replicas"


def _clipped_alike(
    config: Config, shards: Sequence[Gradients], weights: Sequence[float], target: np.ndarray, names: list[str]
) -> tuple[str, str] | None:
    """Whether another way of clipping explains the gradients."""
    largest = config.optimizer.max_grad_norm
    if largest is None:
        return None
    summed = {name: np.sum([each[name] for each in shards], axis=0) for name in names}
    by_variable = {name: each * min(1.0, largest / (norm({name: each}) + 1e-6)) for name, each in summed.items()}
    share = np.asarray(weights) / sum(weights)
    parts = []
    for each, part in zip(shards, share, strict=True):
        own = {name: each[name] / part for name in names}  # the gradient of the shard's own mean
        parts.append({name: array * clipping(config, own) * part for name, array in own.items()})
    before = {name: np.sum([each[name] for each in parts], axis=0) for name in names}
    for found, cause, words in (
        (
            by_variable,
            "clipped_per_variable",
            "each variable's gradient is clipped by its own norm, not by that of all",
        ),
        (before, "clipped_before_reduction", "each replica clips its gradients before they are reduced"),
    ):
        for scale in (1.0, clipping(config, found)):  # perhaps once more, by the norm of all
            flat = _flat(found, names) * scale
            if float(np.linalg.norm(flat - target)) < 1e-6 * float(np.linalg.norm(target)):
                return cause, words
    return None


def _flat(gradients: Gradients, names: Sequence[str]) -> np.ndarray:
    return np.concatenate([np.ravel(gradients[name]) for name in names])
