"""The drift of the weights: the distance that rounding errors alone may move them in a few training steps.

Two runs whose weights differ by no more than the drift count as equal.
"""

from collections.abc import Mapping

import numpy as np

from common.config.optimizers import (
    AdadeltaSettings,
    AdafactorSettings,
    AdagradSettings,
    AdamaxSettings,
    MuonSettings,
    OptimizerSettings,
    RmspropSettings,
    SgdSettings,
)
from common.diagnose.side_run import SideRun
from common.map.array_differences import compute_norm
from common.training.layout_rules import NEWTON_SCHULZ
from common.training.schedule import compute_learning_rate, find_update_settings


class RoundingDrift:
    """The distance that rounding errors in the gradients may move a run's weights, added up over the steps.

    Adam divides the gradient of an element by its own size. An element whose gradient holds only rounding errors
    therefore moves at random, by at most the learning rate in each step.
    """

    def __init__(self, run: SideRun, gradients: Mapping[str, np.ndarray], gradient_noise: Mapping[str, float]) -> None:
        """Compute the drift after each step of a run.

        Args:
            run: The run whose weights drift.
            gradients: Gradients of the run's first step, by parameter.
            gradient_noise: Norm of the rounding error of each of these gradients; taken for the later steps too.
        """
        self._gradient_norms = _norms(gradients)
        self._weight_norms = [_norms(state.weights) for state in run.states]
        self._drift_norms = [dict.fromkeys(gradient_noise, 0.0)]
        drift: dict[str, np.ndarray | float] = {}
        for batch, state in zip(run.batches, run.states[1:], strict=False):
            rate, settings = compute_learning_rate(run.config, batch.step), find_update_settings(run.config, batch.step)
            for name, noise in gradient_noise.items():
                weight = state.weights[name]
                noise_per_element = noise / weight.size**0.5
                keys = {slot: f"{slot}.{name}" for slot in run.config.optimizer.slots}
                slots = {slot: state.slots[key] for slot, key in keys.items() if key in state.slots}
                change = _compute_change(settings, noise_per_element, slots, batch.step)
                if isinstance(settings, AdafactorSettings):  # its steps are relative to the weights
                    change *= max(settings.epsilon2, compute_norm(weight) / weight.size**0.5)
                drift[name] = drift.get(name, 0.0) + rate * np.broadcast_to(change, weight.shape)
            self._drift_norms.append({name: compute_norm(distance) for name, distance in drift.items()})

    def compute_weight_drift(self, steps: int, name: str) -> float:
        """Return the norm of a weight's drift after `steps` steps, relative to the weight's norm.

        A moving statistic has no gradient, but depends on all parameters: its drift is that of all parameters as one
        vector.
        """
        drift, weights = self._drift_norms[steps], self._weight_norms[steps]
        if name in drift:
            return drift[name] / weights[name] if weights[name] else 0.0
        total_weight = compute_norm([weights[parameter] for parameter in drift])
        return compute_norm([*drift.values()]) / (total_weight or 1.0)

    def compute_loss_drift(self, steps: int, loss: float) -> float:
        """Return how far the weights' drift after `steps` steps may move a loss, relative to the loss."""
        change = sum(self._gradient_norms[name] * distance for name, distance in self._drift_norms[steps].items())
        return change / abs(loss) if loss else 0.0


def _norms(arrays: Mapping[str, np.ndarray]) -> dict[str, float]:
    return {name: compute_norm(array) for name, array in arrays.items()}


def _compute_change(
    settings: OptimizerSettings, noise: float, slots: Mapping[str, np.ndarray], step: int
) -> np.ndarray | float:
    """Return how far an update moves each element by noise in its gradient, before the learning rate.

    SGD moves it over all steps in which the momentum keeps the noise. The other optimizers divide by a size of the
    gradient, so an element moves by 1 at most.
    """
    if not slots:  # SGD without momentum, or a parameter that is not trained
        return noise
    momentum = 0.0 if isinstance(settings, MuonSettings) else settings.momentum  # only its matrices have one
    epsilon, rest = settings.epsilon or 0.0, 1 - (momentum or 0.0)
    match settings:
        case SgdSettings():
            return noise / rest
        case AdamaxSettings():
            size = slots["exp_inf"]
        case RmspropSettings(centered=centered):
            mean = slots["grad_avg"] if centered else 0.0
            size = np.sqrt(np.maximum(slots["square_avg"] - np.square(mean), 0.0))
        case AdagradSettings():
            size = np.sqrt(slots["sum"])
        case AdadeltaSettings():
            size = np.sqrt((slots["square_avg"] + epsilon) / (slots["acc_delta"] + epsilon))
        case AdafactorSettings():
            variance = slots.get("variance")
            if variance is None:
                rows = slots["row_var"]
                variance = rows * slots["col_var"] / np.maximum(rows.mean(-2, keepdims=True), epsilon)
            size = np.sqrt(np.maximum(variance, epsilon**2))
        case MuonSettings() if "momentum_buffer" in slots:
            norm = compute_norm(slots["momentum_buffer"])
            gain = NEWTON_SCHULZ[0] ** settings.ns_steps  # by which the iterations multiply a small singular value
            return min(1.0, gain * noise / norm) if norm else 0.0
        case _:
            size = np.sqrt(slots["exp_avg_sq"] / (1 - (settings.beta2 or 0.0) ** step))
    change = np.minimum(1.0, noise / np.where(size > 0, size + epsilon, 1.0)) / rest
    return np.where(size > 0, change, 0.0)
