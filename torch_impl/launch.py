"""The processes of a PyTorch run: one, or one for each rank of a group. It imports torch only in those processes."""

import os
import sys
import tempfile
from pathlib import Path

from common.cluster import launcher as run
from common.cluster import topology as cluster
from common.cluster.agreement import interface_of
from common.cluster.processes import die_with_parent, python
from common.cluster.supervisor import Process
from common.cluster.topology import Task
from common.config import schema as configs
from common.config.schema import Config
from common.config.validate import GROUPS
from common.errors import one_line_errors
from common.hardware import cores, interface_towards, loopback_interface
from common.prepare import prepare, resolve
from common.run.directory import new_run_dir
from common.run.resume import make_ready


def launch(config: Config) -> int:
    """Start this machine's processes of a run and see them to their end. Returns its exit code."""
    assert config.run_dir is not None
    # Threads that spin at a barrier while another process has their core wait for whole scheduler ticks: 1.5 s a step
    # in place of 0.05 s, measured on a busy machine with two cores.
    patient = {"OMP_WAIT_POLICY": os.environ.get("OMP_WAIT_POLICY", "PASSIVE")}
    patient["TORCH_CPP_LOG_LEVEL"] = os.environ.get("TORCH_CPP_LOG_LEVEL", "ERROR")  # what fails, Python says too
    if config.strategy.name not in GROUPS:
        return run.start(config, "torch", [Process("torch", python("torch_impl.launch", config.run_dir), patient)])
    if config.cluster.name == "hosts":
        assert config.cluster.hosts and config.cluster.node is not None and config.cluster.port is not None
        tasks = cluster.place(config.cluster.hosts, cluster.roles(config), [config.cluster.port] * 1000)
        interface = interface_of(config.cluster.hosts[config.cluster.node])
        return _start(config, tasks, {**patient, "GLOO_SOCKET_IFNAME": interface, "NCCL_SOCKET_IFNAME": interface})
    tasks = cluster.place(["127.0.0.1"], cluster.roles(config), [0] * 1000)
    with tempfile.TemporaryDirectory(prefix="lockstep-") as meeting_place:  # a file: no port that another could take
        shared = {
            "LOCKSTEP_RENDEZVOUS": str(Path(meeting_place, "rendezvous")),
            "GLOO_SOCKET_IFNAME": loopback_interface(),
        }
        return _start(config, tasks, {**patient, **shared})


def _start(config: Config, tasks: list[Task], shared: dict[str, str]) -> int:
    assert config.run_dir is not None
    mine = [task for task in tasks if task.node == (config.cluster.node or 0)]
    computing = [task for task in mine if task.role == "worker"]
    shared["OMP_NUM_THREADS"] = str(max(1, cores() // max(1, len(computing))))
    command = python("torch_impl.launch", config.run_dir)
    processes = []
    for task in mine:
        environment = {**cluster.torch_environment(tasks, task), **shared}
        serves = config.strategy.name == "parameter_server" and task.role != "chief"
        returns = serves and task.role == "worker" and config.strategy.max_staleness != 0
        processes.append(Process(f"rank {tasks.index(task)}", command, environment, serves, returns))
    return run.start(config, "torch", processes)


def joins_group(config: Config) -> bool:
    """Whether torchrun, or something that sets the same variables, started this process. Raises UserError."""
    return cluster.read_torch_environment(config, os.environ) is not None


def join(config: Config) -> int:
    """Be one rank of the group that torchrun started. Returns the exit code of this process."""
    is_chief = os.environ["RANK"] == "0"
    if interface := interface_towards(os.environ["MASTER_ADDR"]):  # else Gloo takes what the host's own name leads to
        os.environ.setdefault("GLOO_SOCKET_IFNAME", interface)
    if is_chief:
        with new_run_dir(config, "torch"):
            make_ready(config)
            return _work(config)
    cache, _ = prepare(config)
    resolve(config, cache)
    return _work(config)


def _work(config: Config) -> int:
    from torch_impl.strategies import STRATEGIES
    from torch_impl.strategies.parameter_server import serve

    if config.strategy.name == "parameter_server" and os.environ["RANK"] != "0":
        return serve(config)
    return run.work(config, "torch", STRATEGIES[config.strategy.name])


if __name__ == "__main__":
    die_with_parent()
    with one_line_errors(()):
        sys.exit(_work(configs.load(Path(sys.argv[1]) / "config.yaml")))
