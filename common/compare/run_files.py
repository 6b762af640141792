"""Check for the files that every run directory has."""

import os
from pathlib import Path

from common.config.saved_config import CONFIG
from common.errors import UserError
from common.recording.record_reader import is_record
from common.records.summary import find_summary_file

REQUIRED_FILES = (CONFIG, "metrics.jsonl")
KILLED = "summary.json is missing: killed before it could write one; resume it with resume=auto"


def path_exists(path: str | Path) -> bool:
    """Check whether a path exists; a name that is too long for the file system does not."""
    return os.path.exists(path)  # noqa: PTH110  Path.exists raises OSError for a name that is too long


def check_run_files(path: Path) -> None:
    """Raise UserError if `path` is not a directory or lacks a file that every run has."""
    if not path_exists(path):
        raise UserError(f"{path}: no such run directory")
    if not path.is_dir():
        raise UserError(f"{path}: a file; name the directory of a run, or NAME=FILE for an external run")
    if is_record(path):
        raise UserError(f"{path}: the record of a script; pass NAME={path}, such as old={path}")
    for name in REQUIRED_FILES:
        if not (path / name).is_file():
            raise UserError(f"{path}: not a run directory: {name} is missing")
    if not find_summary_file(path).is_file():
        raise UserError(f"{path}: {KILLED}")
