"""The stages "reduction" and "optimizer": each update of each run, computed again from the run's own weights.

The runs are the sides "a" and "b" of a diagnosis. A shard is a replica's part of a global batch, and the slots are the
optimizer's arrays, such as Adam's moments. Gradients that an update used are recovered from the slots before and after
it: the recovered gradients. The expected gradients are those of the shards, computed again, added up and clipped. An
index counts the compared steps from 0.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace

from common.diagnose.comparison import Gradients, SideComparison
from common.diagnose.explain.batch_mistakes import BatchMistake, list_batch_mistakes
from common.diagnose.explain.reduction_faults import SLOT_CAUSES, is_unexplained
from common.diagnose.explain.step_gradients import StepGradients, estimate_slot_noise, recover_gradients
from common.diagnose.explain.update_formula import OptimizerUpdate
from common.diagnose.explain.update_settings import UpdateSettings, read_update_settings
from common.diagnose.findings import Stage, TensorCheck
from common.diagnose.side_run import Shards, SideRun, split_batch
from common.diagnose.stages.optimizer import compare_optimizer
from common.diagnose.stages.reduction import compare_reduction
from common.diagnose.stages.rule_updates import compare_rule_update, needs_rule
from common.diagnose.stages.transforms import TRANSFORM
from common.map.array_differences import relative_difference
from common.map.side import Side, receive_all


def compare_updates(comparison: SideComparison) -> list[Stage]:
    """Compare the gradients and the update of every step of both runs.

    A run is left out if its gradients cannot be recovered from the slots or cannot be computed again.
    """
    reduction, optimizer = Stage("reduction", precision=comparison.precision), Stage("optimizer")
    reasons = {name: _why_not_recoverable(run) for name, run in comparison.runs.items()}
    if any(cause.cause == TRANSFORM for stage in comparison.stages for cause in stage.causes):
        reasons = dict.fromkeys(reasons, "the interpreters transform the examples differently")
    reduction.note = optimizer.note = reasons["a"] or reasons["b"]
    previous_sums: dict[str, Gradients] = {}
    for index, runs in _list_steps({name: run for name, run in comparison.runs.items() if not reasons[name]}):
        shards = {name: split_batch(run.batches[index], run.shard_count) for name, run in runs.items()}
        computed = _compute_gradients(comparison, runs, index, shards)
        for name, run in runs.items():
            if needs_rule(run.config):
                compare_rule_update(reduction, optimizer, run, index, computed[name])
                continue
            gradients = StepGradients(
                settings=_read_settings(run, index),
                step=run.batches[index].step,
                shard_gradients=computed[name],
                shard_weights=[sum(float(part["weights"].sum()) for part in shard) for shard in shards[name]],
                previous_sum=previous_sums.get(name),
                reported_norm=run.rows[index]["grad_norm"],
                weights=run.states[index].weights,
                recovered=_recover_gradients(run, index),
                noise=_estimate_noise(run, index, comparison.gradient_noise),
            )
            if is_unexplained(gradients):  # no fault of the reduction explains them; a mistake in the batch may
                gradients = _explain_by_batch_mistake(comparison, run, index, gradients)
            compare_reduction(reduction, name, gradients)
            previous_sums[name] = gradients.expected_sum
            if not reduction.has_cause_of(name, SLOT_CAUSES):  # these causes change the update as well
                compare_optimizer(optimizer, name, _build_update(run, index, gradients.recovered))
    return [reduction, optimizer]


def _why_not_recoverable(run: SideRun) -> str:
    """Return the reason why the gradients of a run's updates cannot be recovered, or ""."""
    if run.is_asynchronous:
        return f"{run.title} updates asynchronously"
    if run.config.model.dropout_semantics == "native" and getattr(run.config.model, "dropout", 1.0) > 0:
        return f"{run.title} draws its own dropout masks"
    if needs_rule(run.config):
        native = run.config.optimizer.semantics == "native"
        return f"not compared for optimizer.kind={run.config.optimizer.kind} with semantics=native" if native else ""
    if run.config.optimizer.kind == "sgd" and not run.config.optimizer.momentum:
        return "SGD without momentum keeps no gradients in its slots"
    return ""


def _list_steps(runs: Mapping[str, SideRun]) -> Iterator[tuple[int, dict[str, SideRun]]]:
    """Yield the index of each compared step, and the runs that reached it."""
    for index in range(max((len(run.states) - 1 for run in runs.values()), default=0)):
        yield index, {name: run for name, run in runs.items() if index < len(run.states) - 1}


def _compute_gradients(
    comparison: SideComparison, runs: Mapping[str, SideRun], index: int, shards: Mapping[str, Shards]
) -> dict[str, list[Gradients]]:
    """Return the gradients of each shard of each run, at the weights before a step. Both processes compute at once."""
    gradients: dict[str, list[Gradients]] = {name: [] for name in runs}
    for rank in range(max(map(len, shards.values()))):
        names = [name for name in runs if rank < len(shards[name])]
        for name in names:
            weights, batch = runs[name].states[index].weights, runs[name].batches[index]
            process: Side = comparison.processes[name]
            process.send("gradients", weights=weights, shard=shards[name][rank], weight=batch.weight)
        for name, computed in zip(names, receive_all(*(comparison.processes[name] for name in names)), strict=True):
            gradients[name].append(computed)
    return gradients


def _recover_gradients(run: SideRun, index: int) -> Gradients:
    """Return the gradients that the update of a step used."""
    before, after = run.states[index], run.states[index + 1]
    settings = _read_settings(run, index)
    return recover_gradients(settings, before.slots, after.slots, before.weights)


def _estimate_noise(run: SideRun, index: int, gradient_noise: Mapping[str, float]) -> dict[str, float]:
    """Return the norm of the rounding errors of each gradient: of the computation and of the recovery from slots."""
    settings = _read_settings(run, index)
    slot_noise = estimate_slot_noise(settings, run.states[index].slots, run.states[index + 1].slots)
    return {name: noise + gradient_noise.get(name, 0.0) for name, noise in slot_noise.items()}


def _read_settings(run: SideRun, index: int) -> UpdateSettings:
    return read_update_settings(run.config, run.batches[index].step, run.plateau_factors[index])


def _build_update(run: SideRun, index: int, gradients: Gradients) -> OptimizerUpdate:
    before, after = run.states[index], run.states[index + 1]
    return OptimizerUpdate(
        settings=_read_settings(run, index),
        step=run.batches[index].step,
        replicas=run.replicas,
        weights_before=before.weights,
        weights_after=after.weights,
        slots_before=before.slots,
        slots_after=after.slots,
        gradients=gradients,
    )


def _explain_by_batch_mistake(
    comparison: SideComparison, run: SideRun, index: int, gradients: StepGradients
) -> StepGradients:
    """Look for a mistake of the sampler or of dropout's seed that explains the gradients of an update.

    The mistake becomes a cause of the stage that it belongs to, "batch" or "dropout".

    Returns:
        `gradients` with the shard gradients that the mistake gives, so that the later checks compare the update with
        them; unchanged if no mistake explains the update.
    """
    weights, process = run.states[index].weights, comparison.processes[run.name]
    for mistake in list_batch_mistakes(run, index):
        shard_gradients = [
            process.call("gradients", weights=weights, shard=shard, weight=mistake.weight) for shard in mistake.shards
        ]
        mistaken = replace(gradients, shard_gradients=shard_gradients)
        if mistaken.is_as_expected:
            _add_mistake(comparison.stage(mistake.stage), run.name, mistake, gradients)
            return mistaken
    return gradients


def _add_mistake(stage: Stage, side: str, mistake: BatchMistake, gradients: StepGradients) -> None:
    """Add a mistake to the stage as a check and a cause, unless the stage has this cause from an earlier step."""
    if stage.has_cause_of(side, [mistake.cause]):
        return
    difference = relative_difference(gradients.expected_vector, gradients.recovered_vector)
    name, step = side.upper(), f"step {gradients.step}"
    stage.checks.append(TensorCheck(f"{name}, {step}: {mistake.tensor} of the update", difference))
    stage.add_cause(mistake.cause, side, mistake.tensor, f"{step}: {name} {mistake.sentence}")
