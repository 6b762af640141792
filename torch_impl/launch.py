"""The processes of a PyTorch run: one, or one for each rank of a group. Only these processes import torch.

The command calls `launch`, which starts this module once for each rank of this host. If torchrun has started the
command as a rank already, the command calls `join` instead.
"""

import os
import sys
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path

from common.cluster.engines.hosts import find_host_interface
from common.cluster.launcher import start
from common.cluster.local_processes import place_local_processes
from common.cluster.network import find_interface_towards, find_loopback_interface
from common.cluster.processes import (
    STOP_PORT,
    die_with_parent,
    exit_if_interrupted,
    open_temporary_directory,
    pause_garbage_collection,
)
from common.cluster.supervisor import Process
from common.cluster.topology import ClusterMember, HostGroup, make_torch_environment
from common.cluster.training_command import join_run
from common.config.command_line import report_user_errors
from common.config.schema import Config
from common.config.strategies import ParameterServerSettings
from common.hardware import hide_gpus, keep_freed_memory
from common.run.context import RunContext, open_context
from common.run.worker import SideRuntime, record_failed_start, train_rank
from common.run_module import module_command
from common.training.strategy import load_strategy_class


def launch(context: RunContext, hosts: HostGroup) -> int:
    """Start the processes of a run on this host and wait for their end. Return the exit code of the command."""
    variables = {  # environment variables of every process: the user's value, if there is one
        # By default a thread that waits at a barrier spins. It then keeps its core from other threads: a step took
        # 1.5 s instead of 0.05 s on a busy machine with two cores.
        "OMP_WAIT_POLICY": os.environ.get("OMP_WAIT_POLICY", "PASSIVE"),
        "TORCH_CPP_LOG_LEVEL": os.environ.get("TORCH_CPP_LOG_LEVEL", "ERROR"),  # Python reports the same failures
    }
    strategy = context.config.strategy
    with open_temporary_directory() as (directory, variable):
        variables |= variable
        if hosts.is_multi_host and not strategy.one_process:
            interface = find_host_interface(hosts.hosts[hosts.host_index])
            variables |= {
                name: os.environ.get(name) or interface for name in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")
            }
            variables[STOP_PORT] = str(hosts.stop_port(strategy.processes))  # the chief listens there for stops
        elif not strategy.one_process:  # the ranks meet through a file, because another program could take a port first
            variables["LOCKSTEP_RENDEZVOUS"] = str(directory / "rendezvous")
            # Even if the user has set another interface: no other machine shall reach the ranks.
            variables["GLOO_SOCKET_IFNAME"] = find_loopback_interface()
        return start(context, hosts, _make_processes(context, hosts, variables))


def _make_processes(context: RunContext, hosts: HostGroup, variables: Mapping[str, str]) -> list[Process]:
    """Return the ranks of this host. variables: environment variables that all of them get."""
    strategy = context.config.strategy
    command = module_command("torch_impl.launch", str(context.run_dir), python=context.config.python)
    if strategy.one_process:
        return [Process("torch", command, {**variables})]
    ports = [hosts.port or 0] * strategy.processes  # only rank 0 listens on its port, so all ranks may have the same
    placed = place_local_processes(context, hosts, ports)
    processes = []
    for process in placed.local:
        environment = make_torch_environment(placed.all_processes, process)
        environment |= {**variables, "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS") or str(placed.threads)}
        serves = restartable = False
        if isinstance(strategy, ParameterServerSettings):
            serves = process.role != "chief"  # servers and workers do not end by themselves
            restartable = process.role == "worker" and not strategy.synchronous
        name = f"rank {placed.all_processes.index(process)}"
        processes.append(Process(name, command, environment, serves, restartable))
    return processes


def join(config: Config, member: ClusterMember) -> int:
    """Train as one rank of the group that torchrun started. Return the exit code of this process."""
    # Gloo would otherwise use the address that the name of this host resolves to, which others may not reach.
    if interface := find_interface_towards(os.environ["MASTER_ADDR"]):
        os.environ.setdefault("GLOO_SOCKET_IFNAME", interface)
    return join_run(config, "torch", member.is_chief, _train)


def _train(context: RunContext) -> int:
    """Train as one rank, or be a worker or a parameter server. Return the exit code of this process."""
    config = context.config
    keep_freed_memory()
    if config.train.device == "cpu":
        hide_gpus()
    if isinstance(config.strategy, ParameterServerSettings) and not context.is_chief:
        with pause_garbage_collection():
            from torch_impl.strategies.parameter_server import serve
        return serve(context)
    with record_failed_start(context), pause_garbage_collection():
        from torch_impl.communication.rendezvous import join_group
        from torch_impl.compilation import report_compilations
        from torch_impl.device import describe_environment
        from torch_impl.profiling import profile

        make_strategy = load_strategy_class(config, "torch")
        import_module(config.model.torch_module)  # heavy imports too, while garbage collection is off
    runtime = SideRuntime(join_group, make_strategy, profile, report_compilations, describe_environment)
    return train_rank(context, runtime)


if __name__ == "__main__":
    die_with_parent()
    with report_user_errors(()):
        run_dir = Path(sys.argv[1])
        is_chief = os.environ.get("RANK", "0") == "0"
        sys.exit(exit_if_interrupted(_train(open_context(run_dir, "torch", is_chief))))
