"""The processes of a TensorFlow run: one, or one for each task. Only these processes import tensorflow.

A task is a process of a TensorFlow cluster, with a role (chief, ps or worker), an index, and a port on which its gRPC
server listens. The command calls `launch`, which starts this module once for each task of this host. If a scheduler has
started the command as a task already, the command calls `join` instead.
"""

import json
import os
import re
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from importlib import import_module
from pathlib import Path

from common.cluster.launcher import start
from common.cluster.local_processes import place_local_processes
from common.cluster.ports import reserve_ports
from common.cluster.processes import (
    STOP_PORT,
    die_with_parent,
    open_temporary_directory,
    pause_garbage_collection,
)
from common.cluster.supervisor import Process
from common.cluster.topology import ClusterMember, HostGroup, make_tf_config
from common.cluster.training_command import join_run
from common.config.command_line import report_user_errors
from common.config.compose import load_config
from common.config.saved_config import CONFIG
from common.config.schema import Config
from common.config.strategies import ParameterServerSettings
from common.hardware import hide_gpus, keep_freed_memory, select_gpu
from common.hidden_packages import hide_packages_of_keras
from common.run.context import RunContext, open_context
from common.run.worker import SideRuntime, record_failed_start, train_rank
from common.run_module import module_command
from common.training.strategy import load_strategy_class

# Messages to drop: informational lines, the second line of one of them, a note of the logger on itself, and the lack of
# a CUDA driver, which select_replica_devices reports if there is a GPU.
STARTUP_MESSAGES = re.compile(
    r"I\d{4} |To enable the following instructions:|WARNING: All log messages before absl::|E\d{4} .*cuInit"
)


def launch(context: RunContext, hosts: HostGroup) -> int:
    """Start the processes of a run on this host and wait for their end. Return the exit code of the command."""
    strategy = context.config.strategy
    with ExitStack() as stack:
        ports: Sequence[int] = []
        directory, variables = stack.enter_context(open_temporary_directory())  # environment variables of every process
        # AutoGraph writes the code that it generates to files. A process that does not end normally leaves them.
        variables["TMPDIR"] = str(directory)
        if hosts.is_multi_host and not strategy.one_process:
            ports = hosts.ports
            variables[STOP_PORT] = str(hosts.stop_port(strategy.processes))  # the chief listens there for stops
        elif not strategy.one_process:
            ports = stack.enter_context(reserve_ports(strategy.processes))
            variables["TF_GRPC_REUSE_PORT"] = "1"  # the tasks listen on ports that this command keeps reserved
        return start(context, hosts, _make_processes(context, hosts, ports, variables))


def _make_processes(
    context: RunContext, hosts: HostGroup, ports: Sequence[int], variables: Mapping[str, str]
) -> list[Process]:
    """Return the tasks of this host.

    Args:
        context: the context of the run.
        hosts: the hosts of the run.
        ports: the ports of a host, one for each task on it.
        variables: environment variables that all tasks get.
    """
    strategy = context.config.strategy
    command = module_command("tf_impl.launch", str(context.run_dir), python=context.config.python)
    if strategy.one_process:
        return [Process("tensorflow", command, {**variables, "TF_CONFIG": "{}"})]  # it may have described a single task
    placed = place_local_processes(context, hosts, ports)
    processes = []
    for process in placed.local:
        environment = make_tf_config(placed.all_processes, process)
        if context.config.train.device != "cpu":
            environment |= select_gpu(placed.workers.index(process) if process in placed.workers else None)
        threads = os.environ.get("TF_NUM_INTRAOP_THREADS") or str(placed.threads)  # the user's value, if there is one
        environment |= {**variables, "TF_NUM_INTRAOP_THREADS": threads}
        serves = restartable = False
        if isinstance(strategy, ParameterServerSettings):
            serves = process.role != "chief"  # servers and workers do not end by themselves
            restartable = process.role == "worker"
        processes.append(Process(str(process), command, environment, serves, restartable))
    return processes


def join(config: Config, member: ClusterMember) -> int:
    """Train as one task of the cluster that TF_CONFIG describes. Return the exit code of this process."""
    if isinstance(config.strategy, ParameterServerSettings) and not member.is_chief:
        return _serve(config)  # workers and servers need no data: the coordinator sends it
    return join_run(config, "tf", member.is_chief, _train)


def _train(context: RunContext) -> int:
    """Train as one task. Return the exit code of this process."""
    config = context.config
    keep_freed_memory()
    if config.train.device == "cpu":
        hide_gpus()
    with record_failed_start(context), pause_garbage_collection():
        _import_tensorflow()
        from tf_impl.communication.rendezvous import join_group
        from tf_impl.compilation import report_compilations
        from tf_impl.device import describe_environment
        from tf_impl.profiling import profile

        make_strategy = load_strategy_class(config, "tf")
        import_module(config.model.tf_module)  # heavy imports too, while garbage collection is off
    runtime = SideRuntime(join_group, make_strategy, profile, report_compilations, describe_environment)
    return train_rank(context, runtime)


def _serve(config: Config) -> int:
    """Be a worker or a parameter server. Return the exit code of this process."""
    keep_freed_memory()
    if config.train.device == "cpu":
        hide_gpus()
    with pause_garbage_collection():
        _import_tensorflow()
        from tf_impl.strategies.parameter_server import serve
    return serve(config)


def _import_tensorflow() -> None:
    os.environ["KERAS_BACKEND"] = "tensorflow"
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "1")
    hide_packages_of_keras()  # a scheduler may have started this process, not Lockstep
    with _without_startup_messages():
        import tensorflow as tf

        tf.config.list_physical_devices("GPU")  # prints its messages now


def _is_chief() -> bool:
    """Check whether TF_CONFIG makes this process the first of its run."""
    parsed = json.loads(os.environ.get("TF_CONFIG", "{}"))
    first = "chief" if "chief" in parsed.get("cluster", {}) else "worker"
    return bool(parsed.get("task", {"type": first, "index": 0}) == {"type": first, "index": 0})


@contextmanager
def _without_startup_messages() -> Iterator[None]:
    """Drop the messages of TensorFlow's C++ start-up that no setting turns off; all others are kept."""
    sys.stderr.flush()
    original_stderr = os.dup(2)
    with tempfile.TemporaryFile() as output:
        os.dup2(output.fileno(), 2)
        try:
            yield
        finally:
            sys.stderr.flush()
            os.dup2(original_stderr, 2)
            os.close(original_stderr)
            output.seek(0)
            lines = [
                line for line in output.read().decode(errors="replace").splitlines() if not STARTUP_MESSAGES.match(line)
            ]
            print(*lines, sep="\n", end="\n" if lines else "", file=sys.stderr, flush=True)


if __name__ == "__main__":
    die_with_parent()
    with report_user_errors(()):
        run_dir = Path(sys.argv[1])
        config = load_config(run_dir / CONFIG)
        serves, is_chief = isinstance(config.strategy, ParameterServerSettings), _is_chief()
        code = _serve(config) if serves and not is_chief else _train(open_context(run_dir, "tf", is_chief))
        if code or serves:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)  # otherwise TensorFlow's threads would wait for workers that have ended
        sys.exit(code)
