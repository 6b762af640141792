"""The kinds of strategies. A new kind is a schema here, a YAML file, and a file in a side's strategies/."""

from dataclasses import dataclass
from typing import ClassVar

from common.config.keys import RUN, key
from common.errors import UserError

TITLES = {"torch": "PyTorch", "tf": "TensorFlow"}
PACKAGES = {"torch": "torch_impl", "tf": "tf_impl"}
COMMANDS = {"torch": "python -m torch_impl.train", "tf": "python -m tf_impl.train"}


@dataclass(frozen=True)
class StrategySettings:
    """`replicas: null` means every visible GPU, or 2 where there is none (always 1 for `single`)."""

    sides: ClassVar[dict[str, str]]  # "module:class" of the sides that have it: "torch", "tf"
    one_process: ClassVar[bool] = True
    compiles: ClassVar[tuple[str, ...]] = ("torch", "tf")  # the sides on which train.compile works with it
    profiles: ClassVar[tuple[str, ...]] = ("torch", "tf")  # the same for train.profile

    kind: str = key(RUN)
    replicas: int | None = key(RUN, at_least=1)

    @property
    def world_size(self) -> int:
        """The number of replicas of a resolved config."""
        assert self.replicas is not None, "resolve the config first"
        return self.replicas

    @property
    def roles(self) -> dict[str, int]:
        """How many processes of each role it has; the first one of the first role is the chief."""
        return {"worker": 1 if self.one_process else self.world_size}

    @property
    def processes(self) -> int:
        """How many processes it has."""
        return sum(self.roles.values())

    @property
    def other_processes(self) -> int:
        """How many of its processes are not workers."""
        return 0

    @property
    def updates_per_batch(self) -> int:
        """Updates that one global batch makes."""
        return 1

    def check(self) -> None:
        """Raise UserError for values that do not fit together."""


@dataclass(frozen=True)
class SingleSettings(StrategySettings):
    """One replica."""

    sides = {"torch": "torch_impl.strategies.single:Single", "tf": "tf_impl.strategies.single:Single"}

    def check(self) -> None:
        """Raise UserError for more than one replica."""
        if self.replicas not in (None, 1):
            raise UserError(f"strategy.replicas={self.replicas}: strategy=single has 1; choose another strategy")


@dataclass(frozen=True)
class DpSettings(StrategySettings):
    """`loss`: where it is computed; `output_device`: the index of the replica that the outputs are gathered on."""

    sides = {"torch": "torch_impl.strategies.dp:DP"}
    compiles = ()  # its replicas have copies of the parameters in every step

    loss: str = key(RUN, choices=("gathered", "in_forward", "criterion"))
    output_device: int = key(RUN, at_least=0)

    def check(self) -> None:
        """Raise UserError where there is no such replica as `output_device`."""
        if self.replicas is not None and self.output_device >= self.replicas:
            raise UserError(
                f"strategy.output_device={self.output_device}: no such replica; there are 0 to {self.replicas - 1}"
            )


@dataclass(frozen=True)
class DdpSettings(StrategySettings):
    """DistributedDataParallel's arguments; `accumulate`: passes that make one update, all but the last unsynced."""

    sides = {"torch": "torch_impl.strategies.ddp:DDP"}
    one_process = False

    bucket_cap_mb: float = key(RUN, above=0, unit="MiB")
    gradient_as_bucket_view: bool = key(RUN)
    static_graph: bool = key(RUN)
    comm_hook: str = key(RUN, choices=("none", "fp16", "bf16", "powersgd"))
    overlap: bool = key(RUN)
    accumulate: int = key(RUN, at_least=1)

    def check(self) -> None:
        """Raise UserError for a static graph with accumulation."""
        if self.static_graph and self.accumulate > 1:
            raise UserError(
                "strategy.static_graph=true: PyTorch's DDP cannot accumulate with it; set strategy.accumulate=1 or "
                "leave it"
            )


@dataclass(frozen=True)
class AllReduceSettings(StrategySettings):
    """`bucket_cap_mb: null` reduces every parameter by itself."""

    sides = {"torch": "torch_impl.strategies.allreduce:AllReduce"}
    one_process = False

    algorithm: str = key(RUN, choices=("gather_broadcast", "all_to_all", "ring", "recursive_doubling", "native"))
    bucket_cap_mb: float | None = key(RUN, above=0, unit="MiB")
    overlap: bool = key(RUN)


@dataclass(frozen=True)
class MirroredSettings(StrategySettings):
    """MirroredStrategy."""

    sides = {"tf": "tf_impl.strategies.mirrored:Mirrored"}


@dataclass(frozen=True)
class CentralStorageSettings(StrategySettings):
    """CentralStorageStrategy."""

    sides = {"tf": "tf_impl.strategies.central_storage:CentralStorage"}
    compiles = ()  # XLA reads no variables of another device


@dataclass(frozen=True)
class MultiWorkerSettings(StrategySettings):
    """MultiWorkerMirroredStrategy; `bytes_per_pack: 0` lets TensorFlow choose."""

    sides = {"tf": "tf_impl.strategies.multiworker:MultiWorker"}
    one_process = False
    profiles = ()  # TensorFlow's profiler may crash where operations end in another thread, as collectives do

    communication: str = key(RUN, choices=("auto", "ring", "nccl"))
    bytes_per_pack: int = key(RUN, at_least=0, unit="bytes")


@dataclass(frozen=True)
class ParameterServerSettings(StrategySettings):
    """Every worker has one replica.

    `batch`: what one update is computed from; `max_staleness: null` sets no bound, 0 makes the updates synchronous.
    """

    sides = {
        "torch": "torch_impl.strategies.parameter_server:ParameterServer",
        "tf": "tf_impl.strategies.parameter_server:ParameterServer",
    }
    one_process = False
    compiles = ("torch",)  # XLA reads no variables of another device

    parameter_servers: int | None = key(RUN, at_least=1)
    batch: str = key(RUN, choices=("replica", "global"))
    max_staleness: int | None = key(RUN, at_least=0, unit="updates")

    @property
    def server_count(self) -> int:
        """The number of parameter servers of a resolved config."""
        return self.parameter_servers or 1

    @property
    def roles(self) -> dict[str, int]:
        """The coordinator is the chief."""
        return {"chief": 1, "ps": self.server_count, "worker": self.world_size}

    @property
    def other_processes(self) -> int:
        """The coordinator and the servers."""
        return 1 + self.server_count

    @property
    def synchronous(self) -> bool:
        """Whether the workers' gradients of a global batch make one update."""
        return self.max_staleness == 0

    @property
    def updates_per_batch(self) -> int:
        """Updates that one global batch makes."""
        return 1 if self.batch == "global" or self.synchronous else self.world_size


STRATEGIES: dict[str, type[StrategySettings]] = {
    "single": SingleSettings,
    "dp": DpSettings,
    "ddp": DdpSettings,
    "allreduce": AllReduceSettings,
    "mirrored": MirroredSettings,
    "multiworker": MultiWorkerSettings,
    "central_storage": CentralStorageSettings,
    "parameter_server": ParameterServerSettings,
}


def list_strategies(framework: str | None = None) -> list[str]:
    """The kinds that a framework has, "torch" or "tf"; all kinds where none is given."""
    return [kind for kind, schema in STRATEGIES.items() if framework is None or framework in schema.sides]
