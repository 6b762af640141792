"""Reads the files of a run directory, row by row. Errors name the file, the line and the value that is malformed."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from omegaconf import OmegaConf

from common.config.legacy import upgrade_values
from common.errors import UserError, one_line

MOVED = ("scattered", "broadcast", "gathered", "reduced")
KINDS = (*MOVED, "logits", "memory")  # all in bytes


def read_summary(file: Path) -> dict[str, Any]:
    """summary.json, after checking the types of the fields that a comparison uses."""
    content = content_of(file)
    try:
        summary = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise UserError(f"{file}: not valid JSON: {error}") from error
    if not isinstance(summary, dict):
        raise UserError(f"{file}: not a JSON object")
    for key in ("framework", "strategy", "status"):
        if not isinstance(summary.get(key), str):
            raise UserError(f"{file}: '{key}' must be a string, found {summary.get(key)!r}")
    if not isinstance(summary.get("replicas"), int):
        raise UserError(f"{file}: 'replicas' must be a whole number, found {summary.get('replicas')!r}")
    for key in ("final_loss", "accuracy", "examples_per_second", "tokens_per_second"):
        if not is_number(summary.get(key, 0), null=True):
            raise UserError(f"{file}: '{key}' must be a number or null, found {summary[key]!r}")
    for key in ("peak_memory_bytes", "bytes_sent", "messages_sent"):
        values = summary.get(key) or []
        if not isinstance(values, list) or not all(is_number(value, null=True) for value in values):
            raise UserError(f"{file}: '{key}' must be a list of numbers, found {values!r}")
    changes = summary.get("replicas_changed", [])
    if not isinstance(changes, list) or not all(
        isinstance(each, dict) and all(isinstance(each.get(key), int) for key in ("step", "replicas"))
        for each in changes
    ):
        raise UserError(f"{file}: 'replicas_changed' must list steps and numbers of replicas, found {changes!r}")
    hops = summary.get("trained_by", [])
    if not isinstance(hops, list) or not all(
        isinstance(each, dict) and isinstance(each.get("step"), int) and isinstance(each.get("trained_by"), str)
        for each in hops
    ):
        raise UserError(f"{file}: 'trained_by' must list steps and what trained from there, found {hops!r}")
    histogram = summary.get("staleness", {})
    if not isinstance(histogram, dict) or not all(
        staleness.isdecimal() and isinstance(count, int) for staleness, count in histogram.items()
    ):
        raise UserError(f"{file}: 'staleness' must map whole numbers to their counts, found {histogram!r}")
    return summary


def read_config(file: Path) -> dict[str, Any]:
    """config.yaml of any version, flat, with today's names of the keys: {"train.seed": 1, ...}."""
    try:
        nested = OmegaConf.to_container(OmegaConf.load(file), resolve=False)
    except Exception as error:  # of OmegaConf, of YAML, or of the decoder
        raise UserError(f"{file}: not valid YAML: {one_line(error)}") from error
    if not isinstance(nested, dict):
        raise UserError(f"{file}: not a mapping of keys to values")
    return upgrade_values(_flatten(nested))


def _flatten(nested: dict[Any, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in nested.items():
        if isinstance(value, dict):
            flat |= _flatten(value, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = value
    return flat


def read_traffic(file: Path, replicas: int, first: int, notes: list[str]) -> dict[str, np.ndarray]:
    """Each of KINDS that the first row of traffic.jsonl has, as float64 [rows, replicas]; null becomes NaN.

    first: the step since which the run has had so many replicas; earlier rows are left out.
    """
    rows = [(where, row) for where, row in rows_of(file, notes) if row["step"] >= first]
    kinds = [kind for kind in KINDS if rows and kind in rows[0][1]]
    for where, row in rows:
        for kind in kinds:
            values = row.get(kind)
            if not isinstance(values, list) or len(values) != replicas or not all(is_number(v, True) for v in values):
                raise UserError(f"{where}: '{kind}' must be a list of {replicas} numbers, found {values!r}")
    return {kind: np.array([row[kind] for _, row in rows], dtype=np.float64) for kind in kinds}


def rows_of(file: Path, notes: list[str]) -> Iterator[tuple[str, dict[str, Any]]]:
    """The rows of a .jsonl file, each an object with a step, and where they are: file:line."""
    lines = content_of(file).split(b"\n")
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            if number == len(lines):
                notes.append(f"{file}:{number}: incomplete last line left out")
                break
            raise UserError(f"{file}:{number}: not a valid JSON row: {error}") from error
        step = row.get("step") if isinstance(row, dict) else None
        if not isinstance(step, int) or not 0 <= step < 2**53:
            raise UserError(f"{file}:{number}: a row must be a JSON object with a whole number 'step', found {step!r}")
        yield f"{file}:{number}", row


def content_of(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError as error:
        raise UserError(f"{file}: cannot be read: {error.strerror}") from error


def is_number(value: Any, null: bool = False) -> bool:
    if value is None:
        return null
    return isinstance(value, float) or (isinstance(value, int) and not isinstance(value, bool) and abs(value) < 2**1000)
