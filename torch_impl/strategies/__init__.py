"""PyTorch's strategies, a file each."""

from collections.abc import Callable

from common.config import Config
from common.loop import Strategy
from common.weights import InitialCheckpoint
from torch_impl.strategies.allreduce import AllReduce
from torch_impl.strategies.ddp import DDP
from torch_impl.strategies.dp import DP
from torch_impl.strategies.parameter_server import ParameterServer
from torch_impl.strategies.single import Single

STRATEGIES: dict[str, Callable[[Config, InitialCheckpoint], Strategy]] = {
    "single": Single,
    "dp": DP,
    "ddp": DDP,
    "allreduce": AllReduce,
    "parameter_server": ParameterServer,
}
