"""TensorFlow's strategies, a file each."""

from collections.abc import Callable

from common.config import Config
from common.loop import Strategy
from common.weights import InitialCheckpoint
from tf_impl.strategies.central_storage import CentralStorage
from tf_impl.strategies.mirrored import Mirrored
from tf_impl.strategies.multiworker import MultiWorker
from tf_impl.strategies.parameter_server import ParameterServer
from tf_impl.strategies.single import Single

STRATEGIES: dict[str, Callable[[Config, InitialCheckpoint], Strategy]] = {
    "single": Single,
    "mirrored": Mirrored,
    "multiworker": MultiWorker,
    "central_storage": CentralStorage,
    "parameter_server": ParameterServer,
}
