"""The processes of a TensorFlow run: one, whose replicas are devices. It imports tensorflow only in that process."""

import os
import re
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from common import config as configs
from common import run
from common.config import Config
from common.errors import UserError
from common.processes import Process, die_with_parent, python

# Informational lines, one of which has two, the logger's note on itself, and that there is no CUDA driver
# (replica_devices says so where there is a GPU).
STARTUP_CHATTER = re.compile(
    r"I\d{4} |To enable the following instructions:|WARNING: All log messages before absl::|E\d{4} .*cuInit"
)


def launch(config: Config) -> int:
    """Start the processes of a run and see them to their end. Returns its exit code."""
    assert config.run_dir is not None
    command = python("tf_impl.launch", config.run_dir)
    return run.start(config, "tf", [Process("tensorflow", command, {"KERAS_BACKEND": "tensorflow"})])


def joins_group() -> bool:
    """Whether a scheduler set the variables that make this process a member of a cluster."""
    return "TF_CONFIG" in os.environ


def join(config: Config) -> int:
    """Be one task of the cluster that TF_CONFIG describes. Returns the exit code of this process."""
    raise UserError(
        f"strategy={config.strategy.name}: one process only, but TF_CONFIG describes a cluster; unset TF_CONFIG"
    )


def _work(config: Config) -> int:
    with _without_startup_chatter():
        import tensorflow as tf

        from tf_impl.strategies import STRATEGIES

        tf.config.list_physical_devices("GPU")
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
    sys.exit(_work(configs.load(Path(sys.argv[1]) / "config.yaml")))
