"""summary.json: what a run was, how it ended, how fast it was; running.json before it has ended."""

import json
import os
import sys
from collections import Counter
from collections.abc import Iterable, Mapping
from contextlib import suppress
from datetime import datetime
from importlib import metadata
from pathlib import Path
from typing import Any, cast

from common import hardware
from common.config.schema import Config
from common.config.tasks import METRICS
from common.data import batch_plan
from common.run.context import RunContext
from common.run.rows import read_rows, replace_text

RESTARTS = "LOCKSTEP_RESTARTS"  # the variable that says how often the run has been restarted
RUNNING = "running.json"
PACKAGES = {"torch": ("torch", "transformers"), "tf": ("tensorflow", "keras", "keras-hub")}


def restarts() -> int:
    """How often the run of this process has been restarted."""
    return int(os.environ.get(RESTARTS, "0"))


RunFacts = dict[str, Any]


def describe_run(context: RunContext) -> RunFacts:
    """Return the fields of summary.json that are known before training."""
    inputs, model = context.inputs, context.config.model
    fingerprints = {"token_cache": inputs.cache.fingerprint, "initial_weights": inputs.initial.fingerprint}
    facts = _facts(context.config, context.framework, fingerprints)
    if inputs.initial.has_batch_norm:
        facts["batch_norm"] = "global" if model.has_global_batch_norm else "replica"
    return facts


def _facts(config: Config, framework: str, fingerprints: dict[str, str]) -> RunFacts:
    names = ("lockstep", "numpy", *PACKAGES[framework])
    return {
        "framework": framework,
        "strategy": config.strategy.kind,
        "replicas": config.strategy.replicas,
        "restarts": restarts(),
        "started": datetime.now().astimezone().isoformat(timespec="seconds"),
        "fingerprints": fingerprints,
        "plan_version": batch_plan.PLAN_VERSION,
        "versions": {"python": sys.version.split()[0], **installed_versions(names)},
        "hardware": hardware.describe_hardware(),
    }


def installed_versions(names: Iterable[str]) -> dict[str, str]:
    """The versions of these packages, without those that are not installed: Lockstep may run from a checkout."""
    found = {}
    for name in names:
        with suppress(metadata.PackageNotFoundError):
            found[name] = metadata.version(name)
    return found


def write_running(run_dir: Path, about: dict[str, Any]) -> None:
    """Write running.json, the facts of a run that trains: `write_summary` replaces it."""
    with suppress(OSError):  # on a full disk the rows fail next, and say so
        replace_text(run_dir / RUNNING, json.dumps({**about, "status": "running"}, indent=1) + "\n")


def write_aborted_summary(run_dir: Path, config: Config, framework: str, status: str, error: str | None) -> None:
    """Write summary.json for a run whose strategy reported nothing, since it was stopped or killed before."""
    write_summary(run_dir, config, _facts(config, framework, {}), status, {}, error)


def write_summary(
    run_dir: Path,
    config: Config,
    about: dict[str, Any],
    status: str,
    report: Mapping[str, object],
    error: str | None = None,
) -> dict[str, Any]:
    """Write summary.json from the run's files. Returns what it says. `status` is completed, interrupted or failed.

    about: the facts. report: of the strategy; see common.training.strategy.
    """
    steps, evals = read_rows(run_dir / "metrics.jsonl"), read_rows(run_dir / "evals.jsonl")
    changed, trained_by = _changes(steps, "replicas"), _changes(steps, "trained_by")
    before = max(cast(int, report.get("resumed_from", 0)), changed[-1]["step"] - 1 if changed else 0)
    summary = {
        **about,
        "status": status,
        "steps": len(steps),
        **_speed(steps, evals, before + config.train.warmup_steps_untimed),
        "peak_memory_bytes": [],
        **report,
        "final_loss": steps[-1]["loss"] if steps else None,
        "accuracy": None,
        **{name: evals[-1][name] for name in METRICS if evals and name in evals[-1]},
    }
    if changed:
        summary["replicas_changed"] = changed
    if trained_by:
        summary["trained_by"] = trained_by
    if stale := Counter(row["staleness"] for row in steps if "staleness" in row):
        summary["staleness"] = {str(staleness): stale[staleness] for staleness in sorted(stale)}
    if error:
        summary["error"] = error
    with suppress(OSError):  # a full disk is then the error, and has been reported
        replace_text(run_dir / "summary.json", json.dumps(summary, indent=1) + "\n")
        (run_dir / RUNNING).unlink(missing_ok=True)
    return summary


def _changes(steps: list[dict[str, Any]], key: str) -> list[dict[str, Any]]:
    """Each value of a key with the first step that has it; empty where it never changed.

    steps: rows of metrics.jsonl. Those of earlier versions say neither how many replicas trained them nor which.
    """
    found: list[dict[str, Any]] = []
    for row in steps:
        if key in row and (not found or found[-1][key] != row[key]):
            found.append({"step": row["step"], key: row[key]})
    return found if len(found) > 1 else []


def _speed(steps: list[dict[str, Any]], evals: list[dict[str, Any]], untimed: int) -> dict[str, float | None]:
    """Examples and tokens per second after the first `untimed` steps, evaluations left out."""
    if len(steps) <= untimed:
        return {"examples_per_second": None, "tokens_per_second": None}
    last = steps[-1]
    first = steps[untimed - 1] if untimed else {"step": 0, "examples": 0, "tokens": 0, "seconds": 0.0}
    seconds = last["seconds"] - first["seconds"]
    seconds -= sum(row["duration"] for row in evals if first["step"] <= row["step"] < last["step"])
    if seconds <= 0:
        return {"examples_per_second": None, "tokens_per_second": None}
    return {f"{unit}_per_second": (last[unit] - first[unit]) / seconds for unit in ("examples", "tokens")}
