"""ParameterServerStrategy: the variables are on servers.

A coordinator dispatches batches to workers. The workers read the variables, compute gradients and update the variables
on the servers, without waiting for each other.
"""

from tf_impl.strategies.parameter_server.coordinator import ParameterServer
from tf_impl.strategies.parameter_server.server import serve

__all__ = ["ParameterServer", "serve"]
