"""The stage "hyperparameters": optimizer, schedule, loss function and layers, in one vocabulary for both frameworks.

A is the reference record of a diagnosis, and B the record that is compared with it.
"""

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import fields

from common.diagnose.explain.update_settings import INSIDE_ROOT
from common.diagnose.findings import Stage, TensorCheck
from common.diagnose.recorded.clipping import compare_clipping
from common.diagnose.recorded.layer_epsilons import compare_own_epsilons
from common.diagnose.recorded.layer_vocabulary import find_dropout_rate, translate_attributes
from common.diagnose.recorded.losses.loss_settings import compare_loss_settings
from common.diagnose.recorded.losses.regularizers import DECAY_PENALTY, compare_regularizers, read_regularizers
from common.diagnose.recorded.optimizer_settings import OUTSIDE_ROOT, OptimizerSettings, read_optimizer_settings
from common.diagnose.recorded.rates import compare_rates
from common.diagnose.recorded.record_pair import RecordPair
from common.diagnose.recorded.rule_comparison import compare_epsilon_places, compare_rate_places
from common.diagnose.recorded.stages.script_decays import (
    are_decays_penalties,
    find_side_with_penalty,
    have_equal_decays,
    pair_settings,
    read_declared_decays,
)
from common.diagnose.recorded.training_modes import compare_modes, moves_statistics
from common.map.array_differences import list_different_settings
from common.recording.record_format import ROOT

# Fields of OptimizerSettings that follow from the framework, and that no script can set
FIXED_SETTINGS = ("epsilon_place", "rate_inside_velocity", "rounds_scalars")
NOT_TRAINED = "not_trained"  # name of the cause that a variable is frozen on one side only
DECLARED_DECAY = "weight_decay with L2 regularizers"  # the setting that both together are
DECIDING = re.compile(r"act|drop|scal|heads|window|theta|pool|position")  # attributes that decide a model's outputs
SHOWN_BY_LAYERS = re.compile(r"eps|norm|momentum")  # attributes that are compared at the layers themselves
LAYER_CAUSES = {  # name of the cause by the setting
    name: "activation" for name in ("approximate", "negative_slope", "activation", "recurrent_activation")
}
LEAST_DECAY = 1e-7  # largest weight decay that float32 hardly adds to a weight or its gradient
LISTED = 3  # number of parameters that a sentence names
Values = Sequence[object]  # the value in A and the value in B


def compare_hyperparameters(pair: RecordPair) -> Stage:
    """Compare all hyperparameters. Each that differs is a cause; the stage "optimizer" may confirm it."""
    stage = Stage("hyperparameters")
    stage.checks.append(TensorCheck("optimizer, schedule, loss function and layers", 0.0))
    _compare_parameters(stage, pair)
    count = len(stage.causes)
    _compare_optimizers(stage, pair)
    compare_epsilon_places(stage, pair)
    compare_rate_places(stage, pair)
    compare_rates(stage, pair)
    _compare_skipped_steps(stage, pair)
    compare_clipping(stage, pair)
    pair.update_causes = frozenset({cause.cause for cause in stage.causes[count:]} - {DECAY_PENALTY})
    compare_loss_settings(stage, pair)
    compare_regularizers(stage, pair)
    _compare_layers(stage, pair)
    pair.has_decays_as_penalties = are_decays_penalties(pair)
    return stage


def _compare_parameters(stage: Stage, pair: RecordPair) -> None:
    """Find parameters that only one side trains. The other side freezes or ties them, or the optimizer lacks them."""
    facts = [side.optimizer for side in pair.sides]
    for index, (side, other) in enumerate(((pair.a, pair.b), (pair.b, pair.a))):
        optimizer, other_optimizer = facts[index], facts[1 - index]
        if optimizer is None or other_optimizer is None:
            continue
        if not any(group["parameters"] for group in optimizer["groups"]):
            continue  # the recorder has seen no gradient, which shows the parameters of a Keras optimizer
        for key, cause, words in (
            ("frozen", NOT_TRAINED, "is frozen"),
            ("missing", "missing_in_optimizer", "is not among the parameters of the optimizer"),
        ):
            names = [name for name in optimizer[key] if _is_trained(pair, index, name)]  # type: ignore[literal-required]
            if names:
                listed = ", ".join(names[:LISTED]) + (f" and {len(names) - LISTED} more" if len(names) > LISTED else "")
                stage.add_mismatch(names[0])
                sentence = f"{listed}: {words} in {side.name.upper()}, and trained in {other.name.upper()}"
                stage.add_cause(cause, side.name, names[0], sentence)
    if pair.a.is_torch == pair.b.is_torch:
        _compare_ties(stage, pair)


def _is_trained(pair: RecordPair, index: int, name: str) -> bool:
    """Check whether the counterpart of a variable of side 0 or 1 has gradients and is updated on the other side.

    Return False for a term of a sum if another term of the sum is trained, because the sum is then trained.
    """
    side, other = pair.sides[index], pair.sides[1 - index]
    used = pair.find_used(other)
    settings = {name for name in read_optimizer_settings(other) if used is None or name in used}
    for match in pair.models.variables:
        names, counterparts = (match.names_a, match.names_b) if index == 0 else (match.names_b, match.names_a)
        if name in names and match.is_sum and not side.trainable.isdisjoint(names):
            return False
        if name in names:
            return any(counterpart in settings and counterpart in other.trainable for counterpart in counterparts)
    return False


def _compare_ties(stage: Stage, pair: RecordPair) -> None:
    models = [side.record.facts["model"] for side in pair.sides]
    if models[0] is None or models[1] is None:
        return
    tied = [{frozenset(names) for names in model["tied"]} for model in models if model is not None]
    for index, side in enumerate(pair.sides):
        for names in tied[index] - tied[1 - index]:
            other = pair.sides[1 - index]
            listed = " and ".join(sorted(names))
            stage.add_mismatch(listed)
            sentence = f"{listed} are tied in {side.name.upper()} only: {other.name.upper()} trains them separately"
            stage.add_cause("tied_on_one_side", other.name, sorted(names)[0], sentence)


def _compare_optimizers(stage: Stage, pair: RecordPair) -> None:
    """Compare the settings of each pair of parameters. The same difference of several pairs is one cause."""
    paired = pair_settings(pair)
    pair.compares_directions = have_equal_decays(pair, paired)
    if pair.compares_directions and (side := find_side_with_penalty(pair, paired)):
        sentence = f"the loss of {side.upper()} has the weight decay of the other side's optimizer as a penalty: the "
        stage.add_mismatch("weight_decay")
        stage.add_cause(DECAY_PENALTY, side, "weight_decay", f"{sentence}losses differ by it, and the updates do not")
    declared = read_declared_decays(pair, paired)
    has_regularizers = any(read_regularizers(side) for side in pair.sides)
    has_other_sums = has_regularizers and any(len({*decays}) > 1 for decays in declared.values())
    is_decoupled = any(x.decay_matters and x.is_decoupled for _, a, b in paired for x in (a, b))
    differences: dict[tuple[str, str, str], list[str]] = {}
    for match, a, b in paired:
        for name, values in _list_differences(a, b):
            if name == "weight_decay" and pair.compares_directions:
                continue
            if name == "weight_decay" and has_regularizers and len({*declared[match.title]}) > 1:
                name, values = DECLARED_DECAY, declared[match.title]
            elif name == "weight_decay" and has_other_sums and not is_decoupled:
                continue  # a regularizer has the effect of the other side's decay
            differences.setdefault((name, str(values[0]), str(values[1])), []).append(match.title)
    compared = len(paired)
    have_decay = [any(settings[side].decay_matters for _, *settings in paired) for side in (0, 1)]
    for (name, value_a, value_b), titles in differences.items():
        is_partial = len(titles) < compared and all(have_decay)
        cause, side = _name_cause(name, value_a, value_b, is_partial)
        parameters = "" if len(titles) == compared else f" for {', '.join(titles[:LISTED])}"
        if len(titles) > LISTED and parameters:
            parameters += f" and {len(titles) - LISTED} more"
        stage.add_mismatch(name)
        sentence = f"the optimizer's {name.replace('_', ' ')} is {value_a} in A and {value_b} in B{parameters}"
        adding = [x.name.upper() for x in pair.sides if x.changes.decays] if "decay" in name else []
        sentence += f": the script of {' and of '.join(adding)} adds it to the gradients" if adding else ""
        stage.add_cause(cause, side, name, sentence, confirmed=False)
    clipping_decay = [side.name for side in pair.sides if side.changes.is_decay_clipped]
    if len(clipping_decay) == 1 and all(have_decay) and not pair.compares_directions:
        name, counterpart = ("A", "B") if clipping_decay[0] == "a" else ("B", "A")
        stage.add_mismatch("place of the weight decay")
        sentence = f"{name} adds the weight decay to the gradients before it clips them, and {counterpart} afterwards"
        stage.add_cause("decay_before_clipping", clipping_decay[0], "weight_decay", sentence)


def _list_differences(a: OptimizerSettings, b: OptimizerSettings) -> Iterator[tuple[str, Values]]:
    """Yield the names and values of the settings that differ and decide an update."""
    if a.algorithm != b.algorithm:
        yield "algorithm", (a.algorithm, b.algorithm)
        return
    for entry in fields(OptimizerSettings):
        values = getattr(a, entry.name), getattr(b, entry.name)
        if entry.name in (*FIXED_SETTINGS, "clipping") or values[0] == values[1]:
            continue  # `compare_clipping` also knows the clipping of scripts
        if entry.name == "epsilon" and _have_equal_epsilons(a, b):
            continue
        if entry.name == "is_decoupled":
            if min(a.weight_decay, b.weight_decay) > LEAST_DECAY and not (a.algorithm == "sgd" and not a.momentum):
                yield "weight decay", tuple("decoupled" if value else "part of the gradient" for value in values)
        elif entry.name == "nesterov" and not (a.momentum and b.momentum):
            continue
        elif entry.name == "averaging":
            yield "ema", tuple("none" if x is None else f"{x[0]:g}, written every {x[1]} steps" for x in values)
        else:
            yield entry.name, values


def _have_equal_epsilons(a: OptimizerSettings, b: OptimizerSettings) -> bool:
    """Check whether epsilons have one size, of which one is within a root and the other outside: e is sqrt(e^2)."""
    if {a.epsilon_place, b.epsilon_place} != {INSIDE_ROOT, OUTSIDE_ROOT}:
        return False
    size_a, size_b = (x.epsilon**0.5 if x.epsilon_place == INSIDE_ROOT else x.epsilon for x in (a, b))
    return math.isclose(size_a, size_b, rel_tol=1e-6)


def _name_cause(name: str, value_a: str, value_b: str, is_partial: bool) -> tuple[str, str]:
    """Return the name of the cause and the side that has it."""
    if name == "weight decay":
        return "weight_decay_coupled", "b" if value_b == "part of the gradient" else "a"
    if name in ("weight_decay", DECLARED_DECAY):
        if is_partial:
            return "weight_decay_on_biases", "b" if float(value_a) == 0 else "a"
        return ("no_weight_decay", "b") if float(value_b) == 0 else ("weight_decay", "b")
    return {"algorithm": "optimizer"}.get(name, name), "b"


def _compare_skipped_steps(stage: Stage, pair: RecordPair) -> None:
    """Compare which updates a gradient scaler left out."""
    for step in pair.steps:
        facts = [side.get_facts(step) for side in pair.sides]
        if facts[0]["skipped"] != facts[1]["skipped"]:
            side = "b" if facts[1]["skipped"] else "a"
            stage.add_mismatch(f"step {step}: skipped")
            sentence = (
                f"step {step}: the gradient scaler of {side.upper()} leaves the update out: the gradients overflowed"
            )
            stage.add_cause("step_skipped", side, "update", sentence)
            return


def _compare_layers(stage: Stage, pair: RecordPair) -> None:
    """Compare the settings of paired layers, the lists of dropout rates, and the training mode."""
    for layer in pair.models.layers:
        if not layer.kind and pair.a.is_torch == pair.b.is_torch:
            continue  # `_compare_unpaired_layers` compares layers without variables of one framework
        settings = list_different_settings(layer.settings_a, layer.settings_b)
        momenta = layer.settings_a.get("momentum"), layer.settings_b.get("momentum")
        if layer.kind == "batch norm" and _are_other_momenta(momenta) and moves_statistics(pair, layer):
            settings.append(("momentum", *momenta))
        for name, value_a, value_b in settings:
            if name == "padding" and isinstance(value_a, str) != isinstance(value_b, str):
                continue  # Keras names the padding, PyTorch counts it; the activations decide
            if name == "go_backwards" and pair.a.is_torch != pair.b.is_torch:
                continue  # PyTorch's script may flip the sequence; the activations decide
            stage.add_mismatch(f"{layer.title}: {name}")
            sentence = f"{layer.title}: {name} is {value_a} in A and {value_b} in B"
            stage.add_cause(name if name != "momentum" else "moving_statistics", "b", layer.title, sentence, False)
    compare_own_epsilons(stage, pair)
    rates = [[rate for layer in side.layers if (rate := find_dropout_rate(layer))] for side in pair.sides]
    if rates[0] != rates[1] and all(side.is_training for side in pair.sides):
        stage.add_mismatch("dropout rates")
        listed = [", ".join(f"{rate:g}" for rate in side_rates) or "none" for side_rates in rates]
        sentence = f"the rates of dropout are {listed[0]} in A and {listed[1]} in B"
        stage.add_cause("dropout_rate", "b", "dropout", sentence)
    compare_modes(stage, pair)
    if pair.a.is_torch == pair.b.is_torch:
        _compare_model_config(stage, pair)
        _compare_unpaired_layers(stage, pair)


def _are_other_momenta(momenta: Sequence[object]) -> bool:
    """Check whether two momenta differ by more than the rounding of 1 - momentum."""
    numbers = [float(x) for x in momenta if isinstance(x, int | float)]
    return len(numbers) == 2 and not math.isclose(*numbers, rel_tol=1e-9)


def _compare_unpaired_layers(stage: Stage, pair: RecordPair) -> None:
    """Compare the settings of layers without variables, such as activations, by their paths in one framework."""
    paired = {layer.path_a for layer in pair.models.layers if layer.kind}
    layers_b = {layer["path"]: layer for layer in pair.b.layers}
    for layer in pair.a.layers:
        other, path = layers_b.get(layer["path"]), layer["path"]
        if path in paired or other is None or other["kind"] != layer["kind"]:
            continue
        a, b = (translate_attributes(facts, pair.a.is_torch) for facts in (layer, other))
        for name, value_a, value_b in list_different_settings(a, b):
            stage.add_mismatch(f"{path}: {name}")
            sentence = f"{path}: {name} is {value_a} in A and {value_b} in B"
            stage.add_cause(LAYER_CAUSES.get(name, name), "b", path, sentence, confirmed=False)


def _compare_model_config(stage: Stage, pair: RecordPair) -> None:
    """Compare what the models themselves declare, such as the activation in the config of transformers."""
    roots = [{layer["path"]: layer["attributes"] for layer in side.layers}.get(ROOT, {}) for side in pair.sides]
    has_dropout_cause = any(cause.cause == "dropout_rate" for cause in stage.causes)
    for name, value in roots[0].items():
        is_shown_by_layers = SHOWN_BY_LAYERS.search(name) or (has_dropout_cause and "drop" in name)
        if DECIDING.search(name) and not is_shown_by_layers and value != roots[1].get(name, value):
            stage.add_mismatch(name)
            sentence = f"the model's {name} is {value} in A and {roots[1][name]} in B"
            stage.add_cause(name, "b", name, sentence, confirmed=False)
