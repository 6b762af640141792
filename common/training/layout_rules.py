"""The update rules of optimizers that need whole parameters, and whose updates depend on the order of the axes."""

from types import ModuleType

import numpy as np

from common.config.layout_optimizers import AdafactorSettings, MuonSettings
from common.training.update_rule import Array, Rule, RuleInputs, Update, average_moments

NEWTON_SCHULZ = (3.4445, -4.775, 2.0315)  # the coefficients of an iteration of Muon, in both frameworks


class AdafactorRule(Rule[AdafactorSettings]):
    """Adafactor. Keras adds epsilon to the squares. PyTorch takes it as the smallest mean square."""

    scalar_count = 4

    def _compute_factors(self, rate: float, step: int) -> list[float]:
        return [min(rate, step**-0.5), float(step**self.settings.beta2_decay)]

    def _compute(self, inputs: RuleInputs) -> Update:
        xp, weight, gradient, slots = inputs.xp, inputs.weight, inputs.gradient, inputs.slots
        settings, (rate, share) = self.settings, inputs.factors
        epsilon = settings.epsilon
        assert epsilon is not None, "resolve the config first"
        square = gradient * gradient + epsilon if self.is_keras else gradient * gradient
        means = [square] if len(slots) == 1 else [_average(xp, square, -1), _average(xp, square, -2)]
        new_slots = [slot + share * (mean - slot) for slot, mean in zip(slots, means, strict=True)]
        variance = new_slots[0]
        if len(new_slots) == 2:
            rows, columns = new_slots
            size = _average(xp, rows, -2)
            variance = rows / size * columns if self.is_keras else rows * columns / _limit(xp, size, epsilon)
        update = gradient / xp.sqrt(variance if self.is_keras else _limit(xp, variance, epsilon * epsilon))
        size, update_size = (xp.sqrt(_average(xp, array * array, None)) for array in (weight, update))
        scale = rate * _limit(xp, size, settings.epsilon2) / _limit(xp, update_size / settings.clip_threshold, 1.0)
        return -scale * update, new_slots


class MuonRule(Rule[MuonSettings]):
    """Muon in the precision of the weights, for matrices, and AdamW for the other parameters.

    Keras's momentum adds up gradients, and PyTorch's averages them. AdamW also follows the framework of `is_keras`.
    """

    scalar_count = 4

    def _compute_factors(self, rate: float, step: int) -> list[float]:
        beta1, beta2 = self.settings.beta1, self.settings.beta2
        assert beta1 is not None and beta2 is not None
        correction = (1 - beta2**step) ** 0.5
        return [rate * correction / (1 - beta1**step), 1.0] if self.is_keras else [rate / (1 - beta1**step), correction]

    def _compute(self, inputs: RuleInputs) -> Update:
        xp, gradient, slots, settings = inputs.xp, inputs.gradient, inputs.slots, self.settings
        if len(slots) == 2:  # AdamW's moments; a matrix has one slot
            first, second = average_moments(settings, gradient, slots)
            root = xp.sqrt(second) / inputs.factors[1] + settings.epsilon
            return -inputs.factors[0] * first / root, [first, second]
        momentum = settings.momentum
        assert momentum is not None
        share = 1 if self.is_keras else 1 - momentum
        buffer = momentum * slots[0] + share * gradient
        direction = momentum * buffer + share * gradient if settings.nesterov else buffer
        rows, columns = (int(size) for size in gradient.shape)
        factors = {
            "original": max(1.0, rows / columns) ** 0.5,
            "match_rms_adamw": 0.2 * max(rows, columns) ** 0.5,  # updates have a root mean square of 0.2, as AdamW's
            "none": 1.0,
        }
        factor = factors[settings.resolved_rate_adjustment]
        return -(inputs.rate * factor) * self._orthogonalize(xp, direction, rows > columns), [buffer]

    def _orthogonalize(self, xp: ModuleType, matrix: Array, is_tall: bool) -> Array:
        """Return the matrix with singular values near 1."""
        a, b, c = NEWTON_SCHULZ
        size = xp.sqrt(_average(xp, matrix * matrix, None) * float(np.prod(matrix.shape)))
        epsilon = self.settings.ns_epsilon
        matrix = matrix / (size + epsilon if self.is_keras else _limit(xp, size, epsilon))
        for _ in range(self.settings.ns_steps):
            square = xp.einsum("ji,jk->ik" if is_tall else "ij,kj->ik", matrix, matrix)
            polynomial = b * square + c * (square @ square)
            matrix = a * matrix + (matrix @ polynomial if is_tall else polynomial @ matrix)
        return matrix


def _average(xp: ModuleType, array: Array, axis: int | None) -> Array:
    """Return the mean over an axis or over all axes, which remain with the size 1."""
    average = xp.reduce_mean if hasattr(xp, "reduce_mean") else xp.mean
    return average(array, axis=axis, keepdims=True)


def _limit(xp: ModuleType, array: Array, least: float) -> Array:
    """Return the array with smaller elements replaced by `least`."""
    return xp.maximum(array, least * xp.ones_like(array))
