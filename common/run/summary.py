"""Writer of summary.json and running.json, which common.records.summary reads."""

import json
import os
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import cast

from common import hardware
from common.config.schema import Config
from common.data import batch_plan
from common.errors import UserError, report_write_errors
from common.records.rows import list_metrics
from common.records.summary import RUNNING_FILE, SUMMARY_FILE, RunFacts, Summary, read_summary
from common.run.context import RunContext
from common.run.files import replace_text
from common.training.rows import Row, read_rows
from common.versions import find_versions

RESTARTS_VARIABLE = (
    "LOCKSTEP_RESTARTS"  # environment variable with the number of times that the run was restarted after crashes
)
PACKAGES = {"torch": ("torch", "transformers"), "tf": ("tensorflow", "keras", "keras-hub")}


def count_restarts() -> int:
    """Return the number of restarts of the run of this process."""
    return int(os.environ.get(RESTARTS_VARIABLE, "0"))


def describe_run(context: RunContext) -> RunFacts:
    """Return the fields of summary.json that are known before training."""
    inputs = context.inputs
    fingerprints = {"token_cache": inputs.cache.fingerprint, "initial_weights": inputs.initial.fingerprint}
    facts = _collect_facts(context.config, context.framework, fingerprints)
    if inputs.initial.hf_config.get("keras_on_torch") and context.framework == "torch":
        facts["versions"] |= find_versions(("keras", "keras-hub"))
    if inputs.initial.has_batch_norm:
        facts["batch_norm"] = "global" if context.config.model.has_global_batch_norm else "replica"
    return facts


def _collect_facts(config: Config, framework: str, fingerprints: dict[str, str]) -> RunFacts:
    names = ("lockstep", "numpy", *PACKAGES[framework])
    return {
        "framework": framework,
        "strategy": config.strategy.kind,
        "replicas": config.strategy.replicas,
        "restarts": count_restarts(),
        "started": datetime.now().astimezone().isoformat(timespec="seconds"),
        "fingerprints": fingerprints,
        "plan_version": batch_plan.PLAN_VERSION,
        "versions": {"python": sys.version.split()[0], **find_versions(names)},
        "hardware": {**hardware.describe_hardware()},
    }


def write_running(run_dir: Path, facts: RunFacts) -> None:
    """Write running.json when training starts; `write_summary` removes it."""
    with suppress(OSError):  # if the disk is full, writing the rows fails next and reports it
        replace_text(run_dir / RUNNING_FILE, json.dumps({**facts, "status": "running"}, indent=1) + "\n")


def write_aborted_summary(run_dir: Path, config: Config, framework: str, status: str, error: str | None) -> None:
    """Write the summary of a run that ended before its strategy could report.

    If the config key `python` names another interpreter, this process does not know the versions of its packages. The
    chief, which runs there, may have written them to running.json.
    """
    with suppress(UserError):  # the disk is full, or a row is damaged: the caller reports the error that ended the run
        facts, running = _collect_facts(config, framework, {}), run_dir / RUNNING_FILE
        if running.is_file():
            recorded = read_summary(running)
            facts = cast(RunFacts, {name: recorded[name] for name in RunFacts.__annotations__ if name in recorded})  # type: ignore[literal-required]
        elif config.python is not None:
            del facts["versions"]
        write_summary(run_dir, config, facts, status, {}, error)


def write_summary(
    run_dir: Path,
    config: Config,
    facts: RunFacts,
    status: str,
    report: Mapping[str, object],
    error: str | None = None,
) -> Summary:
    """Write summary.json from the rows of a run, and remove running.json.

    Args:
        run_dir: the run directory, with metrics.jsonl and evals.jsonl.
        config: the config of the run.
        facts: the fields that were known before training.
        status: "completed", "interrupted" or "failed".
        report: the fields that the strategy adds, and `resumed_from`, the step of the checkpoint.
        error: why the run did not complete.

    Returns:
        The contents of summary.json.

    Raises:
        UserError: the file cannot be written, or a file of rows cannot be read.
    """
    steps, evaluations = read_rows(run_dir / "metrics.jsonl"), read_rows(run_dir / "evals.jsonl")
    replicas_changed, trained_by = _find_changes(steps, "replicas"), _find_changes(steps, "trained_by")
    # The speed is measured after the last resume and the last change of the number of replicas.
    last_change = replicas_changed[-1]["step"] - 1 if replicas_changed else 0
    untimed_steps = max(cast(int, report.get("resumed_from", 0)), last_change) + config.train.warmup_steps_untimed
    last_evaluation = evaluations[-1] if evaluations else {}
    summary: dict[str, object] = {
        **facts,
        "status": status,
        "steps": len(steps),
        **_measure_speed(steps, evaluations, untimed_steps),
        "peak_memory_bytes": [],
        **report,
        "final_loss": steps[-1]["loss"] if steps else None,
        "accuracy": None,
        **{name: last_evaluation[name] for name in list_metrics(last_evaluation)},
    }
    if replicas_changed:
        summary["replicas_changed"] = replicas_changed
    if trained_by:
        summary["trained_by"] = trained_by
    if counts := Counter(row["staleness"] for row in steps if "staleness" in row):
        summary["staleness"] = {str(staleness): counts[staleness] for staleness in sorted(counts)}
    if error:
        summary["error"] = error
    with report_write_errors(run_dir / SUMMARY_FILE):
        replace_text(run_dir / SUMMARY_FILE, json.dumps(summary, indent=1) + "\n")
        (run_dir / RUNNING_FILE).unlink(missing_ok=True)
    return cast(Summary, summary)


def _find_changes(steps: Sequence[Row], key: str) -> list[Row]:
    """Return each value of a field with the first step that has it; an empty list if the value never changed.

    Rows of earlier versions lack the fields "replicas" and "trained_by".
    """
    changes: list[Row] = []
    for row in steps:
        if key in row and (not changes or changes[-1][key] != row[key]):
            changes.append({"step": row["step"], key: row[key]})
    return changes if len(changes) > 1 else []


def _measure_speed(steps: Sequence[Row], evaluations: Sequence[Row], untimed_steps: int) -> dict[str, float | None]:
    """Return examples and tokens per second after the first `untimed_steps` steps, without the time of evaluations."""
    if len(steps) <= untimed_steps:
        return {"examples_per_second": None, "tokens_per_second": None}
    last = steps[-1]
    first = steps[untimed_steps - 1] if untimed_steps else {"step": 0, "examples": 0, "tokens": 0, "seconds": 0.0}
    seconds = last["seconds"] - first["seconds"]
    seconds -= sum(row["duration"] for row in evaluations if first["step"] <= row["step"] < last["step"])
    if seconds <= 0:
        return {"examples_per_second": None, "tokens_per_second": None}
    return {f"{unit}_per_second": (last[unit] - first[unit]) / seconds for unit in ("examples", "tokens")}
