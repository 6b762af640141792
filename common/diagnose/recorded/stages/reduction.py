"""The stage "reduction": how each record's gradients follow from those of its processes, and how they are clipped."""

import numpy as np

from common.diagnose.explain.step_gradients import StepGradients, clip_factor, global_norm, sum_gradients
from common.diagnose.explain.update_settings import UpdateSettings
from common.diagnose.findings import Stage
from common.diagnose.recorded.record_pair import RecordPair, find_weight_precision
from common.diagnose.recorded.recorded_side import RecordedSide, count_labels
from common.diagnose.recorded.stages.optimizer import keep_one_sided_causes
from common.diagnose.rounding import is_close
from common.diagnose.stages.reduction import compare_reduction

Gradients = dict[str, np.ndarray]


def compare_reductions(pair: RecordPair) -> Stage:
    """Compare the reduction and the clipping of both sides; a fault that both have explains no difference."""
    stage = Stage("reduction", precision="float32")
    for side in pair.sides:
        for step in pair.steps:
            if not stage.has_cause_of(side.name):
                _compare_side(stage, side, step)
        _report_dropped(stage, side, pair)
    keep_one_sided_causes(stage)
    if not stage.checks:
        stage.note = stage.note or "no gradients of single processes, and none from before a clipping, are recorded"
    return stage


def _report_dropped(stage: Stage, side: RecordedSide, pair: RecordPair) -> None:
    """Add micro-batches without an effect, and updates without a micro-batch, as causes."""
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


def _compare_side(stage: Stage, side: RecordedSide, step: int) -> None:
    reduced, received = _to_float64(side.read_reduced_gradients(step)), _to_float64(side.read_gradients(step))
    if "16" in find_weight_precision(side):
        stage.note = f"{side.title}: not compared, because the gradients have few digits"
        return
    if not received or side.get_facts(step)["skipped"] or not _are_finite(reduced):
        return
    if len(side.record.ranks) > 1 and not _compare_ranks(stage, side, step, received):
        return
    shards = [_to_float64(side.read_gradients(step, "gradient_local", rank)) for rank in range(len(side.record.ranks))]
    if len(shards) > 1 and all(shards):
        counts = zip(side.list_micro_batches(step), count_labels(side, step), strict=True)
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
    compare_reduction(stage, side.name, _build(step, [reduced], [1.0], received, max_norm))


def _compare_ranks(stage: Stage, side: RecordedSide, step: int, received: Gradients) -> bool:
    """Check that all processes receive the same gradients, as they do under DistributedDataParallel."""
    for rank in range(1, len(side.record.ranks)):
        rank_gradients = side.read_gradients(step, "gradient", rank)
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
