"""Adam's second moment, and the search for mistakes in the squares of the gradients.

The slot exp_avg_sq holds a parameter's second moment: new = beta2 * old + (1 - beta2) * gradient**2. The two values of
the slot, before and after a step, imply the squared gradient of the step, its contribution.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from common.diagnose.explain.step_gradients import estimate_slot_noise
from common.diagnose.explain.update_formula import CHANGE_EPSILONS, OptimizerUpdate
from common.diagnose.findings import Explanation
from common.map.array_differences import compute_norm

HALF_EPSILON = 2.0**-24  # relative error of a number in float32
SMALLEST_NORM = 1e-12  # smallest norm that is compared, relative to the largest squared gradient


@dataclass(frozen=True)
class SecondMoment:
    """The contribution of one step to the second moment of one parameter.

    Attributes:
        name: Name of the parameter.
        squared_gradient: Square of the gradient that the update used; the contribution should equal it.
        contribution: Squared gradient that the slot before and after the step implies.
        norm: Norm to which errors are relative.
        tolerance: Largest relative error that rounding explains.
    """

    name: str
    squared_gradient: np.ndarray
    contribution: np.ndarray
    norm: float
    tolerance: float

    @property
    def error(self) -> float:
        """Difference between the contribution and the squared gradient, relative to `norm`."""
        return compute_norm(self.contribution - self.squared_gradient) / self.norm

    @property
    def differing_rows(self) -> np.ndarray:
        """Mask of the parameter's rows in which the contribution differs from the squared gradient, bool [rows]."""
        difference = np.abs(self.contribution - self.squared_gradient)
        if not difference.ndim:
            return np.ones(1, bool)
        largest = difference.reshape(len(difference), -1).max(1)
        return np.asarray(largest > max(1e-6, self.tolerance) * float(np.abs(self.contribution).max()))


def recover_second_moments(update: OptimizerUpdate) -> Iterator[SecondMoment]:
    """Yield the contribution of an update to each second moment; none if the optimizer has no second moments."""
    settings = update.settings
    beta2 = settings.betas[1]
    if settings.kind == "sgd" or not beta2:
        return
    slot_noise = estimate_slot_noise(settings, update.slots_before, update.slots_after)
    constant_error = HALF_EPSILON / (1 - beta2)  # optimizers, such as PyTorch's on a GPU, compute 1 - beta2 in float32
    largest = max((compute_norm(gradient**2) for gradient in update.gradients.values()), default=0.0)
    for name, gradient in update.gradients.items():
        if settings.kind != "adamw":  # Adam's weight decay is part of the gradient
            gradient = gradient + settings.weight_decay * update.weights_before[name]
        after = update.slots_after[f"exp_avg_sq.{name}"]
        before = update.slots_before.get(f"exp_avg_sq.{name}", np.zeros_like(after))
        norm = max(compute_norm(gradient**2), SMALLEST_NORM * largest) or 1.0
        slot_size = compute_norm(after) + compute_norm(before)
        rounding = 2 * update.machine_epsilon * slot_size / (1 - beta2)
        # The gradient was recovered from a slot with an error of slot_noise, which the square multiplies
        rounding += CHANGE_EPSILONS * slot_noise[name] * compute_norm(gradient)
        contribution = (after - beta2 * before) / (1 - beta2)
        yield SecondMoment(name, gradient**2, contribution, norm, constant_error + rounding / norm)


def explain_second_moment(moment: SecondMoment, update: OptimizerUpdate) -> Explanation:
    """Explain why a contribution is not the squared gradient."""
    expected, contribution = moment.squared_gradient, moment.contribution
    factor = float((contribution * expected).sum() / (expected**2).sum()) if expected.any() else 0.0
    is_scaled = np.allclose(contribution, factor * expected, rtol=max(1e-5, moment.tolerance), atol=0)
    if factor and is_scaled and update.step == 1:  # the slot was zero before, so beta2 alone scales it
        beta2 = 1 - factor * (1 - update.settings.betas[1])
        sentence = f"the second moment is {factor:.5g} times what it should be, as with beta2={beta2:.6g}"
        return Explanation("beta2", sentence)
    count = int(np.sum(moment.differing_rows))
    if contribution.ndim == 2 and 0 < count < len(contribution):
        sentence = f"repeated indices are squared one by one, in {count} rows of {moment.name}'s second moment"
        return Explanation("repeated_indices", sentence, confirmed=False)
    sentence = f"the second moment of {moment.name} is not that of the gradients"
    return Explanation("second_moment", sentence, confirmed=False)
