"""The finished runs that a diagnosis repeats: their environments, and whether their curves are reproduced.

A run records its versions and its hardware in summary.json, and its curve in metrics.jsonl. If another
environment made the run, its curve may not be reproduced here. A diagnosis of the repeated run then does not explain
that curve.
"""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from common import hardware
from common.diagnose.from_run import find_divergence, have_same_row, read_steps, read_tolerances
from common.diagnose.side_run import SideRun
from common.errors import one_line
from common.records.summary import read_final_summary
from common.training.rows import Row
from common.versions import find_versions

# The memory is left out, because a part of it may be reserved
COMPARED_HARDWARE = ("machine", "processor", "cores", "gpus", "gpu")
UNRECORDED = "(not recorded)"


@dataclass
class FinishedRuns:
    """Sentences of a diagnosis about the finished runs that it repeats, for a reader of the report.

    Attributes:
        environment: A sentence for each run that was made in another environment.
        unreproduced: A sentence for each recorded curve, or part of one, that the repeated runs do not reproduce.
    """

    environment: list[str] = field(default_factory=list)
    unreproduced: list[str] = field(default_factory=list)


def compare_with_finished(runs: Sequence[SideRun]) -> FinishedRuns:
    """Compare repeated runs with the finished runs that they repeat. Ignore runs that repeat none."""
    recorded, recorded_rows = FinishedRuns(), []
    for run in runs:
        if (directory := run.arguments.repeats) is None:
            continue
        difference = ""
        if not run.is_asynchronous:
            recorded_rows.append(read_steps(directory))
            difference = find_other_curve(run, recorded_rows[-1], _find_last_step(directory, recorded_rows[-1]))
        if differences := find_other_environment(directory, run.directory):
            recorded.environment.append(
                f"{run.name.upper()} ({directory}) was made in another environment, {', '.join(differences)}"
                + ("" if difference or run.is_asynchronous else ", and its curve is reproduced here")
            )
        recorded.environment += _describe_changes(run.name, directory)
        if difference:
            recorded.unreproduced.append(f"{run.name.upper()}'s recorded curve is not reproduced here: {difference}")
    if len(recorded_rows) == 2:
        recorded.unreproduced += _find_unrepeated_divergence(runs, *recorded_rows)
    return recorded


def _describe_changes(name: str, directory: Path) -> list[str]:
    """Return a sentence for each step from which another environment trained a run."""
    summary = read_final_summary(directory)
    changes = summary.get("environment_changed", []) if summary is not None else []
    return [
        f"{name.upper()} ({directory}) was trained in another environment from step {change['step']}, "
        + ", ".join(map(_printable, change["changes"]))
        for change in changes
    ]


def find_other_environment(directory: Path, repeated: Path | None = None) -> list[str]:
    """Return the differences in versions and hardware between a run and this machine, as "torch 2.9 (here 2.11)".

    Args:
        directory: The run directory.
        repeated: The directory of the repeated run. Its interpreter and devices may differ from this command's.
    """
    summary: Mapping[str, object] = read_final_summary(directory) or {}
    versions, machine = (_to_mapping(summary.get(key)) for key in ("versions", "hardware"))
    if not versions:
        return [f"versions {UNRECORDED}"]
    repeated_summary: Mapping[str, object] = (read_final_summary(repeated) if repeated is not None else None) or {}
    present: dict[str, object] = {**find_versions(versions.keys()), "python": sys.version.split()[0]}
    present.update(_to_mapping(repeated_summary.get("versions")))
    if "lockstep" not in present:  # a checkout has no version
        versions.pop("lockstep", None)
    present_machine = {**hardware.describe_hardware(), **_to_mapping(repeated_summary.get("hardware"))}
    # Earlier versions recorded neither the model of the processor nor the models of the GPUs.
    if machine.get("processor") == machine.get("machine"):
        machine["processor"] = present_machine["processor"]
    machine.setdefault("gpu", present_machine["gpu"])
    machine = {name: machine.get(name, UNRECORDED) for name in COMPARED_HARDWARE}
    devices = [_to_mapping(facts.get("environment")).get("device") for facts in (summary, repeated_summary)]
    pairs = [
        *((name, value, present.get(name, "not installed")) for name, value in versions.items()),
        *((name, value, present_machine[name]) for name, value in machine.items()),
        *([("device", *devices)] if None not in devices else []),
    ]
    return [_printable(f"{name} {value} (here {here})") for name, value, here in pairs if value != here]


def _find_last_step(directory: Path, rows: Mapping[int, Row]) -> int | None:
    """Return the last step of a run, even if rows are lost; None if the summary has no number of steps."""
    summary = read_final_summary(directory)
    count = summary.get("steps") if summary is not None else None
    return max(count, *rows) if count is not None and rows else count


def find_other_curve(run: SideRun, rows: Mapping[int, Row], last_step: int | None) -> str:
    """Describe how the repeated curve of a run differs from the recorded curve; empty if the curves agree.

    The precision of the less precise run decides the tolerance.

    Args:
        run: The repeated run.
        rows: The rows of the recorded run by step.
        last_step: The last step of the recorded run, which may have fewer steps than are repeated; None if not known.
    """
    repeated = [row for row in run.rows if last_step is None or row["step"] <= last_step]
    steps = [row["step"] for row in repeated]
    missing = [step for step in steps if step not in rows]
    if missing or not steps:
        return f"it has no step {missing[0]}" if missing else "no step was repeated"
    precisions = {run.precision, *run.recorded_precisions}
    tolerances = read_tolerances(precisions)
    for row in repeated:
        recorded = rows[int(row["step"])]
        if not have_same_row(recorded, row, tolerances):
            others = run.recorded_precisions - {run.precision}
            advice = f"; try precision={min(others)}" if others else ""
            return f"step {row['step']} has {_format(recorded)} there and {_format(row)} here{advice}"
    return ""


def _find_unrepeated_divergence(
    runs: Sequence[SideRun], rows_a: Mapping[int, Row], rows_b: Mapping[int, Row]
) -> list[str]:
    """Return a sentence if two finished runs with these rows diverge at a step that was not repeated."""
    precisions = {precision for run in runs for precision in run.recorded_precisions}
    step = find_divergence(rows_a, rows_b, precisions)
    first, last = runs[0].steps_before + 1, runs[0].config.train.steps
    if step is None or first <= step <= last:
        return []
    return [
        f"the recorded curves diverge at step {step}, and only steps {first} to {last} were repeated; save checkpoints "
        "before it (train.checkpoint_every)"
    ]


def _to_mapping(value: object) -> dict[str, object]:
    return {str(name): entry for name, entry in value.items()} if isinstance(value, Mapping) else {}


def _printable(text: str) -> str:
    """Return a text of a run directory, which may be from somebody else, without control characters."""
    return "".join(character for character in one_line(text)[:100] if character.isprintable())


def _format(row: Row | Mapping[str, float]) -> str:
    return f"loss {row['loss']:.6g} and grad_norm {row['grad_norm']:.6g}"
