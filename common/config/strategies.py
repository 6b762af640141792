"""Settings of the kinds of strategies: the ways to train data-parallel. A replica is one copy of the model.

Each field is a key of the config, such as strategy.replicas. `key(RUN, ...)` declares its limits and that all hosts
must have the same value. The files in conf/strategy have the default values and explain the keys. In a resolved config,
the values that a user may leave open are filled in. "torch" and "tf" are the two sides.

A new kind needs a schema here, a YAML file in conf/strategy, and a module in `strategies` of each side that has it.
"""

from dataclasses import dataclass
from typing import ClassVar

from typing_extensions import override

from common.config.keys import RUN, key
from common.errors import UserError

TITLES = {"torch": "PyTorch", "tf": "TensorFlow"}
PACKAGES = {"torch": "torch_impl", "tf": "tf_impl"}
COMMANDS = {"torch": "python -m torch_impl.train", "tf": "python -m tf_impl.train"}


@dataclass(frozen=True)
class StrategySettings:
    """Settings that every kind of strategy has.

    `replicas: null` means one replica for each visible GPU, or 2 if there is no GPU. It means 1 for `single`.
    """

    sides: ClassVar[dict[str, str]]  # "module:class" for each side that has the strategy: "torch", "tf"
    one_process: ClassVar[bool] = True  # whether one process holds all replicas
    compiles: ClassVar[tuple[str, ...]] = ("torch", "tf")  # the sides on which it supports train.compile
    profiles: ClassVar[tuple[str, ...]] = ("torch", "tf")  # the sides on which it supports train.profile

    kind: str = key(RUN)
    replicas: int | None = key(RUN, at_least=1)

    @property
    def world_size(self) -> int:
        """The number of replicas of a resolved config."""
        assert self.replicas is not None, "resolve the config first"
        return self.replicas

    @property
    def roles(self) -> dict[str, int]:
        """The number of processes of each role: "worker" (computes gradients), "ps" (parameter server) or "chief".

        The first process of the first role is the chief of the run.
        """
        return {"worker": 1 if self.one_process else self.world_size}

    @property
    def processes(self) -> int:
        """The number of processes of the run."""
        return sum(self.roles.values())

    @property
    def other_processes(self) -> int:
        """The number of processes that are not workers."""
        return 0

    @property
    def updates_per_batch(self) -> int:
        """The number of updates that one global batch makes."""
        return 1

    def check(self) -> None:
        """Raise UserError if values do not fit together."""


@dataclass(frozen=True)
class SingleSettings(StrategySettings):
    """Training with one replica, whose curve every synchronous strategy must reproduce."""

    sides: ClassVar[dict[str, str]] = {
        "torch": "torch_impl.strategies.single:Single",
        "tf": "tf_impl.strategies.single:Single",
    }

    @override
    def check(self) -> None:
        if self.replicas not in (None, 1):
            raise UserError(f"strategy.replicas={self.replicas}: strategy=single has 1; choose another strategy")


@dataclass(frozen=True)
class DpSettings(StrategySettings):
    """PyTorch's DataParallel.

    `loss` says which replicas compute the loss. `output_device` is the index of the replica that gathers the outputs.
    """

    sides: ClassVar[dict[str, str]] = {"torch": "torch_impl.strategies.dp:DP"}
    compiles = ()  # every step copies the parameters to the replicas

    loss: str = key(RUN, choices=("gathered", "in_forward", "criterion"))
    output_device: int = key(RUN, at_least=0)

    @override
    def check(self) -> None:
        if self.replicas is not None and self.output_device >= self.replicas:
            raise UserError(
                f"strategy.output_device={self.output_device}: no such replica; there are 0 to {self.replicas - 1}"
            )


@dataclass(frozen=True)
class DdpSettings(StrategySettings):
    """PyTorch's DistributedDataParallel, with its arguments. `accumulate` is another name of `train.micro_batches`."""

    sides: ClassVar[dict[str, str]] = {"torch": "torch_impl.strategies.ddp:DDP"}
    one_process = False

    bucket_cap_mb: float = key(RUN, above=0, unit="MiB")
    gradient_as_bucket_view: bool = key(RUN)
    static_graph: bool = key(RUN)
    comm_hook: str = key(RUN, choices=("none", "fp16", "bf16", "powersgd"))
    overlap: bool = key(RUN)
    accumulate: int = key(RUN, at_least=1)


@dataclass(frozen=True)
class AllReduceSettings(StrategySettings):
    """All-reduce by an algorithm of Lockstep. `bucket_cap_mb: null` reduces each parameter's gradient on its own."""

    sides: ClassVar[dict[str, str]] = {"torch": "torch_impl.strategies.allreduce:AllReduce"}
    one_process = False

    algorithm: str = key(RUN, choices=("gather_broadcast", "all_to_all", "ring", "recursive_doubling", "native"))
    bucket_cap_mb: float | None = key(RUN, above=0, unit="MiB")
    overlap: bool = key(RUN)


@dataclass(frozen=True)
class ZeroSettings(StrategySettings):
    """PyTorch's ZeroRedundancyOptimizer with DistributedDataParallel: the slots are divided over the ranks."""

    sides: ClassVar[dict[str, str]] = {"torch": "torch_impl.strategies.zero:Zero"}
    one_process = False

    bucket_cap_mb: float = key(RUN, above=0, unit="MiB")


@dataclass(frozen=True)
class FsdpSettings(StrategySettings):
    """PyTorch's fully_shard: parameters, gradients and optimizer slots are divided over the ranks, layer by layer.

    `layers` names the layers whose parameters are gathered together: auto, none, or patterns of module names.
    With several `copies`, each copy of the model is divided over replicas / copies ranks.
    `param_dtype` and `reduce_dtype` are the types in which parameters and gradients are sent; null means the type of
    the parameters.
    """

    sides: ClassVar[dict[str, str]] = {"torch": "torch_impl.strategies.fsdp:FSDP"}
    one_process = False
    compiles = ()  # compiled layers would break at the hooks that gather their parameters

    reshard_after_forward: bool = key(RUN)
    layers: str = key(RUN)
    copies: int = key(RUN, at_least=1)
    param_dtype: str | None = key(RUN, choices=("bfloat16",))
    reduce_dtype: str | None = key(RUN, choices=("bfloat16",))

    @override
    def check(self) -> None:
        if self.replicas is not None and self.replicas % self.copies:
            raise UserError(
                f"strategy.copies={self.copies}: does not divide the number of replicas, {self.replicas}; choose a "
                "divisor of it"
            )


@dataclass(frozen=True)
class MirroredSettings(StrategySettings):
    """TensorFlow's MirroredStrategy."""

    sides: ClassVar[dict[str, str]] = {"tf": "tf_impl.strategies.mirrored:Mirrored"}


@dataclass(frozen=True)
class CentralStorageSettings(StrategySettings):
    """TensorFlow's CentralStorageStrategy."""

    sides: ClassVar[dict[str, str]] = {"tf": "tf_impl.strategies.central_storage:CentralStorage"}
    compiles = ()  # XLA cannot read variables of another device


@dataclass(frozen=True)
class MultiWorkerSettings(StrategySettings):
    """TensorFlow's MultiWorkerMirroredStrategy. `bytes_per_pack: 0` lets TensorFlow choose."""

    sides: ClassVar[dict[str, str]] = {"tf": "tf_impl.strategies.multiworker:MultiWorker"}
    one_process = False
    profiles = ()  # TensorFlow's profiler may crash when operations end in another thread, as collectives do

    communication: str = key(RUN, choices=("auto", "ring", "nccl"))
    bytes_per_pack: int = key(RUN, at_least=0, unit="bytes")


@dataclass(frozen=True)
class ParameterServerSettings(StrategySettings):
    """Asynchronous training: workers, one replica each, send gradients to servers that hold the parameters.

    With `batch: replica`, a worker computes an update from one replica's share of a global batch; with `batch: global`,
    from a whole global batch.
    `max_staleness` bounds the number of updates between a worker's read and its own update; null sets no bound, and 0
    makes the updates synchronous.
    """

    sides: ClassVar[dict[str, str]] = {
        "torch": "torch_impl.strategies.parameter_server:ParameterServer",
        "tf": "tf_impl.strategies.parameter_server:ParameterServer",
    }
    one_process = False
    compiles = ("torch",)  # XLA cannot read variables of another device

    parameter_servers: int | None = key(RUN, at_least=1)
    batch: str = key(RUN, choices=("replica", "global"))
    max_staleness: int | None = key(RUN, at_least=0, unit="updates")

    @property
    def server_count(self) -> int:
        """The number of parameter servers of a resolved config."""
        return self.parameter_servers or 1

    @property
    @override
    def roles(self) -> dict[str, int]:
        return {"chief": 1, "ps": self.server_count, "worker": self.world_size}

    @property
    @override
    def other_processes(self) -> int:
        return 1 + self.server_count

    @property
    def synchronous(self) -> bool:
        """Return whether the gradients of all workers together make one update."""
        return self.max_staleness == 0

    @property
    @override
    def updates_per_batch(self) -> int:
        return 1 if self.batch == "global" or self.synchronous else self.world_size


STRATEGIES: dict[str, type[StrategySettings]] = {
    "single": SingleSettings,
    "dp": DpSettings,
    "ddp": DdpSettings,
    "allreduce": AllReduceSettings,
    "zero": ZeroSettings,
    "fsdp": FsdpSettings,
    "mirrored": MirroredSettings,
    "multiworker": MultiWorkerSettings,
    "central_storage": CentralStorageSettings,
    "parameter_server": ParameterServerSettings,
}


def list_strategies(framework: str | None = None) -> list[str]:
    """Return the kinds of strategies that a framework has, "torch" or "tf", or all kinds."""
    return [kind for kind, schema in STRATEGIES.items() if framework is None or framework in schema.sides]
