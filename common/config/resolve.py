"""Resolution of a config: the command fills in the values that the user left open, such as replicas and steps."""

from collections.abc import Mapping
from dataclasses import replace

from common.config.schema import Config
from common.config.strategies import ParameterServerSettings, StrategySettings
from common.config.validate import check_replicas, count_gpus
from common.errors import UserError

DEFAULT_REPLICAS = 2  # number of replicas on a host without GPUs
MAX_DEFAULT_WARMUP_STEPS = 50
# The machine epsilon of the weights, by train.precision: the weights of a bfloat16 run are float32.
MACHINE_EPSILONS = {"float32": 2.0**-23, "bfloat16": 2.0**-23, "float64": 2.0**-52}


def resolve_config(
    config: Config,
    hosts: int = 1,
    started: Mapping[str, int] | None = None,
    source: str = "",
    gpus: int | None = None,
) -> Config:
    """Return a checked config with its replicas, parameter servers and the optimizer's open values filled in.

    Args:
        config: a config that `check_config` has checked.
        hosts: the number of hosts that take part.
        started: the number of processes of each role, if another program has started them already: "worker", "ps"
            (parameter server) and "chief", or only their total as "process". The config must agree or leave the numbers
            open.
        source: the environment variable that `started` comes from, for errors.
        gpus: the number of GPUs of each host; None if this machine is a host, so that its GPUs are counted.

    Raises:
        UserError: the config disagrees with the processes, the GPUs or the hosts.
    """
    strategy = config.strategy
    if started is not None:
        workers = _count_workers(strategy, started, source)
        replicas = _require_equal_count("replicas", strategy.replicas, workers, source)
    else:
        gpus_per_host = count_gpus(config.train.device, gpus)
        default = 1 if strategy.kind == "single" else (gpus_per_host or DEFAULT_REPLICAS) * hosts
        replicas = strategy.replicas or default
    if isinstance(strategy, ParameterServerSettings):
        servers = strategy.server_count
        if started is not None and "ps" in started:
            servers = _require_equal_count("parameter_servers", strategy.parameter_servers, started["ps"], source)
        strategy = replace(strategy, parameter_servers=servers)
    optimizer = config.optimizer.resolve(MACHINE_EPSILONS[config.train.precision])
    resolved = replace(config, strategy=replace(strategy, replicas=replicas), optimizer=optimizer)
    check_replicas(resolved, hosts, has_external_hosts=started is not None or gpus is not None)
    return resolved


def _count_workers(strategy: StrategySettings, started: Mapping[str, int], source: str) -> int:
    """Return the number of started workers.

    Some launchers, such as torchrun, only report a total as "process". The processes of other roles are then
    subtracted.
    """
    if "process" not in started:
        return started["worker"]
    if (workers := started["process"] - strategy.other_processes) < 1:
        raise UserError(
            f"{source}: leaves no worker, since {strategy.other_processes} processes have other roles; start more "
            "processes, or lower strategy.parameter_servers"
        )
    return workers


def _require_equal_count(name: str, configured: int | None, started: int, source: str) -> int:
    """Return the number of started processes. Raise UserError if the config has another number.

    Args:
        name: the key that configures the number, without "strategy.".
        configured: the value of the key; None if the user has not set it.
        started: the number of processes that another program has started.
        source: the environment variable that `started` comes from.
    """
    if configured not in (None, started):
        raise UserError(
            f"strategy.{name}={configured}, but {source} gives {started}; remove strategy.{name} or make them equal"
        )
    return started


def resolve_steps(config: Config, steps_of_epochs: int | None) -> Config:
    """Return a config with the steps of the run and of its schedule filled in.

    Args:
        config: a config, resolved or not.
        steps_of_epochs: the number of steps in `train.epochs` epochs of the corpus, if `train.epochs` is set.
    """
    train = config.train
    if train.epochs is not None:
        assert steps_of_epochs is not None
        train = replace(train, steps=steps_of_epochs, epochs=None)
    total, warmup = config.schedule.total_steps or train.steps, config.schedule.warmup_steps
    if warmup is None:
        warmup = choose_warmup_steps(total, config.schedule.every)
    return replace(config, train=train, schedule=replace(config.schedule, total_steps=total, warmup_steps=warmup))


def choose_warmup_steps(total_steps: int, every: int) -> int:
    """Return the length of the warm-up of a schedule whose config sets none: a multiple of `schedule.every`."""
    return min(MAX_DEFAULT_WARMUP_STEPS, total_steps // 6) // every * every
