"""Settings of a strategy whose single process computes the gradients of all replicas, one after the other.

The fields are config keys, such as strategy.reverse=true. `sides` names the class of the strategy in each framework.
"""

from dataclasses import dataclass
from typing import ClassVar

from common.config.keys import RUN, key
from common.config.strategies import STRATEGIES, StrategySettings


@dataclass(frozen=True)
class SequentialSettings(StrategySettings):
    """Settings of the strategy."""

    sides: ClassVar[dict[str, str]] = {
        "torch": "toy.sequential_torch:Sequential",
        "tf": "toy.sequential_tf:Sequential",
    }

    reverse: bool = key(RUN)

    @property
    def order(self) -> range:
        """The indices of the replicas in the order in which their gradients are summed."""
        return range(self.world_size)[:: -1 if self.reverse else 1]


STRATEGIES["sequential"] = SequentialSettings
