"""report.json: a comparison for programs. Numbers have full precision; null stands for unknown or not finite."""

import json
import math
from pathlib import Path
from typing import NotRequired, TypedDict

from common.compare.measures import compare_with_reference, compute_mean_staleness, compute_speed_ratio
from common.compare.pair import RunPair, Tolerance
from common.compare.runs import Run, list_evaluated_metrics
from common.compare.verdict import Comparison
from common.records.summary import ReplicaStretch, TrainerStretch
from common.report.differences import ConfigRow, build_config_table
from common.report.files import write_report_file
from common.report.seed_json import JsonSeedComparison, convert_group_comparisons


class JsonTolerance(TypedDict):
    """A tolerance in report.json."""

    loss: float
    grad_norm: float


class JsonReferenceDifference(TypedDict):
    """Differences, run minus reference, after equal numbers of examples."""

    loss: float | None
    evaluation_loss: float | None
    accuracy: float | None


class JsonRun(TypedDict):
    """A run in report.json."""

    label: str  # unique
    path: str
    framework: str | None
    strategy: str | None
    replicas: int | None
    status: str
    started: str | None
    precision: str
    steps: int
    final_loss: float | None
    accuracy: float | None
    metrics: dict[str, float]  # metrics of the last evaluation, such as f1; NaN if a metric is not defined
    examples_per_second: float | None
    tokens_per_second: float | None
    speed_ratio: float | None  # examples per second, as a multiple of the reference run's
    peak_memory_bytes: list[float | None] | None  # peak memory of each replica
    fingerprints: dict[str, str] | None
    versions: dict[str, str] | None
    hardware: dict[str, object] | None
    asynchronous: bool
    staleness: NotRequired[dict[int, int]]  # for each n, how many updates missed n updates of other workers
    mean_staleness: NotRequired[float | None]
    against_reference: NotRequired[JsonReferenceDifference]
    traffic_per_step: NotRequired[dict[str, list[float]]]  # bytes of each replica by kind
    replicas_changed: NotRequired[list[ReplicaStretch]]
    trained_by: NotRequired[list[TrainerStretch]]
    parameter_bytes: NotRequired[list[float | None]]  # bytes that each replica holds between two steps
    gradient_bytes: NotRequired[list[float | None]]  # bytes that each replica holds between two steps
    slot_bytes: NotRequired[list[float | None]]  # bytes that each replica holds between two steps
    bytes_sent: NotRequired[list[float | None]]  # bytes of gradients that each rank sent in all steps
    messages_sent: NotRequired[list[int | None]]  # messages with gradients that each rank sent in all steps


class JsonPair(TypedDict):
    """A pair of runs in report.json, with the fields of RunPair."""

    a: str  # label
    b: str  # label
    verdict: str
    tolerance: JsonTolerance
    steps: int
    max_loss_difference: float | None
    max_loss_difference_step: int | None
    max_grad_norm_difference: float | None
    max_grad_norm_difference_step: int | None
    first_step_beyond: int | None
    identical_steps: int
    evaluation_examples: int | None
    evaluation_loss_difference: float | None
    accuracy_difference: float | None
    metric_differences: dict[str, float]  # absolute difference of each metric of the evaluations, such as f1
    config_differences: dict[str, list[object]]  # values of a and b by key
    asynchronous: bool
    reasons: list[str]
    notes: list[str]


class JsonReport(TypedDict):
    """Content of report.json."""

    verdict: str
    sentence: str  # the verdict with an explanation
    reference: str  # label
    tolerances: dict[str, JsonTolerance]  # tolerances by precision
    runs: list[JsonRun]
    pairs: list[JsonPair]
    seed_comparisons: list[JsonSeedComparison]  # empty if runs are not compared by seeds
    config_differences: dict[str, ConfigRow]  # the differing values of each config key
    notes: list[str]
    left_out: list[str]  # why other runs cannot be read


def write_json(comparison: Comparison, directory: Path) -> Path:
    """Write report.json into `directory`, which is created if missing. Return the absolute path."""
    content = _replace_infinities(build_json_report(comparison))
    text = json.dumps(content, indent=2, allow_nan=False, ensure_ascii=False) + "\n"
    return write_report_file(directory, "report.json", text)


def build_json_report(comparison: Comparison) -> JsonReport:
    """Return the content of report.json; numbers may be infinite or NaN."""
    return {
        "verdict": comparison.verdict,
        "sentence": comparison.sentence,
        "reference": comparison.reference.label,
        "tolerances": {name: _convert_tolerance(tolerance) for name, tolerance in comparison.tolerances.items()},
        "runs": [_convert_run(run, comparison.reference) for run in comparison.runs],
        "pairs": [_convert_pair(pair) for pair in comparison.pairs],
        "seed_comparisons": convert_group_comparisons(comparison.group_comparisons),
        "config_differences": build_config_table(comparison),
        "notes": comparison.notes,
        "left_out": comparison.left_out,
    }


def _convert_tolerance(tolerance: Tolerance) -> JsonTolerance:
    return {"loss": tolerance.loss, "grad_norm": tolerance.grad_norm}


def _convert_run(run: Run, reference: Run) -> JsonRun:
    summary = run.summary
    content: JsonRun = {
        "label": run.label,
        "path": str(run.path),
        "framework": summary["framework"],
        "strategy": summary["strategy"],
        "replicas": summary["replicas"],
        "status": summary["status"],
        "started": summary.get("started"),
        "precision": run.precision,
        "steps": len(run.steps),
        "final_loss": summary.get("final_loss"),
        "accuracy": summary.get("accuracy"),
        "metrics": {name: float(run.evals[name][-1]) for name in list_evaluated_metrics([run])},
        "examples_per_second": summary.get("examples_per_second"),
        "tokens_per_second": summary.get("tokens_per_second"),
        "speed_ratio": compute_speed_ratio(run, reference),
        "peak_memory_bytes": summary.get("peak_memory_bytes"),
        "fingerprints": summary.get("fingerprints"),
        "versions": summary.get("versions"),
        "hardware": summary.get("hardware"),
        "asynchronous": run.is_asynchronous,
    }
    if run.staleness:
        content["staleness"] = run.staleness
        content["mean_staleness"] = compute_mean_staleness(run)
    if run.is_asynchronous:
        difference = compare_with_reference(run, reference)
        content["against_reference"] = {
            "loss": difference.loss,
            "evaluation_loss": difference.evaluation_loss,
            "accuracy": difference.accuracy,
        }
    if run.bytes_by_kind:
        content["traffic_per_step"] = {kind: run.get_traffic_per_step(kind).tolist() for kind in run.bytes_by_kind}
    if changes := summary.get("replicas_changed"):
        content["replicas_changed"] = changes
    if trainers := summary.get("trained_by"):
        content["trained_by"] = trainers
    if summary.get("parameter_bytes"):
        content["parameter_bytes"] = summary["parameter_bytes"] or []
        content["gradient_bytes"] = summary.get("gradient_bytes") or []
        content["slot_bytes"] = summary.get("slot_bytes") or []
    if bytes_sent := summary.get("bytes_sent"):
        content["bytes_sent"] = bytes_sent
    if messages_sent := summary.get("messages_sent"):
        content["messages_sent"] = messages_sent
    return content


def _convert_pair(pair: RunPair) -> JsonPair:
    return {
        "a": pair.a.label,
        "b": pair.b.label,
        "verdict": pair.verdict,
        "tolerance": _convert_tolerance(pair.tolerance),
        "steps": pair.steps,
        "max_loss_difference": pair.max_loss_difference,
        "max_loss_difference_step": pair.max_loss_difference_step,
        "max_grad_norm_difference": pair.max_grad_norm_difference,
        "max_grad_norm_difference_step": pair.max_grad_norm_difference_step,
        "first_step_beyond": pair.first_step_beyond,
        "identical_steps": pair.identical_steps,
        "evaluation_examples": pair.evaluation_examples,
        "evaluation_loss_difference": pair.evaluation_loss_difference,
        "accuracy_difference": pair.accuracy_difference,
        "metric_differences": pair.metric_differences,
        "config_differences": {key: list(values) for key, values in pair.config_differences.items()},
        "asynchronous": pair.asynchronous,
        "reasons": pair.reasons,
        "notes": pair.notes,
    }


def _replace_infinities(value: object) -> object:
    """Replace NaN and infinities, which JSON does not have, by None; convert keys to strings."""
    if isinstance(value, dict):
        return {str(key): _replace_infinities(entry) for key, entry in value.items()}
    if isinstance(value, list):
        return [_replace_infinities(entry) for entry in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
