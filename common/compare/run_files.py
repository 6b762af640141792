"""Readers for summary.json and config.yaml of a run directory. Errors name the file and the malformed value."""

import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NotRequired, TypedDict, TypeGuard, cast

from omegaconf import OmegaConf

from common.config.legacy import upgrade_values
from common.errors import UserError, one_line

REQUIRED_FILES = ("config.yaml", "metrics.jsonl")
SUMMARY_FILES = ("summary.json", "running.json")  # a run has the second while it trains, and the first at its end
KILLED = "summary.json is missing: killed before it could write one; resume it with resume=auto"
FlatConfig = dict[str, object]  # {"train.seed": 1, ...}


class ReplicaChange(TypedDict):
    """Number of replicas of a run since a step."""

    step: int
    replicas: int


class TrainerChange(TypedDict):
    """Framework and strategy that trained a run since a step."""

    step: int
    trained_by: str


class RunSummary(TypedDict):
    """Fields of summary.json that a comparison uses; None if a value is unknown."""

    framework: str | None  # None for a run of another program, as are strategy and replicas
    strategy: str | None
    status: str
    replicas: int | None
    started: NotRequired[str]
    final_loss: NotRequired[float | None]
    accuracy: NotRequired[float | None]
    examples_per_second: NotRequired[float | None]
    tokens_per_second: NotRequired[float | None]
    peak_memory_bytes: NotRequired[list[float | None] | None]  # of each replica
    bytes_sent: NotRequired[list[float | None] | None]  # of each rank
    messages_sent: NotRequired[list[int | None] | None]  # of each rank
    replicas_changed: NotRequired[list[ReplicaChange]]
    trained_by: NotRequired[list[TrainerChange]]
    staleness: NotRequired[dict[str, int]]  # number of updates that missed n updates of other workers, by n
    batch_norm: NotRequired[str]  # whose statistics BatchNorm uses: "replica" or "global"
    plan_version: NotRequired[int]  # version of the function that orders the examples
    resumed_from: NotRequired[int | None]  # last step of the checkpoint
    restarts: NotRequired[int]
    fingerprints: NotRequired[dict[str, str]]  # hashes of the content of "token_cache" and "initial_weights"
    versions: NotRequired[dict[str, str]]
    hardware: NotRequired[dict[str, object]]


def path_exists(path: str | Path) -> bool:
    """Check whether a path exists; a name that is too long for the file system does not."""
    return os.path.exists(path)  # noqa: PTH110  Path.exists raises OSError for a name that is too long


def check_run_files(path: Path) -> None:
    """Raise UserError if `path` is not a directory or lacks a file that every run has."""
    if not path_exists(path):
        raise UserError(f"{path}: no such run directory")
    if not path.is_dir():
        raise UserError(f"{path}: a file; name the directory of a run, or NAME=FILE for an external run")
    for name in REQUIRED_FILES:
        if not (path / name).is_file():
            raise UserError(f"{path}: not a run directory: {name} is missing")
    if not find_summary_file(path).is_file():
        raise UserError(f"{path}: {KILLED}")


def find_summary_file(path: Path) -> Path:
    """Return the path of summary.json, or of running.json if the run has not ended."""
    return next((file for name in SUMMARY_FILES if (file := path / name).is_file()), path / SUMMARY_FILES[0])


def read_summary(file: Path) -> RunSummary:
    """Read summary.json or running.json. Raises UserError if a field in SUMMARY_CHECKS has the wrong type."""
    content = read_bytes(file)
    try:
        summary = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise UserError(f"{file}: not valid JSON: {error}") from error
    if not isinstance(summary, dict):
        raise UserError(f"{file}: not a JSON object")
    for names, default, is_valid, expected in SUMMARY_CHECKS:
        for name in names:
            value = summary.get(name, default)
            if not is_valid(value):
                raise UserError(f"{file}: '{name}' must {expected}, found {value!r}")
    return cast(RunSummary, summary)


def _is_number_list(value: object) -> bool:
    return value is None or (isinstance(value, list) and all(is_number(item, null=True) for item in value))


def _is_change_list(key: str, kind: type) -> Callable[[object], bool]:
    """Return a check for a list of objects with a step and a value of this type at `key`."""

    def check(changes: object) -> bool:
        return isinstance(changes, list) and all(
            isinstance(change, dict) and isinstance(change.get("step"), int) and isinstance(change.get(key), kind)
            for change in changes
        )

    return check


def _is_histogram(value: object) -> bool:
    return isinstance(value, dict) and all(
        staleness.isdecimal() and isinstance(count, int) for staleness, count in value.items()
    )


# Fields, the value of an absent field, the check, and what the error says.
SUMMARY_CHECKS: tuple[tuple[tuple[str, ...], object, Callable[[object], bool], str], ...] = (
    (("framework", "strategy", "status"), None, lambda value: isinstance(value, str), "be a string"),
    (("replicas",), None, lambda value: isinstance(value, int), "be a whole number"),
    (
        ("final_loss", "accuracy", "examples_per_second", "tokens_per_second"),
        None,
        lambda value: is_number(value, null=True),
        "be a number or null",
    ),
    (("peak_memory_bytes", "bytes_sent", "messages_sent"), None, _is_number_list, "be a list of numbers"),
    (("replicas_changed",), [], _is_change_list("replicas", int), "list steps and numbers of replicas"),
    (("trained_by",), [], _is_change_list("trained_by", str), "list steps and what trained from there"),
    (("staleness",), {}, _is_histogram, "map whole numbers to their counts"),
)


def read_config(file: Path) -> FlatConfig:
    """Read config.yaml of any version as a flat mapping with today's key names: {"train.seed": 1, ...}."""
    try:
        nested = OmegaConf.to_container(OmegaConf.load(file), resolve=False)
    except Exception as error:  # OmegaConf, the YAML parser and the decoder raise errors without a common base
        raise UserError(f"{file}: not valid YAML: {one_line(error)}") from error
    if not isinstance(nested, dict):
        raise UserError(f"{file}: not a mapping of keys to values")
    return upgrade_values(_flatten(cast("dict[object, object]", nested)))


def _flatten(nested: Mapping[object, object], prefix: str = "") -> FlatConfig:
    flat: FlatConfig = {}
    for key, value in nested.items():
        if isinstance(value, dict):
            flat |= _flatten(value, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = value
    return flat


def read_bytes(file: Path) -> bytes:
    """Return the content of a file. Raises UserError if it cannot be read."""
    try:
        return file.read_bytes()
    except OSError as error:
        raise UserError(f"{file}: cannot be read: {error.strerror}") from error


def is_number(value: object, null: bool = False) -> TypeGuard[float | None]:
    """Check whether a JSON value is a number that a float can hold. `null`: whether None counts as a number."""
    if value is None:
        return null
    return isinstance(value, float) or (isinstance(value, int) and not isinstance(value, bool) and abs(value) < 2**1000)
