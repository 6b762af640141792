"""Parameter servers by hand, on TCP connections.

The servers hold the parameters; a coordinator dispatches batches to workers, which read the parameters, compute
gradients and send them to be applied, without waiting for each other. Rank 0 is the coordinator, then come the servers,
then the workers. Nobody waits for a worker that crashed, and one that takes its place can connect at any time, which no
process group allows. torch.distributed.rpc would be the other way; PyTorch keeps it, and TensorPipe, its only
transport, in maintenance mode.
"""

from common.config.schema import Config
from common.config.strategies import ParameterServer as Settings
from common.run.prepare import Prepared
from common.training.stop import Stop
from torch_impl.communication.rendezvous import join_group
from torch_impl.strategies.parameter_server.coordinator import ParameterServer
from torch_impl.strategies.parameter_server.server import Server
from torch_impl.strategies.parameter_server.worker import work

__all__ = ["ParameterServer", "serve"]


def serve(config: Config, prepared: Prepared) -> int:
    """Be a worker or a parameter server until the coordinator ends. Returns the exit code of this process."""
    settings = config.strategy
    assert isinstance(settings, Settings)
    stop = Stop()
    group = join_group(config, prepared)
    assert group.channel is not None
    group.channel.attach(stop)
    if group.rank > settings.server_count:
        work(config, prepared, group)
    else:
        Server(config, prepared, group).serve()
    return 0 if stop.signum is None else 128 + stop.signum
