"""PyTorch's strategies, a file each."""

from collections.abc import Callable

from common.config.schema import Config
from common.models.initial_weights import InitialCheckpoint
from common.training.loop import Strategy
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
