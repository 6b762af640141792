"""Trainings that another command starts: each a process that ends with the command, its output in a file."""

import json
import subprocess
from collections.abc import Sequence
from pathlib import Path

from common.config.strategies import PACKAGES
from common.run_module import module_command


def start_training(framework: str, overrides: Sequence[str], log: Path) -> subprocess.Popen[bytes]:
    """Start `python -m torch_impl.train` or tf_impl.train; it ends when its standard input is closed."""
    command = module_command("common.cluster.child_command", f"{PACKAGES[framework]}.train", *overrides)
    with log.open("w") as file:
        return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=file, stderr=file, start_new_session=True)


def stop_training(training: subprocess.Popen[bytes]) -> None:
    """End it, if it has not ended, as Ctrl-C does: it saves a checkpoint first."""
    if training.poll() is None:
        training.terminate()
        training.wait()


def read_failure_reason(log: Path, run_dir: Path) -> str:
    """The line in which a training says why it failed."""
    lines = log.read_text(errors="replace").splitlines()
    found = [each.removeprefix("error: ") for each in lines if each.startswith("error: ")]
    summary = run_dir / "summary.json"
    if not found and summary.exists():
        found = [str(json.loads(summary.read_text()).get("error"))]
    return found[0] if found else f"failed; see {log}"
