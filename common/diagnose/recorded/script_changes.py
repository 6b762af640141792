"""Find in a record what its script does to the gradients before it passes them to the optimizer.

The record has numbers with `received = factor * gradient + decay * weight` for each variable. A script may add the
decay before or after it clips the gradients: either the sum is clipped, or only the gradient.
"""

from collections.abc import Sequence
from functools import cached_property
from typing import NamedTuple

import numpy as np

from common.diagnose.recorded.recorded_gradients import SAME_FACTOR, Gradients, RecordedGradients
from common.diagnose.rounding import MACHINE_EPSILON
from common.map.array_differences import compute_norm
from common.recording.clip_factors import MIN_EXPLAINED_SIZE
from common.recording.record_reader import Record

SAME_DECAY = 0.02  # largest relative difference of two decays that are one constant of a script
LARGEST_ERROR = 0.1  # largest relative error of a decay that shows whether the script clips it
DIGITS = 4  # significant digits of a decay in a sentence
ERRORS = 8  # number of standard errors by which a decay may differ from another one


class DecayOfVariable(NamedTuple):
    """The decay that a script adds to the gradient of a variable in one step.

    Attributes:
        name: The name of the variable.
        decay: The multiple of the weights; 0 without decay.
        factor: The factor by which the script multiplied the gradient.
        error: The error of the decay that rounding causes.
    """

    name: str
    decay: float
    factor: float
    error: float


class ScriptChanges:
    """The changes of the gradients of a record."""

    def __init__(self, record: Record, gradients: RecordedGradients) -> None:
        self._record, self._gradients = record, gradients

    @cached_property
    def decays(self) -> dict[str, float]:
        """The multiple of the weights that the script adds, by variable. Variables that do not show it are left out."""
        best: dict[str, DecayOfVariable] = {}
        for sample in self._samples:
            divisor = sample.factor if self.is_decay_clipped else 1.0
            scaled = sample._replace(decay=sample.decay / divisor, error=sample.error / divisor)
            if sample.name not in best or scaled.error < best[sample.name].error:
                best[sample.name] = scaled
        constants: list[float] = []
        decays: dict[str, float] = {}
        for name, decay, _, error in sorted(best.values(), key=lambda sample: (not sample.decay, sample.error)):
            constant = next((x for x in constants if abs(x - decay) <= max(SAME_DECAY * abs(x), ERRORS * error)), None)
            if decay and constant is None and abs(decay) <= 2 * ERRORS * error:
                continue  # a rounding error may look like a decay
            if decay and constant is None:
                constant = float(f"{decay:.{DIGITS}g}")
                constants.append(constant)
            if decay or constant is None:
                decays[name] = constant or 0.0
        return decays

    @cached_property
    def is_decay_clipped(self) -> bool:
        """Return whether the script adds weight decay before it clips the gradients.

        The decays are then one constant if they are divided by the factors of the clipping. If all factors are the
        same, the norm of the clipped gradients shows it.
        """
        samples = [x for x in self._samples if x.decay and x.error < LARGEST_ERROR * abs(x.decay)]
        factors = np.array([sample.factor for sample in samples])
        if self._gradients.are_changed_by_script or not samples or np.allclose(factors, 1, rtol=SAME_FACTOR):
            return False
        if not np.allclose(factors, factors[0], rtol=10 * SAME_FACTOR):
            return _measure_spread(samples, factors) < _measure_spread(samples, np.ones(len(factors)))
        step = next(step for step in self._record.steps if any(self._get_numbers(step)[0].get(x.name) for x in samples))
        limit = self._record.get_step_facts(step)[0]["max_norm"]
        norms = [_global_norm(read(step)) for read in (self._gradients.read, self._gradients.read_without_decay)]
        return limit is not None and abs(norms[0] - limit) < abs(norms[1] - limit)

    def read_clipping(self, step: int) -> tuple[Gradients, Gradients]:
        """Return the gradients before and after the script clipped or masked them.

        Those before it are without the ones that it did not change, apart from weight decay.
        """
        before, after = self._gradients.read(step, "gradient_unclipped"), self._gradients.read_without_decay(step)
        factors, decays = self._get_numbers(step)
        if not decays:
            return before, after
        if self.is_decay_clipped:
            after = self._gradients.read(step)
            before |= {name: after[name] / np.float32(factors.get(name, 1.0)) for name in decays if name in after}
        left_out = {name for name in decays if abs(factors.get(name, 1.0) - 1) <= SAME_FACTOR}
        # A factor explains any change of a gradient with one element
        common = [factors.get(name, 1.0) for name, array in before.items() if array.size >= MIN_EXPLAINED_SIZE]
        left_out |= {
            name
            for name, array in before.items()
            if name not in decays and array.size < MIN_EXPLAINED_SIZE
            if not np.isclose(factors.get(name, 1.0), common, rtol=SAME_FACTOR).any()
        }
        return {name: array for name, array in before.items() if name not in left_out}, after

    @cached_property
    def _samples(self) -> list[DecayOfVariable]:
        """The decays of all variables and steps; none if the script adds no decay."""
        numbers = {step: self._get_numbers(step) for step in self._record.steps}
        if not any(decays for _, decays in numbers.values()):
            return []
        unexplained = {
            name for step in numbers for name in self._record.ranks[0].open_step(step).select("gradient_unclipped")
        }
        samples = []
        for step, (factors, decays) in numbers.items():
            weights = self._record.ranks[0].read_weights_before(step)
            for name, gradient in self._gradients.read(step).items():
                norm = compute_norm(weights[name]) if name in weights and name not in unexplained else 0.0
                if norm and (gradient.size >= MIN_EXPLAINED_SIZE or name in decays):
                    rounding = MACHINE_EPSILON["float64" if gradient.dtype == np.float64 else "float32"]
                    error = rounding * compute_norm(gradient) / np.sqrt(gradient.size) / norm
                    samples.append(DecayOfVariable(name, decays.get(name, 0.0), factors.get(name, 1.0), float(error)))
        return samples

    def _get_numbers(self, step: int) -> tuple[dict[str, float], dict[str, float]]:
        """Return the factors and the decays of a step."""
        facts = self._record.get_step_facts(step)[0]
        return facts.get("clip_factors", {}), facts.get("decays", {})


def _measure_spread(samples: Sequence[DecayOfVariable], divisors: np.ndarray) -> float:
    """Return the relative deviation of decays from their mean. divisors: what each decay is divided by."""
    decays = np.array([sample.decay for sample in samples]) / divisors
    weights = (divisors / np.array([sample.error for sample in samples])) ** 2
    mean = float((weights * decays).sum() / weights.sum())
    return float(np.sqrt((weights * (decays - mean) ** 2).sum() / weights.sum())) / abs(mean or 1.0)


def _global_norm(gradients: Gradients) -> float:
    return float(np.sqrt(sum(compute_norm(array) ** 2 for array in gradients.values())))
