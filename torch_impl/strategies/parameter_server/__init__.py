"""Parameter servers by hand, on TCP connections.

The servers hold the parameters; a coordinator dispatches batches to workers, which read the parameters, compute
gradients and send them to be applied, without waiting for each other. Rank 0 is the coordinator, then come the servers,
then the workers. Nobody waits for a worker that crashed, and one that takes its place can connect at any time, which no
process group allows. torch.distributed.rpc would be the other way; PyTorch keeps it, and TensorPipe, its only
transport, in maintenance mode.
"""

from torch_impl.strategies.parameter_server.coordinator import ParameterServer
from torch_impl.strategies.parameter_server.server import serve

__all__ = ["ParameterServer", "serve"]
