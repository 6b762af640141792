"""The processes of a TensorFlow run: one, or one for each task of a cluster. It imports tensorflow only in them."""

import json
import os
import re
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path

from common.cluster.launcher import start
from common.cluster.ports import reserve_ports
from common.cluster.processes import (
    STOP_PORT,
    die_with_parent,
    exit_if_interrupted,
    pause_garbage_collection,
)
from common.cluster.supervisor import Process
from common.cluster.topology import ClusterMember, HostGroup, make_tf_config, place_processes
from common.config.command_line import report_user_errors
from common.config.compose import load_config
from common.config.import_object import import_object
from common.config.schema import Config
from common.config.strategies import ParameterServerSettings
from common.hardware import count_cores, keep_freed_memory, select_gpu
from common.run.context import RunContext, open_context
from common.run.prepare import open_run, prepare_inputs
from common.run.progress import report_end
from common.run.worker import SideRuntime, train_rank
from common.run_module import module_command

# Informational lines, one of which has two, the logger's note on itself, and that there is no CUDA driver
# (replica_devices says so where there is a GPU).
STARTUP_MESSAGES = re.compile(
    r"I\d{4} |To enable the following instructions:|WARNING: All log messages before absl::|E\d{4} .*cuInit"
)


def launch(context: RunContext, nodes: HostGroup) -> int:
    """Start this machine's processes of a run and wait for their end. Returns the exit code of the command."""
    config = context.config
    if config.strategy.one_process:
        command = module_command("tf_impl.launch", str(context.run_dir))
        return start(context, nodes, [Process("tensorflow", command)])
    count = config.strategy.processes
    if nodes.is_multi_host:
        return _start(context, nodes, nodes.ports, {STOP_PORT: str(nodes.stop_port(count))})
    with reserve_ports(count) as ports:
        return _start(context, nodes, ports, {"TF_GRPC_REUSE_PORT": "1"})


def _start(context: RunContext, nodes: HostGroup, ports: Sequence[int], shared: dict[str, str]) -> int:
    config = context.config
    tasks = place_processes(nodes.hosts, config.strategy.roles, ports)
    mine = [task for task in tasks if task.host_index == nodes.host_index]
    computing = [task for task in mine if task.role == "worker"]
    shared["TF_NUM_INTRAOP_THREADS"] = str(max(1, count_cores() // max(1, len(computing))))
    command = module_command("tf_impl.launch", str(context.run_dir))
    processes = []
    for task in mine:
        gpu = select_gpu(computing.index(task) if task in computing else None)
        environment = {**make_tf_config(tasks, task), **gpu, **shared}
        serves = restartable = False
        if isinstance(config.strategy, ParameterServerSettings):
            serves = task.role != "chief"
            restartable = task.role == "worker"
        processes.append(Process(str(task), command, environment, serves, restartable))
    return start(context, nodes, processes)


def join(config: Config, member: ClusterMember) -> int:
    """Be one task of the cluster that TF_CONFIG describes. Returns the exit code of this process."""
    if not member.is_chief:
        if isinstance(config.strategy, ParameterServerSettings):
            return _serve(config)  # it needs no data
        config, inputs = prepare_inputs(config, Path(config.run_dir) if config.run_dir else None)
        return exit_if_interrupted(_train(RunContext(config, "tf", inputs, is_chief=False)))
    with open_run(config, "tf") as context:
        (context.run_dir / "summary.json").unlink(missing_ok=True)
        code = _train(context)
        report_end(context.run_dir, code)
    return exit_if_interrupted(code)


def _train(context: RunContext) -> int:
    config = context.config
    keep_freed_memory()
    with pause_garbage_collection():
        _import_tensorflow()
        from tf_impl.communication.rendezvous import join_group
        from tf_impl.compilation import report_compilations
        from tf_impl.profiling import profile

        make_strategy = import_object(config.strategy.sides["tf"])
        import_module(config.model.tf_module)
    return train_rank(context, SideRuntime(join_group, make_strategy, profile, report_compilations))


def _serve(config: Config) -> int:
    keep_freed_memory()
    with pause_garbage_collection():
        _import_tensorflow()
        from tf_impl.strategies.parameter_server import serve
    return serve(config)


def _import_tensorflow() -> None:
    os.environ["KERAS_BACKEND"] = "tensorflow"
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "1")
    with _without_startup_messages():
        import tensorflow as tf

        tf.config.list_physical_devices("GPU")


def _is_chief() -> bool:
    """Whether TF_CONFIG makes this process the first of its run."""
    parsed = json.loads(os.environ.get("TF_CONFIG", "{}"))
    first = "chief" if "chief" in parsed.get("cluster", {}) else "worker"
    return bool(parsed.get("task", {"type": first, "index": 0}) == {"type": first, "index": 0})


@contextmanager
def _without_startup_messages() -> Iterator[None]:
    """Drop the messages of TensorFlow's C++ start-up that no setting turns off; all others are kept."""
    sys.stderr.flush()
    terminal = os.dup(2)
    with tempfile.TemporaryFile() as output:
        os.dup2(output.fileno(), 2)
        try:
            yield
        finally:
            sys.stderr.flush()
            os.dup2(terminal, 2)
            os.close(terminal)
            output.seek(0)
            kept = [
                line for line in output.read().decode(errors="replace").splitlines() if not STARTUP_MESSAGES.match(line)
            ]
            print(*kept, sep="\n", end="\n" if kept else "", file=sys.stderr, flush=True)


if __name__ == "__main__":
    die_with_parent()
    with report_user_errors(()):
        run_dir = Path(sys.argv[1])
        config = load_config(run_dir / "config.yaml")
        serves, is_chief = isinstance(config.strategy, ParameterServerSettings), _is_chief()
        code = _serve(config) if serves and not is_chief else _train(open_context(run_dir, "tf", is_chief))
        if code or serves:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)  # otherwise TensorFlow's threads would wait for workers that have ended
        sys.exit(code)
