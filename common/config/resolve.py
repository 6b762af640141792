"""What a config leaves open, filled in once, in the command: how many replicas, how many steps."""

from collections.abc import Mapping
from dataclasses import replace

from common.config.schema import Config
from common.config.strategies import ParameterServerSettings, StrategySettings
from common.config.validate import check_replicas
from common.errors import UserError
from common.hardware import count_visible_gpus

MOST_WARMUP_STEPS = 50  # of those that nobody asked for


def resolve_config(
    config: Config,
    hosts: int = 1,
    found: Mapping[str, int] | None = None,
    source: str = "",
    gpus: int | None = None,
) -> Config:
    """Fill in the replicas and parameter servers of a config that was checked. Raises UserError.

    hosts: how many take part. gpus: of each, where this machine is not one of them. found: the processes of each role,
    where a scheduler has started them already (`source` names the variable): the config must agree or leave them open.
    """
    strategy = config.strategy
    if found is not None:
        replicas = _agreed("replicas", strategy.replicas, _workers(strategy, found, source), source)
    else:
        gpus_of_each = count_visible_gpus() if gpus is None else gpus
        replicas = strategy.replicas or (1 if strategy.kind == "single" else (gpus_of_each or 2) * hosts)
    if isinstance(strategy, ParameterServerSettings):
        servers = strategy.server_count
        if found is not None and "ps" in found:
            servers = _agreed("parameter_servers", strategy.parameter_servers, found["ps"], source)
        strategy = replace(strategy, parameter_servers=servers)
    resolved = replace(config, strategy=replace(strategy, replicas=replicas))
    check_replicas(resolved, hosts, started=found is not None or gpus is not None)
    return resolved


def _workers(strategy: StrategySettings, found: Mapping[str, int], source: str) -> int:
    """How many of the processes that were found are workers; torchrun's have no roles yet."""
    if "process" not in found:
        return found["worker"]
    if (workers := found["process"] - strategy.other_processes) < 1:
        raise UserError(
            f"{source}: too few for a worker beside {strategy.other_processes} other processes; raise it, or lower "
            "strategy.parameter_servers"
        )
    return workers


def _agreed(name: str, given: int | None, found: int, source: str) -> int:
    if given not in (None, found):
        raise UserError(f"strategy.{name}={given} and {source} disagree; leave out one of them or change it")
    return found


def resolve_steps(config: Config, steps_of_epochs: int | None) -> Config:
    """Fill in the schedule's steps, and `train.steps` where epochs are given: so many steps of the corpus."""
    train = config.train
    if train.epochs is not None:
        assert steps_of_epochs is not None
        train = replace(train, steps=steps_of_epochs, epochs=None)
    total, warmup = config.schedule.total_steps or train.steps, config.schedule.warmup_steps
    if warmup is None:
        warmup = min(MOST_WARMUP_STEPS, total // 6)
    return replace(config, train=train, schedule=replace(config.schedule, total_steps=total, warmup_steps=warmup))
