"""Training runs that a command such as common.compare starts as processes. They end when the command ends."""

import subprocess
from collections.abc import Sequence
from pathlib import Path

from common.config.strategies import PACKAGES
from common.records.summary import read_final_summary
from common.run_module import module_command


def start_training(framework: str, overrides: Sequence[str], log: Path) -> subprocess.Popen[bytes]:
    """Start the training command of a framework, "torch" or "tf". It ends when its standard input, a pipe, is closed.

    log: the file for its output.
    """
    command = module_command("common.cluster.child_command", f"{PACKAGES[framework]}.train", *overrides)
    with log.open("w") as file:
        return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=file, stderr=file, start_new_session=True)


def stop_training(process: subprocess.Popen[bytes]) -> None:
    """Interrupt a training run that has not ended, and wait until it has saved a checkpoint."""
    if process.poll() is None:
        process.terminate()
        process.wait()


def read_failure_reason(log: Path, run_dir: Path) -> str:
    """Return the first error that a training run has printed to `log`; if there is none, the error in its summary."""
    lines = log.read_text(errors="replace").splitlines()
    errors = [line.removeprefix("error: ") for line in lines if line.startswith("error: ")]
    summary = None if errors else read_final_summary(run_dir)
    if summary is not None and "error" in summary:
        errors = [summary["error"]]
    return errors[0] if errors else f"failed; see {log}"
