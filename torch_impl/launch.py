"""The processes of a PyTorch run: one, or one for each rank of a group. It imports torch only in those processes."""

import os
import sys
import tempfile
from importlib import import_module
from pathlib import Path

from common.cluster.engines.hosts import find_host_interface
from common.cluster.launcher import start
from common.cluster.network import find_interface_towards, find_loopback_interface
from common.cluster.processes import (
    STOP_PORT,
    die_with_parent,
    exit_if_interrupted,
    pause_garbage_collection,
)
from common.cluster.supervisor import Process
from common.cluster.topology import ClusterMember, HostGroup, make_torch_environment, place_processes
from common.config.command_line import report_user_errors
from common.config.import_object import import_object
from common.config.schema import Config
from common.config.strategies import ParameterServerSettings
from common.hardware import count_cores, keep_freed_memory
from common.run.context import RunContext, open_context
from common.run.prepare import open_run, prepare_inputs
from common.run.progress import report_end
from common.run.worker import SideRuntime, train_rank
from common.run_module import module_command


def launch(context: RunContext, nodes: HostGroup) -> int:
    """Start this machine's processes of a run and wait for their end. Returns the exit code of the command."""
    # Threads that spin at a barrier while another process has their core wait for whole scheduler ticks: 1.5 s a step
    # in place of 0.05 s, measured on a busy machine with two cores.
    shared = {"OMP_WAIT_POLICY": os.environ.get("OMP_WAIT_POLICY", "PASSIVE")}
    shared["TORCH_CPP_LOG_LEVEL"] = os.environ.get("TORCH_CPP_LOG_LEVEL", "ERROR")  # Python reports the same failures
    config = context.config
    if config.strategy.one_process:
        command = module_command("torch_impl.launch", str(context.run_dir))
        return start(context, nodes, [Process("torch", command, shared)])
    if nodes.is_multi_host:
        interface = find_host_interface(nodes.hosts[nodes.host_index])
        shared |= {"GLOO_SOCKET_IFNAME": interface, "NCCL_SOCKET_IFNAME": interface}
        shared[STOP_PORT] = str(nodes.stop_port(config.strategy.processes))
        return _start(context, nodes, shared)
    with tempfile.TemporaryDirectory(prefix="lockstep-") as directory:  # a file: no port that another could take
        shared |= {"LOCKSTEP_RENDEZVOUS": str(Path(directory, "rendezvous"))}
        shared |= {"GLOO_SOCKET_IFNAME": find_loopback_interface()}
        return _start(context, nodes, shared)


def _start(context: RunContext, nodes: HostGroup, shared: dict[str, str]) -> int:
    config = context.config
    tasks = place_processes(nodes.hosts, config.strategy.roles, [nodes.port or 0] * 1000)
    mine = [task for task in tasks if task.host_index == nodes.host_index]
    computing = [task for task in mine if task.role == "worker"]
    shared["OMP_NUM_THREADS"] = str(max(1, count_cores() // max(1, len(computing))))
    command = module_command("torch_impl.launch", str(context.run_dir))
    processes = []
    for task in mine:
        environment = {**make_torch_environment(tasks, task), **shared}
        serves = restartable = False
        if isinstance(config.strategy, ParameterServerSettings):
            serves = task.role != "chief"
            restartable = task.role == "worker" and not config.strategy.synchronous
        processes.append(Process(f"rank {tasks.index(task)}", command, environment, serves, restartable))
    return start(context, nodes, processes)


def join(config: Config, member: ClusterMember) -> int:
    """Be one rank of the group that torchrun started. Returns the exit code of this process."""
    if interface := find_interface_towards(os.environ["MASTER_ADDR"]):  # else Gloo takes what the host's name means
        os.environ.setdefault("GLOO_SOCKET_IFNAME", interface)
    if not member.is_chief:
        config, inputs = prepare_inputs(config, Path(config.run_dir) if config.run_dir else None)
        return exit_if_interrupted(_train(RunContext(config, "torch", inputs, is_chief=False)))
    with open_run(config, "torch") as context:
        (context.run_dir / "summary.json").unlink(missing_ok=True)
        code = _train(context)
        report_end(context.run_dir, code)
    return exit_if_interrupted(code)


def _train(context: RunContext) -> int:
    config = context.config
    keep_freed_memory()
    if isinstance(config.strategy, ParameterServerSettings) and not context.is_chief:
        with pause_garbage_collection():
            from torch_impl.strategies.parameter_server import serve
        return serve(context)
    with pause_garbage_collection():
        from torch_impl.communication.rendezvous import join_group
        from torch_impl.compilation import report_compilations
        from torch_impl.profiling import profile

        make_strategy = import_object(config.strategy.sides["torch"])
        import_module(config.model.torch_module)
    return train_rank(context, SideRuntime(join_group, make_strategy, profile, report_compilations))


if __name__ == "__main__":
    die_with_parent()
    with report_user_errors(()):
        run_dir = Path(sys.argv[1])
        is_chief = os.environ.get("RANK", "0") == "0"
        sys.exit(exit_if_interrupted(_train(open_context(run_dir, "torch", is_chief))))
