"""The drift of the weights: how far rounding errors alone may move them in a few training steps.

The diagnosis tolerates a multiple of the drift, NOISE_FACTOR of common.diagnose.rounding. The multiple also covers what
is left out here: the learning-rate factors of parameter groups and of Muon.
"""

from collections.abc import Mapping

import numpy as np

from common.config.layout_optimizers import AdafactorSettings, MuonSettings
from common.config.optimizer_settings import OptimizerSettings
from common.config.optimizers import AdadeltaSettings, AdagradSettings, AdamaxSettings, RmspropSettings, SgdSettings
from common.diagnose.side_run import SideRun
from common.map.array_differences import compute_norm
from common.training.layout_rules import NEWTON_SCHULZ
from common.training.schedule import compute_learning_rate, find_update_settings


class RoundingDrift:
    """Estimate how far rounding errors in the gradients may move a run's weights, added up over the steps.

    Adam divides the gradient of an element by its own size. An element whose gradient holds only rounding errors
    therefore moves at random, by at most the learning rate in each step.
    """

    def __init__(self, run: SideRun, gradients: Mapping[str, np.ndarray], gradient_noise: Mapping[str, float]) -> None:
        """Compute the drift after each step of a run.

        Args:
            run: The run whose weights drift.
            gradients: Gradients of the run's first step, by parameter.
            gradient_noise: Norm of the rounding error of each of these gradients, which is assumed for later steps too.
        """
        self._gradient_norms = _compute_norms(gradients)
        self._weight_norms = [_compute_norms(state.weights) for state in run.states]
        self._drift_norms = [dict.fromkeys(gradient_noise, 0.0)]
        drift: dict[str, np.ndarray | float] = {}
        # A run that ended early and an asynchronous run have fewer states than batches. `settings` have the momentum
        # that the schedule sets for the step.
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
                if (layout := settings.find_layout(name)) is not None and np.ndim(
                    change
                ):  # the slots, and so the change, have the layout
                    change = layout.to_torch(np, change, weight.shape)
                drift[name] = drift.get(name, 0.0) + rate * np.broadcast_to(change, weight.shape)
            self._drift_norms.append({name: compute_norm(distance) for name, distance in drift.items()})

    def compute_weight_drift(self, steps: int, name: str) -> float:
        """Return the norm of a weight's drift after `steps` steps, relative to the weight's norm.

        A moving statistic has no gradient, but depends on all parameters, so its drift is the drift of all parameters
        together, as one vector.
        """
        drift, weights = self._drift_norms[steps], self._weight_norms[steps]
        if name in drift:
            return drift[name] / weights[name] if weights[name] else 0.0
        total_weight = compute_norm([weights[parameter] for parameter in drift])
        return compute_norm([*drift.values()]) / (total_weight or 1.0)

    def compute_loss_drift(self, steps: int, loss: float) -> float:
        """Return the change of a loss that the weights' drift after `steps` steps may cause, relative to the loss."""
        change = sum(self._gradient_norms[name] * distance for name, distance in self._drift_norms[steps].items())
        return change / abs(loss) if loss else 0.0


def _compute_norms(arrays: Mapping[str, np.ndarray]) -> dict[str, float]:
    return {name: compute_norm(array) for name, array in arrays.items()}


def _compute_change(
    settings: OptimizerSettings, noise_per_element: float, slots: Mapping[str, np.ndarray], step: int
) -> np.ndarray | float:
    """Return the change of each element by an update if its gradient is only noise, without the learning rate.

    With SGD, noise moves an element by noise / (1 - momentum) in total. The other optimizers divide the gradient by an
    average of its size, so the quotient is limited to 1. The formulas follow the update rules in common/training.
    """
    if not slots:  # SGD without momentum, or a parameter that is not trained
        return noise_per_element
    # Muon's momentum applies only to matrices, which have their own case below; other parameters are updated by AdamW.
    momentum = 0.0 if isinstance(settings, MuonSettings) else settings.momentum or 0.0
    epsilon, momentum_gain = settings.epsilon or 0.0, 1 / (1 - momentum)
    match settings:
        case SgdSettings():
            return noise_per_element * momentum_gain
        case AdamaxSettings():
            divisor = slots["exp_inf"]
        case RmspropSettings(centered=centered):
            mean = slots["grad_avg"] if centered else 0.0
            divisor = np.sqrt(np.maximum(slots["square_avg"] - np.square(mean), 0.0))
        case AdagradSettings():
            divisor = np.sqrt(slots["sum"])
        case AdadeltaSettings():
            divisor = np.sqrt((slots["square_avg"] + epsilon) / (slots["acc_delta"] + epsilon))
        case AdafactorSettings():
            variance = slots.get("variance")
            if variance is None:
                rows = slots["row_var"]
                # Keras's squares begin at 1e-30, so that their product would be 0 in float32.
                variance = rows / np.maximum(rows.mean(-2, keepdims=True), epsilon) * slots["col_var"]
            divisor = np.sqrt(np.maximum(variance, epsilon**2))
        case MuonSettings() if "momentum_buffer" in slots:
            norm = compute_norm(slots["momentum_buffer"])
            gain = NEWTON_SCHULZ[0] ** settings.ns_steps  # the iterations multiply a small singular value by this
            return min(1.0, gain * noise_per_element / norm) if norm else 0.0
        case _:
            divisor = np.sqrt(slots["exp_avg_sq"] / (1 - (settings.beta2 or 0.0) ** step))
    quotient = np.minimum(1.0, noise_per_element / np.where(divisor > 0, divisor + epsilon, 1.0))
    return np.where(divisor > 0, quotient * momentum_gain, 0.0)
