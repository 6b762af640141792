"""Gradients of one training step: the gradients of all shards, and the gradients that the update used.

A shard is a replica's part of a global batch. The slots are the optimizer's arrays by "slot.parameter", such as Adam's
first moment "exp_avg.fc.weight". They accumulate gradients, so that a step's gradient can be recovered from their
values before and after it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

import numpy as np

from common.diagnose.explain.update_settings import UpdateSettings
from common.diagnose.rounding import EXPLANATION_TOLERANCE, FACTOR_TOLERANCE, MACHINE_EPSILON, precision_of_weights
from common.map.array_differences import compute_norm

Gradients = Mapping[str, np.ndarray]  # by parameter name; the slots have this type too
# Factor from the upper bound of a slot's rounding error to its noise: StepGradients.tolerance allows 10 times the noise
SLOT_NOISE_FACTOR = 0.1
CLIP_EPSILON = 1e-6  # added to a norm by torch.nn.utils.clip_grad_norm_


class GradientSlot(NamedTuple):
    """The optimizer's slot that accumulates gradients: new = decay * old + share * gradient."""

    name: str
    decay: float
    share: float


def recover_gradients(
    settings: UpdateSettings, before: Gradients, after: Gradients, weights: Gradients
) -> dict[str, np.ndarray]:
    """Return the clipped gradients that an update used, from the optimizer's slots before and after it.

    Adam's new = beta1 * old + (1 - beta1) * gradient and SGD's new = momentum * old + gradient are solved for the
    gradient. SGD must have momentum: otherwise no slot holds a gradient. Adam and SGD, but not AdamW, add weight_decay
    * weights to the gradient; this term is subtracted again.

    Args:
        settings: Hyperparameters of the update.
        before: Slots before the update; empty before the first.
        after: Slots after the update.
        weights: Weights before the update.
    """
    slot, gradients = _gradient_slot(settings), {}
    for name in _list_parameters(slot, after):
        new = after[f"{slot.name}.{name}"].astype(np.float64)
        old = before.get(f"{slot.name}.{name}", np.zeros_like(new))
        gradients[name] = (new - slot.decay * old) / slot.share
        if settings.kind != "adamw":
            gradients[name] = gradients[name] - settings.weight_decay * weights[name]
    return gradients


def estimate_slot_noise(settings: UpdateSettings, before: Gradients, after: Gradients) -> dict[str, float]:
    """Estimate the norm of each recovered gradient's rounding error. The subtraction new - decay * old loses digits.

    Args:
        settings: Hyperparameters of the update.
        before: Slots before the update; empty before the first.
        after: Slots after the update.
    """
    slot, noise = _gradient_slot(settings), {}
    epsilon = MACHINE_EPSILON[precision_of_weights(settings.precision)]
    for name in _list_parameters(slot, after):
        new, old = after[f"{slot.name}.{name}"], before.get(f"{slot.name}.{name}", np.zeros(1))
        size = compute_norm(new) + slot.decay * compute_norm(old)
        noise[name] = SLOT_NOISE_FACTOR * epsilon * size / slot.share
    return noise


def _gradient_slot(settings: UpdateSettings) -> GradientSlot:
    if settings.kind == "sgd":
        return GradientSlot("momentum_buffer", settings.momentum, 1.0)
    beta1 = settings.betas[0]
    return GradientSlot("exp_avg", beta1, 1 - beta1)


def _list_parameters(slot: GradientSlot, slots: Gradients) -> list[str]:
    """Return the names of the parameters that have this slot."""
    return [name.removeprefix(f"{slot.name}.") for name in slots if name.startswith(f"{slot.name}.")]


def clip_factor(norm: float, max_norm: float | None) -> float:
    """Return the factor by which torch.nn.utils.clip_grad_norm_ multiplies gradients of this norm."""
    return 1.0 if max_norm is None else min(1.0, max_norm / (norm + CLIP_EPSILON))


def global_norm(gradients: Gradients) -> float:
    """Return the norm of all gradients as one vector."""
    return float(np.sqrt(sum(float(np.square(gradient).sum()) for gradient in gradients.values())))


def sum_gradients(shards: Sequence[Gradients]) -> dict[str, np.ndarray]:
    """Return the sum of the shards' gradients, by parameter."""
    return {name: np.sum([shard[name] for shard in shards], axis=0) for name in shards[0]}


@dataclass(frozen=True)
class StepGradients:
    """Gradients of one run in one step: what its replicas computed, and what its update used.

    Attributes:
        settings: Hyperparameters of the update.
        step: Number of the step.
        shard_gradients: For each shard, the gradients of its part of the mean loss over the global batch.
        shard_weights: For each shard, the summed weight of its examples.
        recovered: Gradients that the update used, clipped, recovered from the slots.
        previous_sum: `expected_sum` of the step before; None in the first compared step.
        reported_norm: Norm before clipping that the run wrote to metrics.jsonl.
        weights: Parameters before the step.
        noise: Norm of the rounding error of each gradient.
    """

    settings: UpdateSettings
    step: int
    shard_gradients: Sequence[Gradients]
    shard_weights: Sequence[float]
    recovered: Gradients
    previous_sum: Gradients | None
    reported_norm: float
    weights: Gradients
    noise: Mapping[str, float] = field(default_factory=dict)

    @property
    def factor_tolerance(self) -> float:
        """Largest relative difference between two factors that count as equal."""
        return FACTOR_TOLERANCE[self.settings.precision]

    @cached_property
    def tolerance(self) -> float:
        """Largest relative difference at which computed gradients count as equal to the recovered ones."""
        noise = compute_norm([*self.noise.values()]) / (compute_norm(self.recovered_vector) or 1.0)
        return max(EXPLANATION_TOLERANCE[self.settings.precision], 10 * noise)

    @cached_property
    def expected_sum(self) -> dict[str, np.ndarray]:
        """Sum of the shards' gradients: what the update should use, before clipping."""
        return sum_gradients(self.shard_gradients)

    @cached_property
    def expected_factor(self) -> float:
        """Factor by which clipping should multiply the sum."""
        return self.clip_factor(self.expected_sum)

    @cached_property
    def expected_vector(self) -> np.ndarray:
        """Gradients that the update should use, clipped, as one vector."""
        return self.flatten(self.expected_sum) * self.expected_factor

    @cached_property
    def recovered_vector(self) -> np.ndarray:
        """Gradients that the update used, as one vector."""
        return self.flatten(self.recovered)

    @cached_property
    def shard_shares(self) -> np.ndarray:
        """Share of each shard in the weight of the global batch."""
        return np.asarray(self.shard_weights) / sum(self.shard_weights)

    @cached_property
    def names(self) -> list[str]:
        """Parameters whose gradients are both computed and recovered."""
        return [name for name in self.expected_sum if name in self.recovered]

    @cached_property
    def shard_factors(self) -> np.ndarray | None:
        """Factors f for which the sum of f[i] * shard_gradients[i] is the recovered gradients; None unless unique."""
        columns = np.stack([self.flatten(shard) for shard in self.shard_gradients], axis=1)
        factors, *_ = np.linalg.lstsq(columns, self.recovered_vector, rcond=None)
        is_unique = np.linalg.matrix_rank(columns) == len(self.shard_gradients)
        return factors if self.matches(columns @ factors, self.tolerance) and is_unique else None

    @property
    def is_as_expected(self) -> bool:
        """Return whether the update used the sum of the shards' gradients, clipped by the norm of the sum."""
        return self.matches(self.expected_vector, self.tolerance)

    def clip_factor(self, gradients: Gradients) -> float:
        """Return the factor by which clipping multiplies these gradients."""
        return clip_factor(global_norm(gradients), self.settings.max_grad_norm)

    def flatten(self, gradients: Gradients) -> np.ndarray:
        """Return the gradients of all parameters in `names` as one vector."""
        return np.concatenate([np.ravel(gradients[name]) for name in self.names])

    def matches(self, vector: np.ndarray, tolerance: float) -> bool:
        """Check whether a vector equals the gradients that the update used."""
        size = compute_norm(self.recovered_vector) or 1.0
        return compute_norm(vector - self.recovered_vector) < tolerance * size
