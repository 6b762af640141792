"""Short training runs of the sides of a diagnosis, A and B, at the same time.

Each is a train command of its framework, which starts the processes of its strategy. Side "a" writes its run to
OUTPUT/a and its output to OUTPUT/a.log.
"""

import os
import re
import shutil
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from hydra.errors import HydraException
from omegaconf.errors import OmegaConfBaseException

from common.cluster.discovery import compose_config
from common.cluster.training_process import read_failure_reason, start_training, stop_training
from common.diagnose.arguments import SideArguments
from common.diagnose.from_run import find_choice
from common.diagnose.overrides import drop_keys, key_of, quote_value
from common.diagnose.side_run import SideRun
from common.diagnose.start_checkpoint import copy_start_checkpoint
from common.errors import UserError
from common.records.summary import read_final_summary

POLL_SECONDS = 0.1
NONFINITE_LOSS = re.compile(r"step \d+: the loss is -?(nan|inf)")


def train_sides(sides: Sequence[SideArguments], output: Path) -> list[SideRun]:
    """Train all sides at the same time, and return their runs. Raise UserError with the error of a run that failed."""
    for side in sides:
        _remove_previous_run(output / side.name, output / f"{side.name}.log")
    is_new = not output.exists()
    output.mkdir(parents=True, exist_ok=True)
    processes: list[subprocess.Popen[bytes]] = []
    try:
        for side in sides:
            overrides = copy_start_checkpoint(side, output)
            processes.append(start_training(side.framework, overrides, output / f"{side.name}.log"))
        while any(process.poll() is None for process in processes) and not list_failed_sides(sides, processes, output):
            time.sleep(POLL_SECONDS)
        failed_sides = list_failed_sides(sides, processes, output)
    finally:
        for process in processes:
            stop_training(process)
    for side in failed_sides:
        error = read_failure_reason(output / f"{side.name}.log", output / side.name)
        has_refused = not (output / side.name).exists() and f"{side.name}.log" not in error
        if has_refused:  # else, the log says why the run failed
            _remove_output(sides, output, is_new)
        raise UserError(f"{side.name}={side.framework}:{side.strategy}: {error}")
    return [SideRun(side, output / side.name, read_nonfinite_loss(output / side.name)) for side in sides]


def train_with_values(run: SideRun, values: Mapping[str, object], output: Path) -> SideRun:
    """Train a side again with other values of some config keys, in place of its first run.

    Values with the kind of a group, such as optimizer.kind, replace all values of the group.
    """
    overrides = [
        *replace_values(run.arguments.overrides, values),
        f"run_dir={(output / run.name).absolute()}",
    ]
    return train_sides([replace(run.arguments, overrides=overrides)], output)[0]


def replace_values(overrides: Sequence[str], values: Mapping[str, object]) -> list[str]:
    """Return overrides with other values of some keys, and without `run_dir`. The kinds have different keys."""
    kinds = {key.removesuffix(".kind"): str(value) for key, value in values.items() if key.endswith(".kind")}
    replaced = {"run_dir", *values, *kinds}
    replaced |= {key for key in map(key_of, overrides) if key.partition(".")[0] in kinds}
    return [
        *drop_keys(overrides, replaced),
        *(f"{group}={find_choice(group, kind)}" for group, kind in kinds.items()),
        *(f"++{key}={quote_value(value)}" for key, value in values.items() if not key.endswith(".kind")),
    ]


def list_failed_sides(
    sides: Sequence[SideArguments], processes: Sequence[subprocess.Popen[bytes]], output: Path
) -> list[SideArguments]:
    """Return the sides whose run failed.

    A run that ended because of an infinite or nan loss did not fail. It is compared up to that step.
    """
    return [
        side
        for side, process in zip(sides, processes, strict=True)
        if process.poll() not in (None, 0) and not read_nonfinite_loss(output / side.name)
    ]


def read_nonfinite_loss(run_dir: Path) -> str:
    """Return text such as "step 3: the loss is nan" if a run ended for that reason, or an empty string."""
    summary = read_final_summary(run_dir)
    match = NONFINITE_LOSS.match(summary.get("error", "") if summary else "")
    return match[0] if match else ""


def check_streams(sides: Sequence[SideArguments]) -> None:
    """Raise UserError if a side trains on a stream, since a diagnosis reads the examples again after the runs."""
    for side in sides:
        try:
            config = compose_config(side.framework, side.train_overrides, os.environ)
        except (UserError, HydraException, OmegaConfBaseException):
            continue  # the side's command reports it
        if config.data.stream_block is not None:
            raise UserError(
                f"{side.name}: a diagnosis does not read streams; set data.stream=null data.stream_examples=null, with "
                "a data.read that yields only the examples of a few steps"
            )


def _remove_output(sides: Sequence[SideArguments], output: Path, is_new: bool) -> None:
    """Remove the runs and logs of all sides, and their directory if it is new and has nothing else in it."""
    for side in sides:
        shutil.rmtree(output / side.name, ignore_errors=True)
        (output / f"{side.name}.log").unlink(missing_ok=True)
    if is_new and not any(output.iterdir()):
        output.rmdir()


def _remove_previous_run(run_dir: Path, log: Path) -> None:
    """Remove the run that an earlier diagnosis left. Raise UserError if something else is in its place."""
    if not run_dir.exists():
        return
    if not log.exists():
        raise UserError(f"output={log.parent}: {run_dir} is not a run of this command; choose another directory")
    shutil.rmtree(run_dir)
