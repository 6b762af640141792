"""Writes report.html, one file that opens offline, and report.json for programs."""

import json
import math
from pathlib import Path
from typing import Any

from common.compare.pair import RunPair
from common.compare.runs import Run
from common.compare.verdict import Comparison
from common.errors import build_write_error
from common.report import staleness, traffic
from common.report.differences import config_table
from common.report.page.render import render_html
from common.report.terminal import speed_ratio


def write_report(comparison: Comparison, directory: Path) -> list[Path]:
    """Write report.html and report.json into `directory`, made if missing; return their absolute paths."""
    contents = {
        "report.html": render_html(comparison),
        "report.json": json.dumps(as_json(comparison), indent=2, allow_nan=False, ensure_ascii=False) + "\n",
    }
    return [write_text(directory, name, text) for name, text in contents.items()]


def write_text(directory: Path, name: str, text: str) -> Path:
    """Write a file into the directory of the report, made if missing; return its absolute path."""
    path = directory.resolve() / name
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise build_write_error(f"output={directory}", error) from error
    return path


def as_json(comparison: Comparison) -> dict[str, Any]:
    """The content of report.json. Numbers at full precision; null where a value is unknown or not finite.

    verdict: lockstep, diverged, not comparable or only one run; sentence: the verdict explained; reference: a label;
    tolerances: {precision: {loss, grad_norm}}; runs: a list, each with its label (unique) and path; pairs: every pair,
    a and b are labels; of runs that recorded it: staleness (updates of each) and mean_staleness, against_reference (run
    minus reference), traffic_per_step (bytes of each replica by kind), bytes_sent and messages_sent (of each rank),
    replicas_changed (each number of replicas with the first step that it trained), trained_by (the same of frameworks
    and strategies); config_differences: {key: {values: {label: value}, may_change_curve}}; notes: sentences; left_out:
    why other runs cannot be read.
    """
    return _finite(
        {
            "verdict": comparison.verdict,
            "sentence": comparison.sentence,
            "reference": comparison.reference.label,
            "tolerances": {name: vars(tolerance) for name, tolerance in comparison.tolerances.items()},
            "runs": [_run_as_json(run, comparison.reference) for run in comparison.runs],
            "pairs": [_pair_as_json(pair) for pair in comparison.pairs],
            "config_differences": config_table(comparison),
            "notes": comparison.notes,
            "left_out": comparison.left_out,
        }
    )


def _run_as_json(run: Run, reference: Run) -> dict[str, Any]:
    found: dict[str, Any] = {
        "label": run.label,
        "path": str(run.path),
        **{key: run.summary.get(key) for key in ("framework", "strategy", "replicas", "status", "started")},
        "precision": run.precision,
        "steps": len(run.steps),
        **{key: run.summary.get(key) for key in ("final_loss", "accuracy")},
        **{key: run.summary.get(key) for key in ("examples_per_second", "tokens_per_second")},
        "speed_ratio": speed_ratio(run, reference),
        **{key: run.summary.get(key) for key in ("peak_memory_bytes", "fingerprints", "versions", "hardware")},
        "asynchronous": run.asynchronous,
    }
    if run.staleness:
        found |= {"staleness": run.staleness, "mean_staleness": staleness.mean(run)}
    if run.asynchronous:
        found["against_reference"] = vars(staleness.difference(run, reference))
    if run.traffic:
        found["traffic_per_step"] = {kind: traffic.per_step(run, kind).tolist() for kind in run.traffic}
    optional = ("replicas_changed", "trained_by", "bytes_sent", "messages_sent")
    return found | {key: run.summary[key] for key in optional if run.summary.get(key)}


def _pair_as_json(pair: RunPair) -> dict[str, Any]:
    plain = {key: value for key, value in vars(pair).items() if key not in ("envelope", "first_beyond")}
    plain |= {"a": pair.a.label, "b": pair.b.label, "tolerance": vars(pair.tolerance)}
    return plain | {"config_differences": {key: list(values) for key, values in pair.config_differences.items()}}


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _finite(entry) for key, entry in value.items()}
    if isinstance(value, list):
        return [_finite(entry) for entry in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
