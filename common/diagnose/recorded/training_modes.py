"""Layers, such as dropout and BatchNorm, that only one of two scripts calls in evaluation mode.

A is the reference record of a diagnosis, and B the record that is compared with it.
"""

from common.diagnose.findings import Stage
from common.diagnose.layer_match import LayerMatch
from common.diagnose.recorded.layer_vocabulary import find_dropout_rate
from common.diagnose.recorded.record_pair import RecordPair
from common.diagnose.recorded.recorded_side import RecordedSide
from common.recording.record_format import LayerFacts

EVALUATION_MODE = "evaluation_mode"  # name of the cause


def compare_modes(stage: Stage, pair: RecordPair) -> None:
    """Find layers such as dropout and BatchNorm that are in evaluation mode on one side only."""
    for side, other in (pair.sides, pair.sides[::-1]):
        steps = [step for step in pair.steps if _is_in_evaluation(side, step) and not _is_in_evaluation(other, step)]
        if steps and steps[0] != pair.steps[0]:  # the layers show the mode of the first step
            stage.add_mismatch("mode")
            sentence = (
                f"in {side.name.upper()}, the model is in evaluation mode in step {steps[0]}: call model.train() "
            )
            stage.add_cause(EVALUATION_MODE, side.name, "mode", f"{sentence}after each evaluation")
            return
    if not (pair.a.layers and pair.b.layers):
        return
    for side, other in (pair.sides, pair.sides[::-1]):
        paths = _list_paths_in_evaluation(pair, side, other)
        if not paths:
            continue
        stage.add_mismatch("mode")
        name = side.name.upper()
        mistake = (
            f"in {name}, {paths[0]} is in evaluation mode" if side.is_training else f"{name} trains in evaluation mode"
        )
        advice = "call model.train() before each epoch" if side.is_torch else "call the model with training=True"
        if _is_frozen(side, paths[0]):
            advice = "trainable=False has this effect, whatever it is called with: freeze only its gamma and beta"
        sentence = f"{mistake}: {advice}; {paths[0]} computes something else"
        stage.add_cause(EVALUATION_MODE, side.name, "mode", sentence)


def moves_statistics(pair: RecordPair, layer: LayerMatch) -> bool:
    """Check whether a BatchNorm is in training mode in one script, so that its momentum has an effect."""
    sides = ((pair.a, layer.path_a), (pair.b, layer.path_b))
    return any(facts["training"] for side, path in sides for facts in side.layers if facts["path"] == path)


def _is_in_evaluation(side: RecordedSide, step: int) -> bool:
    return side.get_facts(step).get("evaluation_mode", False)


def _list_paths_in_evaluation(pair: RecordPair, side: RecordedSide, other: RecordedSide) -> list[str]:
    """Return the paths of a side's layers that depend on the mode and are in evaluation mode on this side only."""
    dependent = {layer["path"]: layer for layer in side.layers if _depends_on_mode(layer)}
    layers = {layer["path"]: layer for layer in other.layers}
    pairs = [(match.path_a, match.path_b) if side is pair.a else (match.path_b, match.path_a)
             for match in pair.models.layers]  # fmt: skip
    paired = {path: layers[of_other] for path, of_other in pairs if path in dependent and of_other in layers}
    paths = [path for path, layer in paired.items() if layer["training"] and not dependent[path]["training"]]
    unpaired = [path for path in dependent if path not in paired]
    return paths or (unpaired if other.is_training and not side.is_training else [])


def _is_frozen(side: RecordedSide, path: str) -> bool:
    """Check whether all variables of a BatchNormalization of Keras are frozen, as those of a frozen layer are."""
    variables = next(layer["variables"] for layer in side.layers if layer["path"] == path)
    scales = [variables[role] for role in ("gamma", "beta") if role in variables]
    return not side.is_torch and bool(scales) and side.trainable.isdisjoint(scales)


def _depends_on_mode(layer: LayerFacts) -> bool:
    return bool(find_dropout_rate(layer)) or "Batch" in layer["kind"]
