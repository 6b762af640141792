"""A strategy that computes the gradients of the replicas one after the other in one process: its settings."""

from dataclasses import dataclass

from common.config.keys import RUN, key
from common.config.strategies import STRATEGIES, StrategySettings


@dataclass(frozen=True)
class SequentialSettings(StrategySettings):
    sides = {"torch": "toy.sequential_torch:Sequential", "tf": "toy.sequential_tf:Sequential"}

    reverse: bool = key(RUN)

    @property
    def order(self) -> range:
        """The replicas, in the order in which their gradients are summed."""
        return range(self.world_size)[:: -1 if self.reverse else 1]


STRATEGIES["sequential"] = SequentialSettings
