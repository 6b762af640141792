"""The config of a training run.

A key is a field of one of the schemas, which are these dataclasses, and has a full name such as train.steps. A group is
a section, such as `model`, whose schema depends on its key `kind`. `key(SCOPE, ...)` declares the limits of a key, and
who must agree on its value: CURVE keys decide the loss curve, RUN keys must be the same on all hosts, HOST keys may
differ.

The files in conf/ hold the values and explain the keys. No key has a default here, so the config.yaml of a run states
all values that the run used.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from common.config.averages import EmaSettings, SwaSettings
from common.config.clusters import CLUSTERS, ClusterSettings
from common.config.data import DATA, DataSettings
from common.config.keras_layout import Shape
from common.config.keys import CURVE, HOST, RUN, Key, Value, key, list_keys, section
from common.config.models import MODELS, ModelSettings
from common.config.optimizer_settings import OptimizerSettings
from common.config.optimizers import OPTIMIZERS
from common.config.schedules import SCHEDULES, ScheduleSettings
from common.config.strategies import STRATEGIES, StrategySettings
from common.config.task_kinds import TASKS
from common.config.tasks import TaskSettings
from common.config.transforms import list_functions
from common.errors import UserError


@dataclass(frozen=True)
class EarlyStoppingSettings:
    """Settings that end training early.

    Training ends after `patience` evaluations in a row that do not improve `metric` by more than `min_delta`;
    `patience: null` never ends it early. The best checkpoint is the one with the best `metric`.
    """

    patience: int | None = key(RUN, at_least=1, unit="evaluations")
    min_delta: float = key(RUN, at_least=0)
    metric: str = key(RUN)


@dataclass(frozen=True)
class TrainSettings:
    """Settings of the training loop.

    `epochs` replaces `steps` if it is set. `eval_every: null` evaluates at the end only. If `virtual_epoch_examples` is
    set, it is the length of an epoch, and an evaluation and a checkpoint follow each epoch.
    """

    steps: int = key(RUN, at_least=1, unit="global batches")
    epochs: int | None = key(RUN, at_least=1)
    global_batch_size: int = key(CURVE, at_least=1, unit="examples")
    max_length: int = key(CURVE, at_least=3, unit="tokens")
    padding: str = key(RUN, choices=("auto", "global", "micro_batches", "unpadded"))
    micro_batches: int = key(RUN, at_least=1)
    seed: int = key(CURVE, at_least=0, below=2**63)
    precision: str = key(CURVE, choices=("float32", "bfloat16", "float64"))
    matmul_precision: str | None = key(CURVE, choices=("bfloat16",), null="for that of train.precision")
    device: str = key(RUN, choices=("auto", "cpu", "cuda"))
    compile: bool = key(RUN)
    profile: bool = key(HOST)
    log_every: int = key(HOST, at_least=1, unit="steps")
    eval_every: int | None = key(RUN, at_least=1, unit="steps")
    checkpoint_every: int | None = key(RUN, at_least=1, unit="steps")
    checkpoint_seconds: float | None = key(RUN, above=0, unit="seconds", null="for no such checkpoints")
    keep_checkpoints: int = key(RUN, at_least=1)
    checkpoint_gather_bytes: int = key(RUN, at_least=0, unit="bytes")
    virtual_epoch_examples: int | None = key(RUN, at_least=1, unit="examples")
    evaluate_average: bool = key(CURVE)
    evaluate_both: bool = key(RUN)
    early_stopping: EarlyStoppingSettings = section()
    max_restarts: int = key(RUN, at_least=0)
    warmup_steps_untimed: int = key(RUN, at_least=0, unit="steps")
    predictions: bool = key(RUN)

    @property
    def resolved_matmul_precision(self) -> str:
        """The precision of matrix products."""
        return self.matmul_precision or self.precision

    def check(self) -> None:
        """Raise UserError if two precisions are set, or if early stopping has no evaluations to count."""
        if self.matmul_precision is not None and self.precision != "float32":
            raise UserError(
                f"train.matmul_precision={self.matmul_precision}: only works with train.precision=float32; remove one "
                "of the two"
            )
        if self.early_stopping.patience is not None and self.eval_every is None and self.virtual_epoch_examples is None:
            raise UserError("train.early_stopping.patience: counts evaluations; give train.eval_every=... too")


@dataclass(frozen=True)
class RunOptions:
    """The keys outside all sections.

    `metrics` names metrics of `common.config.metrics`, and functions as module:function. `extensions` names modules
    that every process imports to add further kinds. `python` is the interpreter of the training processes; null means
    the interpreter of the command. Only the command that the user types sets it: its value in a run's config.yaml has
    no effect.
    """

    run_dir: str | None = key(HOST)
    resume: str | None = key(HOST)
    run_name: str | None = key(HOST)
    cache_dir: str = key(HOST)
    metrics: list[str] = key(RUN)
    extensions: list[str] = key(HOST)
    python: str | None = key(HOST)
    trackers: list[str] = key(HOST)


@dataclass(frozen=True)
class Config(RunOptions):
    """The whole config of a training run."""

    data: DataSettings = section()
    model: ModelSettings = section()
    task: TaskSettings = section()
    optimizer: OptimizerSettings = section()
    schedule: ScheduleSettings = section()
    strategy: StrategySettings = section()
    cluster: ClusterSettings = section()
    train: TrainSettings = section()
    ema: EmaSettings = section()
    swa: SwaSettings = section()

    @property
    def slots(self) -> tuple[str, ...]:
        """The names of the arrays kept for a parameter: the optimizer's slots, and AVERAGE if the run averages."""
        has_average = self.ema.decay is not None or self.swa.start_step is not None
        return (*self.optimizer.slots, *([AVERAGE] if has_average else []))

    def list_slots(self, name: str, shape: Shape) -> dict[str, Shape]:
        """Return the shape of each slot of a parameter in PyTorch, by the slot's name."""
        average = {AVERAGE: shape} if AVERAGE in self.slots else {}
        return self.optimizer.list_slots(name, shape) | average

    @property
    def micro_batches(self) -> int:
        """The number of micro-batches of a shard. `strategy.accumulate` is another name of `train.micro_batches`."""
        return max(self.train.micro_batches, getattr(self.strategy, "accumulate", 1))


AVERAGE = "average"  # name of the slot that holds the average of the weights
# The schemas of the sections that are not groups.
SECTIONS: dict[str, type] = {"train": TrainSettings, "ema": EmaSettings, "swa": SwaSettings}
# The schema of each kind, by the group and the kind.
GROUPS: dict[str, Mapping[str, type]] = {
    "data": DATA,
    "model": MODELS,
    "task": TASKS,
    "optimizer": OPTIMIZERS,
    "schedule": SCHEDULES,
    "strategy": STRATEGIES,
    "cluster": CLUSTERS,
}
EXTENSIBLE_GROUPS = ("data", "model", "strategy", "cluster")  # groups to which a module of `extensions` may add kinds


def collect_keys() -> dict[str, Key]:
    """Return the keys of all kinds by their full names."""
    table = dict(list_keys(RunOptions))
    for name, schema in SECTIONS.items():
        table |= list_keys(schema, f"{name}.")
    for group, kinds in GROUPS.items():
        for schema in kinds.values():
            table |= list_keys(schema, f"{group}.")
    return table


def list_code_keys() -> list[str]:
    """Return the full names of the keys that name user code as module:name; not `extensions`, which names modules."""
    return [name for name, key in collect_keys().items() if key.names_code]


def list_code(value: Value) -> list[str]:
    """Return the names of user code, as module:name, in the value of a key of `list_code_keys`.

    value: a text, or the list of data.transforms.
    """
    return [value] if isinstance(value, str) else list_functions(value)
