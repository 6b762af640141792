"""TensorFlow's strategies, a file each."""

from collections.abc import Callable

from common.config.schema import Config
from common.models.initial_weights import InitialCheckpoint
from common.training.loop import Strategy
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
