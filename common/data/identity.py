"""Identity of a corpus: JSON that names the corpus without reading its examples, for the keys of caches."""

from dataclasses import fields
from importlib import import_module
from pathlib import Path
from typing import TypedDict, cast

from common.config.data import DataSettings
from common.config.keys import Scope

Identity = dict[str, object]


class FileIdentity(TypedDict):
    """Properties of a file that change when its content changes."""

    path: str  # absolute, without symbolic links
    size: int  # bytes
    mtime_ns: int  # time of the last change in nanoseconds


def identify(data: DataSettings) -> Identity:
    """Return the identity of a corpus: the config keys, and its files or its version if the kind of data has them.

    The classes of a checkpoint and the commit of a branch are not included.

    Raises:
        UserError: If a file is missing.
    """
    return cast(Identity, import_module(data.source).identify(data))


def collect_source_keys(data: DataSettings) -> Identity:
    """Return the config keys that say which data is read, with their values."""
    return {
        field.name: getattr(data, field.name) for field in fields(data) if field.metadata["key"].scope is Scope.SOURCE
    }


def identify_file(path: Path) -> FileIdentity:
    """Return the identity of a file."""
    stat = path.stat()
    return {"path": str(path.resolve()), "size": stat.st_size, "mtime_ns": stat.st_mtime_ns}
