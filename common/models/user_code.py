"""The files of a user's code that build a model. If one changes, the model's initial checkpoint is built again.

Which files a model's code imports is known only after a build. So the last build writes a list of them.
"""

import json
import os
from pathlib import Path

from common.data.atomic_directory import compute_checksum


def read_file_list(list_path: Path) -> list[str] | None:
    """Return the files that the last build used, or None if there was no build or if a file no longer exists."""
    try:
        files: list[str] = json.loads(list_path.read_text())
    except (OSError, ValueError):
        return None
    return files if all(Path(file).is_file() for file in files) else None


def write_file_list(list_path: Path, files: list[str]) -> None:
    """Write the files that a build used, for `read_file_list`."""
    list_path.parent.mkdir(parents=True, exist_ok=True)
    partial = list_path.with_suffix(f".{os.getpid()}.partial")
    partial.write_text(json.dumps(files))
    partial.replace(list_path)


def compute_checksums(files: list[str]) -> dict[str, str]:
    """Return the checksum of each file."""
    return {file: compute_checksum(Path(file)) for file in files}
