"""Parameter servers by hand, on TCP connections.

The servers hold the parameters. A coordinator dispatches batches to workers. The workers read the parameters, compute
gradients and send them to the servers without waiting for each other. Rank 0 is the coordinator. The next ranks are the
servers, and the remaining ranks are the workers.

No process waits for a crashed worker, and a restarted worker can connect at any time. A process group of torch allows
neither. torch.distributed.rpc allows both, but PyTorch only maintains it, like TensorPipe, its only transport.
"""

from torch_impl.strategies.parameter_server.coordinator import ParameterServer
from torch_impl.strategies.parameter_server.server import serve

__all__ = ["ParameterServer", "serve"]
