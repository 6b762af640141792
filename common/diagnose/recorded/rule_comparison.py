"""Comparison of recorded updates with the formulas of optimizers, with epsilon at each of its possible places.

A is the reference record of a diagnosis, and B the record that is compared with it. Slots are the optimizer's arrays.
"""

import math
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace

import numpy as np

from common.diagnose.explain.update_formula import CHANGE_EPSILONS, SMALLEST_ERROR
from common.diagnose.findings import Stage, TensorCheck
from common.diagnose.recorded.optimizer_settings import OptimizerSettings, read_optimizer_settings
from common.diagnose.recorded.rates import read_rates
from common.diagnose.recorded.record_pair import RecordPair
from common.diagnose.recorded.recorded_side import RecordedSide
from common.diagnose.recorded.recorded_updates import RecordedUpdate, list_updates, why_not_computed
from common.diagnose.rounding import MACHINE_EPSILON
from common.map.array_differences import relative_difference

# Relative rounding error of a squared gradient that a recorder of TensorFlow computes again beside the compiled step:
# other kernels compute it, in float32
KERNEL_ROUNDING = 160 * MACHINE_EPSILON["float32"]
SMALLEST_EFFECT = 0.01  # of a place of Adam's epsilon on an update, relative to its norm, if later gradients feel it
EQUAL_GRADIENTS = 0.01  # largest relative difference of gradients that are more than rounding errors
LARGE_EFFECT = 0.1  # of such a place, even if no later step feels it within the record
SUMS_OF_SQUARES = ("sum", "square_avg", "exp_avg_sq")  # slots of Adagrad, RMSprop and Nadam
ROW_TOLERANCE = 1e-4  # of rows, relative to the largest element
NOISE_SHARE = 0.01  # converts a tolerance to the noise of a check, because a check tolerates 100 times its noise


def compare_with_rule(stage: Stage, side: RecordedSide, recorded: RecordedUpdate) -> None:
    """Compare one side's weights and slots after an update with the values that its optimizer's formula gives."""
    update, algorithm = recorded.update, recorded.settings.algorithm
    place = f"{side.name.upper()}, step {update.step}"
    rounding = CHANGE_EPSILONS * update.machine_epsilon + (0 if side.is_torch else KERNEL_ROUNDING)
    slot_tolerance = max(SMALLEST_ERROR, rounding + update.scalar_error)
    checks = [TensorCheck(f"{place}: update", _measure_error(recorded), update.tolerance * NOISE_SHARE)]
    for slot in sorted({key.partition(".")[0] for key in recorded.recorded_slots}):
        keys = [key for key in recorded.expected_slots if key in recorded.recorded_slots and key.startswith(f"{slot}.")]
        expected_slots, recorded_slots = (
            np.concatenate([np.ravel(slots[key]) for key in keys])
            for slots in (recorded.expected_slots, update.slots_after)
        )
        difference = relative_difference(expected_slots, recorded_slots)
        checks.append(TensorCheck(f"{place}: slot {slot}", difference, slot_tolerance * NOISE_SHARE))
    stage.checks += checks
    differing = next((check for check in checks if check.differs), None)
    if differing is not None and (rows := find_repeated_rows(recorded)):
        name, count = rows
        sentence = f"repeated indices are squared one by one, in {count} rows of {name}'s sum of squares"
        stage.add_cause("repeated_indices", side.name, name, f"in {place}: {sentence}", confirmed=False)
    elif differing is not None:
        tensor = differing.tensor.partition(": ")[2]
        sentence = f"in {place}: the {tensor} is {differing.difference:.1e} off the formula of {algorithm}"
        stage.add_cause("optimizer", side.name, tensor, sentence, confirmed=False)


def find_repeated_rows(recorded: RecordedUpdate) -> tuple[str, int] | None:
    """Return a parameter only some of whose rows have another sum of squares than the formula gives, and their number.

    So does an optimizer of Keras with a sparse gradient, which has several values for an index that occurs repeatedly.
    """
    for key, expected in recorded.expected_slots.items():
        slot, _, name = key.partition(".")
        if slot not in SUMS_OF_SQUARES or expected.ndim != 2 or key not in recorded.recorded_slots:
            continue
        gaps = np.abs(recorded.update.slots_after[key] - expected).max(1)
        count = int((gaps > ROW_TOLERANCE * np.abs(expected).max()).sum())
        if 0 < count < len(expected):
            return name, count
    return None


def compare_epsilon_places(stage: Stage, pair: RecordPair, *, adam_effect: float | None = None) -> None:
    """Add a cause if A and B use the same algorithm, add the epsilon in different places, and that changes B's update.

    B's first update is computed as configured, and again with A's place.

    Args:
        stage: The stage "hyperparameters".
        pair: The records.
        adam_effect: The smallest effect of Adam's places that is a cause, relative to the norm of the update; None if
            Adam is left out: its two places differ only by a factor of the epsilon, which few training runs feel.
    """
    settings_b, with_places_of_a = read_optimizer_settings(pair.b), _read_with_places_of_a(pair)
    if adam_effect is None:
        with_places_of_a |= {name: b for name, b in settings_b.items() if b.algorithm == "adam"}
    changed = next((name for name in settings_b if with_places_of_a[name] != settings_b[name]), None)
    if changed is None or why_not_computed(pair.b):
        return
    (_, configured), (_, other) = (
        next(list_updates(pair.b, pair.steps, "float32", settings), (0, [])) for settings in (None, with_places_of_a)
    )
    if len(configured) != len(other):
        return
    names = None if adam_effect is None else _list_equal_gradients(pair)
    effect, tolerance = _measure_effect(configured, other, names)
    if effect > (tolerance if adam_effect is None else adam_effect):
        stage.add_mismatch("epsilon place")
        places = f"{with_places_of_a[changed].epsilon_place} in A and {settings_b[changed].epsilon_place} in B"
        sentence = f"the epsilon of {settings_b[changed].algorithm} is added {places}, which changes B's first update "
        sentence += f"by {effect:.1e} of its norm"
        stage.add_cause("epsilon_place", "b", "epsilon place", sentence, confirmed=adam_effect is None)


def explain_adam(pair: RecordPair) -> None:
    """Add the places of Adam's epsilon as a cause if they change the update, and nothing else explains a difference.

    Gradients of 1e-6 feel an epsilon of 1e-7. A smaller effect is a cause if it may be what later steps feel.
    """
    first = pair.find_first_difference("activations", "loss", "gradients", "state")
    if pair.steps[0] < first and not any(stage.causes for stage in pair.stages):
        effect = SMALLEST_EFFECT if first < math.inf else LARGE_EFFECT
        compare_epsilon_places(pair.get_stage("hyperparameters"), pair, adam_effect=effect)


def list_place_effects(pair: RecordPair) -> dict[int, dict[str, np.ndarray]]:
    """Return by how much B's weights would move further with A's places of the epsilon, by step and name.

    An element whose gradient is not much larger than the epsilon, such as 2e-5 for an epsilon of 1e-7, feels its place.
    """
    settings, with_places_of_a = read_optimizer_settings(pair.b), _read_with_places_of_a(pair)
    if settings == with_places_of_a or why_not_computed(pair.b):
        return {}
    effects: dict[int, dict[str, np.ndarray]] = {}
    sums: dict[str, np.ndarray] = {}
    both = (list_updates(pair.b, pair.steps, "float32", values) for values in (settings, with_places_of_a))
    for (step, configured), (_, other) in zip(*both, strict=True):
        weights, other_weights = (
            {name: array for update in updates for name, array in update.expected_weights.items()}
            for updates in (configured, other)
        )
        changes = {name: np.nan_to_num(other_weights[name] - array) for name, array in weights.items()}
        sums = sums | {name: sums.get(name, 0.0) + change for name, change in changes.items()}
        effects[step] = sums
    return effects


def compare_rate_places(stage: Stage, pair: RecordPair) -> None:
    """Add a cause if one side's momentum includes the learning rate, the other's does not, and the rate changes.

    A rate that is lower than in the step before shortens the whole step if the momentum does not include the rate.
    """
    settings = [read_optimizer_settings(side) for side in pair.sides]
    for match in pair.models.variables:
        a, b = settings[0].get(match.names_a[0]), settings[1].get(match.names_b[0])
        if a is None or b is None or a.algorithm != b.algorithm or not (a.momentum and b.momentum):
            continue
        rates = [read_rates(pair.b, step).get(match.names_b[0]) for step in pair.steps]
        if a.rate_inside_velocity == b.rate_inside_velocity or len({*rates} - {None}) < 2:
            continue
        inside, outside = ("A", "B") if a.rate_inside_velocity else ("B", "A")
        stage.add_mismatch("rate in the momentum")
        sentence = f"the momentum of {inside} includes the learning rate, and that of {outside} does not, which "
        sentence += f"matters when the rate changes: {outside} applies a new rate to earlier gradients too"
        stage.add_cause("rate_inside_velocity", "b", "rate in the momentum", sentence)
        return


def _read_with_places_of_a(pair: RecordPair) -> dict[str, OptimizerSettings]:
    """Return B's settings by parameter, with the place of A's epsilon if both use the same algorithm."""
    settings_a, settings_b = (read_optimizer_settings(side) for side in pair.sides)
    with_places_of_a = dict(settings_b)
    for match in pair.models.variables:
        a, b = settings_a.get(match.names_a[0]), settings_b.get(match.names_b[0])
        if a is not None and b is not None and a.algorithm == b.algorithm:
            with_places_of_a |= {
                name: replace(b, epsilon_place=a.epsilon_place) for name in match.names_b if name in settings_b
            }
    return with_places_of_a


def _list_equal_gradients(pair: RecordPair) -> set[str]:
    """Return B's variables whose first gradients are equal, and so no rounding errors, as those before a BatchNorm."""
    a, b = (side.gradients.read(pair.steps[0]) for side in pair.sides)
    names: set[str] = set()
    for match in pair.models.variables:
        gradient_a, gradient_b = match.read_a(a, is_gradient=True), match.read_b(b, is_gradient=True)
        if gradient_a is None or gradient_b is None or gradient_a.shape != gradient_b.shape:
            continue
        if relative_difference(gradient_a, gradient_b) < EQUAL_GRADIENTS:
            names.update(match.names_b)
    return names


def _measure_effect(
    configured: Sequence[RecordedUpdate], other: Sequence[RecordedUpdate], names: Collection[str] | None = None
) -> tuple[float, float]:
    """Return the changes of an update by other settings and by rounding alone, relative to the norm of the update.

    Args:
        configured: The update.
        other: The update with the other settings.
        names: The variables that count; None: all.
    """
    size = _norm(
        [x for recorded in configured for name, x in _list_changes(recorded) if names is None or name in names]
    )
    pairs = [(a.expected_weights, b.expected_weights) for a, b in zip(configured, other, strict=True)]
    difference = _norm([b[name] - a[name] for a, b in pairs for name in a if names is None or name in names])
    return difference / (size or np.inf), max((recorded.update.tolerance for recorded in configured), default=np.inf)


def _measure_error(recorded: RecordedUpdate) -> float:
    """Return the norm of recorded - expected weights, relative to the norm of the recorded changes."""
    size = _norm([change for _, change in _list_changes(recorded)])
    after, expected = recorded.update.weights_after, recorded.expected_weights
    difference = _norm([after[name] - expected[name] for name in expected])
    return difference / size if size else (0.0 if difference == 0 else np.inf)


def _list_changes(recorded: RecordedUpdate) -> Iterator[tuple[str, np.ndarray]]:
    for name, after in recorded.update.weights_after.items():
        yield name, after - recorded.update.weights_before[name]


def _norm(arrays: Sequence[np.ndarray]) -> float:
    """Return the norm of several arrays as one vector. NaN, which marks what rounding errors decide, is left out."""
    return float(np.sqrt(sum(float(np.nansum(np.square(array))) for array in arrays)))
