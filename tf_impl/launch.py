"""The processes of a TensorFlow run: one, or one for each task of a cluster. It imports tensorflow only in them."""

import json
import os
import re
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from common.cluster import launcher as run
from common.cluster import topology as cluster
from common.cluster.processes import die_with_parent, python, reserved_ports
from common.cluster.supervisor import Process
from common.cluster.topology import Task
from common.config import schema as configs
from common.config.schema import Config
from common.config.validate import GROUPS
from common.errors import one_line_errors
from common.hardware import cores, only_gpu
from common.prepare import prepare, resolve
from common.run.directory import new_run_dir
from common.run.resume import make_ready

# Informational lines, one of which has two, the logger's note on itself, and that there is no CUDA driver
# (replica_devices says so where there is a GPU).
STARTUP_CHATTER = re.compile(
    r"I\d{4} |To enable the following instructions:|WARNING: All log messages before absl::|E\d{4} .*cuInit"
)


def launch(config: Config) -> int:
    """Start this machine's processes of a run and see them to their end. Returns its exit code."""
    assert config.run_dir is not None
    if config.strategy.name not in GROUPS:
        command = python("tf_impl.launch", config.run_dir)
        return run.start(config, "tf", [Process("tensorflow", command)])
    roles = cluster.roles(config)
    if config.cluster.name == "hosts":
        assert config.cluster.hosts is not None and config.cluster.port is not None
        tasks = cluster.place(config.cluster.hosts, roles, range(config.cluster.port, config.cluster.port + 1000))
        return _start(config, tasks, {})
    with reserved_ports(sum(roles.values())) as ports:
        tasks = cluster.place(["127.0.0.1"], roles, ports)
        return _start(config, tasks, {"TF_GRPC_REUSE_PORT": "1"})


def _start(config: Config, tasks: list[Task], shared: dict[str, str]) -> int:
    assert config.run_dir is not None
    mine = [task for task in tasks if task.node == (config.cluster.node or 0)]
    computing = [task for task in mine if task.role == "worker"]
    shared["TF_NUM_INTRAOP_THREADS"] = str(max(1, cores() // max(1, len(computing))))
    command = python("tf_impl.launch", config.run_dir)
    processes = []
    for task in mine:
        gpu = only_gpu(computing.index(task) if task in computing else None)
        environment = {**cluster.tf_config(tasks, task), **gpu, **shared}
        serves = config.strategy.name == "parameter_server" and task.role != "chief"
        processes.append(Process(str(task), command, environment, serves, returns=serves and task.role == "worker"))
    return run.start(config, "tf", processes)


def joins_group(config: Config) -> bool:
    """Whether a scheduler that sets TF_CONFIG started this process. Raises UserError."""
    return cluster.read_tf_config(config, os.environ) is not None


def join(config: Config) -> int:
    """Be one task of the cluster that TF_CONFIG describes. Returns the exit code of this process."""
    task = json.loads(os.environ["TF_CONFIG"])
    first = "chief" if "chief" in task["cluster"] else "worker"
    is_chief = (task["task"]["type"], task["task"]["index"]) == (first, 0)
    if config.strategy.name == "parameter_server" and not is_chief:
        return _work(config)  # a server needs no data
    if is_chief:
        with new_run_dir(config, "tf"):
            make_ready(config)
            return _work(config)
    cache, _ = prepare(config)
    resolve(config, cache)
    return _work(config)


def _work(config: Config) -> int:
    os.environ["KERAS_BACKEND"] = "tensorflow"
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "1")
    with _without_startup_chatter():
        import tensorflow as tf

        from tf_impl.strategies import STRATEGIES
        from tf_impl.strategies.parameter_server import serve

        tf.config.list_physical_devices("GPU")
    if config.strategy.name == "parameter_server" and json.loads(os.environ["TF_CONFIG"])["task"]["type"] != "chief":
        return serve(config)
    return run.work(config, "tf", STRATEGIES[config.strategy.name])


@contextmanager
def _without_startup_chatter() -> Iterator[None]:
    """Drop what TensorFlow's C++ side says of itself while it starts, for which it has no setting; all else is kept."""
    sys.stderr.flush()
    terminal = os.dup(2)
    with tempfile.TemporaryFile() as said:
        os.dup2(said.fileno(), 2)
        try:
            yield
        finally:
            sys.stderr.flush()
            os.dup2(terminal, 2)
            os.close(terminal)
            said.seek(0)
            kept = [
                line for line in said.read().decode(errors="replace").splitlines() if not STARTUP_CHATTER.match(line)
            ]
            print(*kept, sep="\n", end="\n" if kept else "", file=sys.stderr, flush=True)


if __name__ == "__main__":
    die_with_parent()
    with one_line_errors(()):
        config = configs.load(Path(sys.argv[1]) / "config.yaml")
        code = _work(config)
        if code or config.strategy.name == "parameter_server":
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)  # an ordinary end would wait for threads of TensorFlow's that wait for workers that are gone
        sys.exit(code)
