"""Checks that a config fits a task of several outputs, or a task that compares the examples of a batch."""

from common.config.data import NamedArraysSettings
from common.config.metrics import RESERVED_NAMES
from common.config.schema import Config
from common.config.strategies import CentralStorageSettings, ParameterServerSettings, list_strategies
from common.config.task_kinds import MultiOutputSettings
from common.errors import UserError


def check_named_labels(config: Config) -> None:
    """Raise UserError if a key does not fit a task that names its labels itself, or has none: `task.names_labels`."""
    title = f"task={config.task.kind}"
    if not isinstance(config.data, NamedArraysSettings):
        raise UserError(f"data.kind={config.data.kind}: {title} needs named arrays; choose arrays or custom")
    if isinstance(config.task, MultiOutputSettings):
        for name, value in ((output.name, value) for output in config.task.tasks for value in output.list_values()):
            if value in RESERVED_NAMES:
                raise UserError(f"task.outputs.{name}: would report {value}, a name that every run has; rename it")
        return
    if config.train.predictions:
        raise UserError(f"train.predictions=true: cannot be used with {title}; set it to false")


def check_compares_examples(config: Config) -> None:
    """Raise UserError if a replica cannot compare its examples with all others of the global batch."""
    title, train, strategy = f"task={config.task.kind}", config.train, config.strategy
    if train.padding == "micro_batches":
        raise UserError(f"train.padding=micro_batches: {title} compares all examples of a batch; choose global")
    if config.micro_batches > 1:
        raise UserError(
            f"train.micro_batches={config.micro_batches}: {title} compares all examples of a batch; set it to 1"
        )
    if isinstance(strategy, ParameterServerSettings | CentralStorageSettings):
        fitting = [kind for kind in list_strategies() if kind not in ("parameter_server", "central_storage")]
        raise UserError(
            f"strategy={strategy.kind}: {title} compares the examples of all replicas, which this strategy does not "
            f"gather; use {', '.join(fitting)}"
        )
