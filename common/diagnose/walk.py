"""Walk the ladder: from two trained runs to what differs first, and why."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from common.config.models import CustomModelSettings
from common.config.strategies import PACKAGES
from common.diagnose.arguments import SideArguments
from common.diagnose.drift import Drift
from common.diagnose.findings import DIFFERS, EQUAL, NOT_COMPARED, Diagnosis, Stage
from common.diagnose.from_run import quoted
from common.diagnose.observation import LayerPair, Model
from common.diagnose.rounding import UNITS, at_least_float32, disturbed, noise
from common.diagnose.side_run import Run, train
from common.diagnose.stages.activations import calls_for, compare_layers, disturbed_calls
from common.diagnose.stages.batch import compare_batches, compare_configs, compare_weights, config_differences, untied
from common.diagnose.stages.loss import compare_gradients, compare_losses
from common.diagnose.stages.state import compare_dropout, compare_evaluations, compare_states
from common.diagnose.stages.updates import compare_updates
from common.map.proof import SMALL, received
from common.map.side import Side

IDLE = 1e-10  # of the largest gradient: what is nothing but rounding


def diagnose(sides: Sequence[SideArguments], output: Path) -> Diagnosis:
    """Train both sides for a few steps and compare them. Raises UserError."""
    a, b = train(sides, output)
    titles = {each.name: each.arguments.title for each in (a, b)}
    stages = [compare_configs(a, b)]
    if differences := config_differences(a, b):  # the rest of the ladder compares B as it would be with A's values
        b = _with(b, {key: value for key, (value, _) in differences.items()}, output)
    stages += [compare_batches(a, b), compare_weights(a, b)]
    if any(each.cause == "missing_array" for each in stages[1].causes):  # no model takes both batches
        return Diagnosis(titles, stages, precision=a.precision)
    with (
        Side(PACKAGES[a.arguments.framework], "observed_model") as ours,
        Side(PACKAGES[b.arguments.framework], "observed_model") as theirs,
    ):
        ours.send("build", run_dir=str(a.directory))
        theirs.send("build", run_dir=str(b.directory))
        received(ours, theirs)
        pairs = _pairs(a, b, ours.call("layers"), theirs.call("layers"))
        found, gradients, rounding = _compare_models(a, b, ours, theirs, pairs)
        stages += found
        stages += compare_updates({"a": (a, ours), "b": (b, theirs)}, stages, rounding)
    norms = {name: float(np.linalg.norm(each)) for name, each in gradients.items()}
    idle = {name for name, norm in norms.items() if norm < IDLE * max(norms.values())}
    began = any(each.verdict == DIFFERS for each in stages[1:])
    drift = Drift(a, gradients, rounding)
    states = compare_states(a, b, began, idle, drift)
    began = began or states.verdict == DIFFERS
    stages += [states, compare_evaluations(a, b, began, drift)]
    if not _differ(stages[1:]):  # with A's values B is A
        stages[0].causes = [replace(each, confirmed=True) for each in stages[0].causes]
    for stage in stages:
        stage.note = stage.note or stage.lost
    return Diagnosis(titles, stages, _unpaired(a, b, pairs), a.precision)


def _with(b: Run, values: dict[str, Any], output: Path) -> Run:
    """B trained again with other values of some keys."""
    overrides = [f"++{key}={quoted(value)}" for key, value in values.items()]
    own = [each for each in b.arguments.overrides if not each.startswith("run_dir=")]
    kept = [each for each in own if each.partition("=")[0].lstrip("+") not in values]
    overrides = [*kept, *overrides, f"run_dir={(output / 'b').absolute()}"]
    return train([replace(b.arguments, overrides=overrides)], output)[0]


def _compare_models(
    a: Run, b: Run, ours: Side, theirs: Side, pairs: Sequence[LayerPair]
) -> tuple[list[Stage], dict[str, np.ndarray], dict[str, float]]:
    """From A's weights and A's first batch on both sides: layers, loss, gradients and dropout.

    Returns A's gradients too, and the norm of what rounding makes each differ by.
    """
    batch, weights = a.batches[0], a.states[0].weights
    shard, precision = batch.shard(0, 1), a.precision
    one_framework = a.arguments.framework == b.arguments.framework
    noisy_weights, last_place = (
        {name: disturbed(each, unit, seed) for seed, (name, each) in enumerate(weights.items())}
        for unit in (UNITS[precision], UNITS[at_least_float32(precision)])
    )
    computed = {}
    stages: list[Stage] = []
    for training in (False, True):
        first = ours.call("compute", weights=weights, shard=shard, weight=batch.weight, training=training)
        ours.send("compute", weights=noisy_weights, shard=shard, weight=batch.weight, training=training)
        theirs.send("compute", weights=_known(weights, b), shard=shard, weight=batch.weight, training=training)
        noisy, second = received(ours, theirs)
        given, own = calls_for(pairs, first, second), disturbed_calls(pairs, first, seed=len(weights))
        shared = {"shard": shard, "weight": batch.weight, "training": training}
        theirs.send("compute", weights=_known(weights, b), given=given, **shared)
        ours.send("compute", weights=last_place, given=own, **shared)
        alone, replayed = received(ours, theirs)
        computed[training] = Model(
            first, noisy, alone, second, replayed, pairs, shard[0], weights, precision, one_framework
        )
        if not training or _has_statistics(a):
            name = "activations in training mode" if training else "activations"
            stage = compare_layers(name, computed[training])
            known = {(each.cause, each.tensor) for before in stages for each in before.causes}
            stage.causes = [each for each in stage.causes if (each.cause, each.tensor) not in known]
            stages.append(stage)
    model, trained, labels = computed[False], computed[True], shard[0]["labels"]
    dropout = compare_dropout(a, b, trained.a, trained.b, trained.disturbed, _differ(stages))
    given_outputs = theirs.call("losses", outputs=model.a.outputs[0], labels=labels)
    stages.append(compare_losses(model.a, model.b, model.disturbed, labels, given_outputs, precision, model.alone))
    stages.append(compare_gradients(model.a, model.b, model.disturbed, _differ(stages), untied(a, b), precision))
    return [*stages, dropout], trained.a.gradients, _rounding(trained, precision)


def _rounding(trained: Model, precision: str) -> dict[str, float]:
    """The norm of what rounding makes each gradient differ by, a unit in the last place at least."""
    gradients = trained.a.gradients
    largest = max((float(np.linalg.norm(each)) for each in gradients.values()), default=0.0)
    found = {}
    for name, each in gradients.items():
        size = max(float(np.linalg.norm(each)), SMALL * largest)
        found[name] = size * max(UNITS[precision], noise(each, trained.disturbed.gradients[name], least=size))
    return found


def _differ(stages: Sequence[Stage]) -> bool:
    return any(each.verdict not in (EQUAL, NOT_COMPARED) for each in stages)


def _pairs(a: Run, b: Run, ours: dict[str, str], theirs: dict[str, str]) -> list[LayerPair]:
    """Layers that hold the same parameters."""
    if isinstance(a.config.model, CustomModelSettings):
        layers = a.prepared.initial.hf_config["layers"]
        if layers:
            x, y = a.arguments.framework, b.arguments.framework
            return [
                LayerPair(
                    each["kind"],
                    each["torch"],
                    each[x],
                    each[y],
                    (each["settings"][x], each["settings"][y]),
                )
                for each in layers
            ]
    found: dict[str, tuple[str, str]] = {}
    for name in ours:
        if name in theirs:
            found.setdefault(name.rpartition(".")[0], (ours[name], theirs[name]))
    return [LayerPair("", name, *paths) for name, paths in found.items()]


def _unpaired(a: Run, b: Run, pairs: Sequence[LayerPair]) -> list[str]:
    """Parameters that no pair of layers has."""
    names = {each.name for each in pairs}
    return [each for each in a.states[0].weights if not any(each.startswith(f"{name}.") for name in names)]


def _known(weights: dict[str, np.ndarray], b: Run) -> dict[str, np.ndarray]:
    """Those that B has, and B's own where A lacks them."""
    own = b.states[0].weights
    return {
        name: weights[name] if name in weights and weights[name].shape == own[name].shape else own[name] for name in own
    }


def _has_statistics(run: Run) -> bool:
    return any(name.endswith(("running_mean", "moving_mean")) for name in run.states[0].weights)
