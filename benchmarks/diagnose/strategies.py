"""Faulty strategies: replicas one after the other in one process, with a fault in the reduction or the update."""

from dataclasses import dataclass

from common.config.keys import RUN, key
from common.config.strategies import STRATEGIES, Strategy


@dataclass(frozen=True)
class Faulty(Strategy):
    """fault: one of strategies_torch.py and strategies_tf.py; none is a correct strategy."""

    sides = {
        "torch": "benchmarks.diagnose.strategies_torch:Faulty",
        "tf": "benchmarks.diagnose.strategies_tf:Faulty",
    }

    fault: str = key(RUN)


STRATEGIES["faulty"] = Faulty
