"""What a strategy made of the gradients of its replicas' shards in one step, recovered from its checkpoints."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from common.config.schema import Config
from common.diagnose.rounding import EXACT, SAME, UNITS, at_least_float32

Gradients = Mapping[str, np.ndarray]
SLOT_UNITS = 0.1  # what a slot's rounding is as noise: it is bounded, and needs no margin for what was not measured


def recovered(config: Config, before: Gradients, after: Gradients, weights: Gradients) -> dict[str, np.ndarray]:
    """The gradients that an update was made from, clipped, by the optimizer's slots before and after it.

    Adam's m' = beta1 m + (1 - beta1) g, SGD's b' = momentum b + g, each solved for g. weights: before the update, since
    Adam and SGD add weight_decay times these to the gradient.
    """
    settings, (slot, keep, share) = config.optimizer, _first_slot(config)
    found = {}
    for name in [each.removeprefix(f"{slot}.") for each in after if each.startswith(f"{slot}.")]:
        now = after[f"{slot}.{name}"].astype(np.float64)
        last = before.get(f"{slot}.{name}", np.zeros_like(now))
        found[name] = (now - keep * last) / share
        if settings.kind != "adamw":
            found[name] = found[name] - settings.weight_decay * weights[name]
    return found


def rounded(config: Config, before: Gradients, after: Gradients) -> dict[str, float]:
    """The norm of what rounding makes each gradient differ by that `recovered` finds: m' - beta1 m loses digits."""
    slot, keep, share = _first_slot(config)
    unit = UNITS[at_least_float32(config.train.precision)]
    found = {}
    for name in [each.removeprefix(f"{slot}.") for each in after if each.startswith(f"{slot}.")]:
        now, last = after[f"{slot}.{name}"], before.get(f"{slot}.{name}", np.zeros(1))
        found[name] = SLOT_UNITS * unit * float(np.linalg.norm(now) + keep * np.linalg.norm(last)) / share
    return found


def _first_slot(config: Config) -> tuple[str, float, float]:
    """What keeps the gradients, how much of it is kept in an update, and what a new gradient counts."""
    settings = config.optimizer
    if settings.kind == "sgd":
        return "momentum_buffer", settings.momentum or 0.0, 1.0
    assert settings.beta1 is not None
    return "exp_avg", settings.beta1, 1 - settings.beta1


def clipping(config: Config, summed: Gradients) -> float:
    """What torch.nn.utils.clip_grad_norm_ multiplies the gradients by."""
    largest = config.optimizer.max_grad_norm
    return 1.0 if largest is None else min(1.0, largest / (norm(summed) + 1e-6))


def norm(gradients: Gradients) -> float:
    """Of all of them as one vector."""
    return float(np.sqrt(sum(float(np.square(each).sum()) for each in gradients.values())))


@dataclass(frozen=True)
class Reduction:
    """What one side made of the gradients of its replicas in one step.

    shards: of each replica, over the weight of the global batch. weights: of their examples. found: the gradients that
    the update was made from. before: the sum that the step before should have had, None in the first. reported: the
    norm before clipping that the run wrote. parameters: before the step. rounding: the norm of what rounding makes each
    of the gradients differ by.
    """

    config: Config
    step: int
    shards: Sequence[Gradients]
    weights: Sequence[float]
    found: Gradients
    before: Gradients | None
    reported: float
    parameters: Gradients
    rounding: Mapping[str, float] = field(default_factory=dict)

    @property
    def same(self) -> float:
        """What factors differ by, where that is not rounding."""
        return SAME[self.config.train.precision]

    @cached_property
    def exact(self) -> float:
        """What an explanation must reproduce."""
        size = float(np.linalg.norm(self.target)) or 1.0
        return max(EXACT[self.config.train.precision], 10 * float(np.linalg.norm([*self.rounding.values()])) / size)

    @cached_property
    def summed(self) -> dict[str, np.ndarray]:
        """What the update should be made from, but for clipping."""
        return total(self.shards)

    @cached_property
    def scale(self) -> float:
        """What clipping should multiply the sum by."""
        return clipping(self.config, self.summed)

    @cached_property
    def share(self) -> np.ndarray:
        """Each replica's part of the weight of the global batch."""
        return np.asarray(self.weights) / sum(self.weights)

    @cached_property
    def names(self) -> list[str]:
        """Of the parameters whose gradients are known on both sides."""
        return [each for each in self.summed if each in self.found]

    @cached_property
    def target(self) -> np.ndarray:
        """The gradients of the update as one vector."""
        return self.vector(self.found)

    @cached_property
    def factors(self) -> np.ndarray | None:
        """What each shard counts in the update; None where that is no combination of the shards."""
        columns = np.stack([self.vector(each) for each in self.shards], axis=1)
        factors, *_ = np.linalg.lstsq(columns, self.target, rcond=None)
        fits = self.near(columns @ factors, self.exact) and np.linalg.matrix_rank(columns) == len(self.shards)
        return factors if fits else None

    @property
    def explains_update(self) -> bool:
        """Whether the update was made from the sum over the shards, clipped as it should be."""
        return self.near(self.vector(self.summed) * self.scale, self.exact)

    def vector(self, gradients: Gradients) -> np.ndarray:
        """All gradients as one vector."""
        return np.concatenate([np.ravel(gradients[name]) for name in self.names])

    def near(self, vector: np.ndarray, tolerance: float) -> bool:
        """Whether a vector is the update's."""
        return float(np.linalg.norm(vector - self.target)) < tolerance * (float(np.linalg.norm(self.target)) or 1.0)


def total(shards: Sequence[Gradients]) -> dict[str, np.ndarray]:
    """The sum over the shards."""
    return {name: np.sum([each[name] for each in shards], axis=0) for name in shards[0]}
