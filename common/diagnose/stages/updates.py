"""The stages of the updates: what each side's strategy and optimizer made of its own weights and examples."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from common.data.batches import Arrays
from common.diagnose.explain.batch_mistakes import count_of_shards, mistakes, shards_of
from common.diagnose.explain.reduction_faults import OF_SLOTS, compare_reduction, unexplained
from common.diagnose.explain.step_gradients import Reduction, recovered, rounded
from common.diagnose.explain.update_formula import Update, compare_update
from common.diagnose.findings import Check, Stage
from common.diagnose.side_run import Run
from common.map.differences import relative
from common.map.proof import received
from common.map.side import Side


def _not_recovered(run: Run) -> str:
    """Why the gradients of a run's updates cannot be recovered; empty where they can."""
    if run.asynchronous:
        return f"{run.arguments.title} updates asynchronously"
    if run.config.model.dropout_semantics == "native" and getattr(run.config.model, "dropout", 1.0) > 0:
        return f"{run.arguments.title} draws its own dropout masks"
    if run.config.optimizer.kind == "sgd" and not run.config.optimizer.momentum:
        return "SGD without momentum keeps nothing of its gradients"
    return ""


def compare_updates(
    runs: Mapping[str, tuple[Run, Side]], before_them: Sequence[Stage], rounding: Mapping[str, float]
) -> list[Stage]:
    """Each step of each side, by its own weights: the sum over its shards, and the update by the optimizer.

    before_them: the stages before, which get the causes that only an update shows. rounding: the norm of what it makes
    each gradient of the first step differ by.
    """
    earlier = {each.name: each for each in before_them}
    precision = next(run.precision for run, _ in runs.values())
    reduction, optimizer = Stage("reduction", precision=precision), Stage("optimizer")
    reduction.note = optimizer.note = next(filter(None, (_not_recovered(run) for run, _ in runs.values())), "")
    compared = {name: each for name, each in runs.items() if not _not_recovered(each[0])}
    before: dict[str, dict[str, np.ndarray]] = {}
    for index in range(max((len(run.states) - 1 for run, _ in compared.values()), default=0)):
        compared = {name: each for name, each in compared.items() if index < len(each[0].states) - 1}
        shards = {name: shards_of(run.batches[index], count_of_shards(run)) for name, (run, _) in compared.items()}
        computed = _gradients_of_shards(compared, shards, index)
        for name, (run, _) in compared.items():
            previous, now, step = run.states[index], run.states[index + 1], run.batches[index].step
            gradients = recovered(run.config, previous.slots, now.slots, previous.weights)
            weights = [sum(float(part["weights"].sum()) for part in shard) for shard in shards[name]]
            reported = float(run.rows[index]["grad_norm"])
            slots = rounded(run.config, previous.slots, now.slots)
            off = {each: slots[each] + rounding.get(each, 0.0) for each in slots}
            found = Reduction(
                run.config, step, computed[name], weights, gradients, before.get(name), reported, previous.weights, off
            )
            if unexplained(found):
                found = _trained_on_others(runs[name], index, found, earlier)
            compare_reduction(reduction, name, found)
            before[name] = found.summed
            update = Update(
                run.config, step, run.replicas, previous.weights, now.weights, previous.slots, now.slots, gradients
            )
            if not any(each.side == name and each.cause in OF_SLOTS for each in reduction.causes):
                compare_update(optimizer, name, update)
    return [reduction, optimizer]


def _trained_on_others(
    run_and_side: tuple[Run, Side], index: int, found: Reduction, earlier: Mapping[str, Stage]
) -> Reduction:
    """The reduction of the shards that a mistake makes, where these explain the update; the cause is named then."""
    run, side = run_and_side
    for each in mistakes(run, index):
        weights = run.states[index].weights
        gradients = [side.call("gradients", weights=weights, shard=shard, weight=each.weight) for shard in each.shards]
        other = replace(found, shards=gradients)
        if other.explains_update:
            stage, where = earlier[each.stage], f"step {found.step}"
            if not any((cause.cause, cause.side) == (each.cause, run.name) for cause in stage.causes):
                apart = relative(found.vector(found.summed) * found.scale, found.target)
                stage.checks.append(Check(f"{run.name.upper()}, {where}: {each.tensor} of the update", apart))
                stage.blame(each.cause, run.name, each.tensor, f"{where}: {run.name.upper()} {each.words}")
            return other
    return found


def _gradients_of_shards(
    runs: Mapping[str, tuple[Run, Side]], shards: Mapping[str, list[list[Arrays]]], index: int
) -> dict[str, list[dict[str, np.ndarray]]]:
    """By the weights that each run had before a step; both sides compute at once."""
    found: dict[str, list[dict[str, np.ndarray]]] = {name: [] for name in runs}
    for rank in range(max(map(len, shards.values()))):
        asked = [name for name in runs if rank < len(shards[name])]
        for name in asked:
            run, side = runs[name]
            weights, weight = run.states[index].weights, run.batches[index].weight
            side.send("gradients", weights=weights, shard=shards[name][rank], weight=weight)
        for name, each in zip(asked, received(*(runs[name][1] for name in asked)), strict=True):
            found[name].append(each)
    return found
