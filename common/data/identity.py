"""What names a corpus without reading its examples, for the keys of caches."""

from dataclasses import fields
from importlib import import_module
from pathlib import Path
from typing import Any

from common.config.data import DataSettings
from common.config.keys import Scope


def identify(data: DataSettings) -> dict[str, Any]:
    """The identity of a corpus: the keys of its schema, and its files or its version where the kind has them.

    Neither a checkpoint's classes nor the commit of a branch are in it. Raises UserError for a file that is missing.
    """
    found: dict[str, Any] = import_module(data.source).identify(data)
    return found


def collect_source_keys(data: DataSettings) -> dict[str, Any]:
    """The values of the keys that name where the data comes from."""
    return {each.name: getattr(data, each.name) for each in fields(data) if each.metadata["key"].scope is Scope.SOURCE}


def identify_file(path: Path) -> dict[str, Any]:
    """What names a file's content without reading it: its path, size and time of change."""
    stat = path.stat()
    return {"path": str(path.resolve()), "size": stat.st_size, "mtime_ns": stat.st_mtime_ns}
