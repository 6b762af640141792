"""The stage "reduction": how each script sums the gradients of its processes, and how it clips the sum.

A is the reference record of a diagnosis, and B the record that is compared with it. The reduced gradients are the sum
or mean over the processes before clipping. The received gradients are the gradients that the optimizer received. A
shard is the part of a batch that one process trains on.
"""

from dataclasses import replace

import numpy as np

from common.diagnose.explain.step_gradients import CLIP_EPSILON, StepGradients, clip_factor, global_norm, sum_gradients
from common.diagnose.explain.update_settings import UpdateSettings
from common.diagnose.findings import Stage, TensorCheck
from common.diagnose.recorded.clipping import list_clipped_rows
from common.diagnose.recorded.losses.label_counts import count_labels
from common.diagnose.recorded.optimizer_settings import read_optimizer_settings
from common.diagnose.recorded.record_pair import RecordPair, find_declared_precision, find_weight_precision
from common.diagnose.recorded.recorded_side import RecordedSide
from common.diagnose.recorded.stages.optimizer import keep_one_sided_causes
from common.diagnose.rounding import MACHINE_EPSILON, SIGNIFICANT_BITS, is_close
from common.diagnose.stages.reduction import compare_reduction
from common.map.array_differences import compute_norm

Gradients = dict[str, np.ndarray]
CANCELLED_SHARE = 2.0**-3  # rounding error of a gradient whose terms cancel, in machine epsilons of all gradients
SPARSE_NORM = "clipping_norm"  # name of the cause that repeated rows of a gradient are not merged
SAME_FACTOR = 1e-4  # largest relative error of a gradient that is another gradient times a factor


def compare_reductions(pair: RecordPair) -> Stage:
    """Compare the reduction and the clipping of both sides. A fault of both sides explains no difference."""
    stage = Stage("reduction", precision="float32")
    for side in pair.sides:
        for step in pair.steps:
            if not stage.has_cause_of(side.name):
                _compare_side(stage, side, step)
        _report_dropped(stage, side, pair)
        _note_later_steps(stage, side, pair)
    if pair.a.is_torch == pair.b.is_torch:
        _drop_sparse_norms(stage)
    keep_one_sided_causes(stage)
    _compare_rows(stage, pair)
    if not stage.checks:
        stage.note = stage.note or "no gradients of single processes, and none from before a clipping, are recorded"
    return stage


def _compare_rows(stage: Stage, pair: RecordPair) -> None:
    """Add a cause if only one script clips repeated rows of a sparse gradient before it adds them, as Keras does."""
    rows = list_clipped_rows(pair)
    for name in "ab":
        titles = [match.title for side, match in rows if side == name]
        if titles:
            listed = titles[0] if len(titles) == 1 else f"{titles[0]} and {len(titles) - 1} more"
            stage.add_mismatch(f"{name.upper()}: rows of {listed}")
            sentence = f"{name.upper()} clips each row of the sparse gradient of {listed} before it adds those "
            sentence += f"of one index, and {'B' if name == 'a' else 'A'} clips their sum"
            is_certain = pair.a.is_torch != pair.b.is_torch
            stage.add_cause("clipped_per_row", name, titles[0], sentence, confirmed=is_certain)


def _report_dropped(stage: Stage, side: RecordedSide, pair: RecordPair) -> None:
    """Add a cause for micro-batches whose gradients are not used, or for an update without a micro-batch."""
    for step in pair.steps:
        facts = side.get_facts(step)
        if not facts["micro_batches"] and facts["rates"]:
            stage.add_mismatch(f"{side.name.upper()}, step {step}: micro-batches")
            sentence = f"in {side.name.upper()}, step {step}: the optimizer steps without a new backward pass"
            stage.add_cause("update_without_backward", side.name, "micro-batches", sentence)
            return
        if count := facts.get("dropped_micro_batches"):
            name = f"{side.name.upper()}, step {step}"
            stage.add_mismatch(f"{name}: micro-batches")
            sentence = f"in {name}: the gradients of {count} of {facts['micro_batches']} micro-batches are set to zero "
            sentence += "before the update: call zero_grad only after it"
            stage.add_cause("dropped_micro_batches", side.name, "micro-batches", sentence)
            return


def _note_later_steps(stage: Stage, side: RecordedSide, pair: RecordPair) -> None:
    """Note it if the gradients of single processes are recorded for the first update only."""
    files = [side.record.ranks[0].open_step(step) for step in pair.steps]
    have_local = [any(name.startswith("gradient_local/") for name in file.names) for file in files]
    if any(have_local) and not all(have_local):
        sentence = f"{side.title}: the sum over the processes is compared in the first update only, because later steps"
        stage.note = stage.note or f"{sentence} have no gradients of single processes"


def _compare_side(stage: Stage, side: RecordedSide, step: int) -> None:
    before, after = side.changes.read_clipping(step)
    reduced = _to_float64(after if side.gradients.are_changed_by_script else after | before)
    received = _to_float64(after)
    if "16" in find_weight_precision(side):
        stage.note = f"{side.title}: not compared, because the gradients have few digits"
        return
    if not received or side.get_facts(step)["skipped"] or not _are_finite(reduced):
        return
    if len(side.record.ranks) > 1 and not _compare_ranks(stage, side, step, side.gradients.read(step)):
        return
    shards = [_to_float64(side.gradients.read(step, "gradient_local", rank)) for rank in range(len(side.record.ranks))]
    if len(shards) > 1 and all(shards):
        counts = zip(side.batches.list_micro_batches(step), count_labels(side, step), strict=True)
        weights = [0.0] * len(shards)
        for (rank, _), count in counts:
            weights[rank] += count
        shares = np.asarray(weights) / sum(weights)
        parts = [
            {name: gradient * share for name, gradient in shard.items() if all(name in other for other in shards)}
            for shard, share in zip(shards, shares, strict=True)
        ]
        if parts[0]:
            compare_reduction(stage, side.name, _build(step, parts, weights, reduced, None))
    max_norm = side.get_facts(step)["max_norm"]
    if max_norm is not None and not stage.has_cause_of(side.name):
        _compare_clipping(stage, side, step, reduced, received)


def _compare_clipping(stage: Stage, side: RecordedSide, step: int, reduced: Gradients, received: Gradients) -> None:
    if side.gradients.are_abridged(step):
        stage.note = f"{side.title}: step {step}: clipping not compared, because gradients are recorded as samples only"
        return
    facts = side.get_facts(step)
    max_norm, scale = facts["max_norm"], facts["loss_scale"]
    assert max_norm is not None
    norm = global_norm(reduced)
    if scale and scale != 1:
        factor = clip_factor(norm * scale, max_norm)
        vectors = [
            np.concatenate([np.ravel(array) for array in gradients.values()]) for gradients in (reduced, received)
        ]
        if factor != clip_factor(norm, max_norm) and is_close(vectors[0] * factor, vectors[1], 1e-3):
            stage.add_mismatch(f"{side.name.upper()}, step {step}: clipping")
            sentence = f"in {side.name.upper()}, step {step}: the gradients are clipped while they have the loss scale "
            sentence += f"{scale:g}: call unscale_ before clip_grad_norm_"
            stage.add_cause("clipped_before_unscaling", side.name, "clipping", sentence)
            return
    if side.replicas > len(side.record.ranks):
        _compare_replicas(stage, side, step, clip_factor(norm, max_norm), (reduced, received))
        return
    gradients = _build(step, [reduced], [1.0], received, max_norm)
    if not side.is_torch:
        sparse_norm = _find_sparse_norm(side, reduced, received, max_norm)
        noise = _estimate_noise(side, step, received, norm)
        gradients = replace(gradients, noise=noise, reported_norm=sparse_norm or gradients.reported_norm)
    compare_reduction(stage, side.name, gradients)


def _compare_replicas(
    stage: Stage, side: RecordedSide, step: int, factor: float, gradients: tuple[Gradients, Gradients]
) -> None:
    """Check that several replicas of one process clip the sum of their gradients.

    Args:
        stage: The stage.
        side: The side.
        step: The step.
        factor: The factor by which the sum is clipped.
        gradients: The sum, and the gradients that the update used.
    """
    names = [name for name in gradients[0] if name in gradients[1]]
    reduced, received = (np.concatenate([np.ravel(arrays[name]) for name in names]) for arrays in gradients)
    place = f"{side.name.upper()}, step {step}"
    if is_close(reduced * factor, received, 1e-3):
        stage.checks.append(TensorCheck(f"{place}: clipped gradients", 0.0))
        return
    stage.add_mismatch(f"{place}: clipped gradients")
    sentence = f"in {place}: each replica clips its gradients before they are summed, as Keras's optimizers do"
    stage.add_cause("clipped_before_reduction", side.name, "clipping", sentence)


def _find_sparse_norm(side: RecordedSide, reduced: Gradients, received: Gradients, max_norm: float) -> float | None:
    """Return the norm that TensorFlow used to clip the gradients of a model with embeddings; None: unknown.

    tf.clip_by_global_norm counts repeated rows of an embedding's gradient one by one, which gives another norm.
    """
    if not any(layer["kind"] == "Embedding" for layer in side.layers):
        return None
    names = [name for name in reduced if name in received]
    a, b = (np.concatenate([np.ravel(arrays[name]) for name in names]) for arrays in (reduced, received))
    factor = float((a * b).sum() / ((a * a).sum() or 1.0))
    is_clipped = 0 < factor < 1 and is_close(a * factor, b, SAME_FACTOR)
    return max_norm / factor if is_clipped or np.isclose(factor, 1, rtol=SAME_FACTOR) else None


def _drop_sparse_norms(stage: Stage) -> None:
    """Remove the cause that TensorFlow clips by another norm, which the other side does too."""
    prefixes = [f"{cause.side.upper()}, step" for cause in stage.causes if cause.cause == SPARSE_NORM]
    stage.causes = [cause for cause in stage.causes if cause.cause != SPARSE_NORM]
    if prefixes:
        stage.checks = [check for check in stage.checks if not check.tensor.startswith(tuple(prefixes))]
        stage.note = "tf.clip_by_global_norm counts repeated rows of an embedding's gradient one by one, on both sides"


def _estimate_noise(side: RecordedSide, step: int, received: Gradients, norm: float) -> dict[str, float]:
    """Return the norms of the rounding errors of gradients that were recovered from the optimizer's slots.

    The gradients before clipping are computed beside the step, and in mixed precision in another order of its sums.
    Keras divides by their norm, and PyTorch by the norm plus an epsilon, which counts as a rounding error.

    Args:
        side: The side.
        step: The step.
        received: The gradients that the optimizer received.
        norm: The norm of the gradients before clipping.
    """
    settings, precision = read_optimizer_settings(side), find_declared_precision(side)
    # An eighth of the machine epsilon, because a check allows 100 times its noise: a bias sums many rounded numbers
    share = 2.0 ** -(SIGNIFICANT_BITS[precision] + 2) if precision in ("bfloat16", "float16") else 0.0
    share = max(share, CLIP_EPSILON / (norm or 1.0))
    # The terms of a gradient may cancel each other, as those of a shift before a normalization do
    cancelled, noise = CANCELLED_SHARE * MACHINE_EPSILON["float32"] * global_norm(received), {}
    for name, gradient in received.items():
        if name not in settings:
            continue
        decay = settings[name].momentum if settings[name].algorithm == "sgd" else settings[name].betas[0]
        earlier = [side.gradients.read(number).get(name, gradient) for number in side.record.steps if number <= step]
        recovery = MACHINE_EPSILON["float32"] * max(map(compute_norm, earlier)) / (1 - decay or 1.0)
        noise[name] = max(recovery, cancelled, share * compute_norm(gradient))
    return noise


def _compare_ranks(stage: Stage, side: RecordedSide, step: int, received: Gradients) -> bool:
    """Check that all processes receive the same gradients, as they do under DistributedDataParallel."""
    for rank in range(1, len(side.record.ranks)):
        rank_gradients = side.gradients.read(step, "gradient", rank)
        for name, gradient in received.items():
            if name not in rank_gradients or rank_gradients[name].shape != gradient.shape:
                continue
            if not is_close(gradient, rank_gradients[name], 1e-4):
                stage.add_mismatch(f"{side.name.upper()}, step {step}: {name} of rank {rank}")
                sentence = (
                    f"in {side.name.upper()}, step {step}: the gradient of {name} differs between rank 0 and rank "
                )
                sentence += f"{rank}: nothing reduces the gradients; wrap the model, or call it through its wrapper"
                stage.add_cause("not_reduced", side.name, name, sentence)
                return False
    return True


def _build(
    step: int, shards: list[Gradients], weights: list[float], recovered: Gradients, max_norm: float | None
) -> StepGradients:
    """Return the gradients of a step as the diagnosis of runs compares them. recovered: the gradients to explain."""
    settings = UpdateSettings("sgd", "float32", 1e-30, 0.0, 0.0, 0.0, max_grad_norm=max_norm)
    total = sum_gradients(shards)
    names = [name for name in total if name in recovered]
    return StepGradients(
        settings=settings,
        step=step,
        shard_gradients=[{name: shard[name] for name in names} for shard in shards],
        shard_weights=weights,
        recovered={name: recovered[name] for name in names},
        previous_sum=None,
        reported_norm=global_norm(total),
        weights={name: np.zeros_like(total[name]) for name in names},
    )


def _are_finite(gradients: Gradients) -> bool:
    return all(np.isfinite(gradient).all() for gradient in gradients.values())


def _to_float64(gradients: dict[str, np.ndarray]) -> Gradients:
    return {name: gradient.astype(np.float64) for name, gradient in gradients.items()}
