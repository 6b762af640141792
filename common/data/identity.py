"""Identity of a corpus: values that change when the corpus changes, found without reading its examples.

The name of a cache directory has a fingerprint of the identity, so another corpus gets another cache.
"""

from dataclasses import fields
from importlib import import_module
from pathlib import Path
from typing import TypedDict, cast

from common.config.data import DataSettings
from common.config.keys import Scope

Identity = dict[str, object]  # values that JSON can hold


class FileIdentity(TypedDict):
    """Properties of a file that change when its content changes."""

    path: str  # absolute, without symbolic links
    size: int  # bytes
    mtime_ns: int  # time of the last change in nanoseconds


def identify(data: DataSettings) -> Identity:
    """Return the identity of a corpus: the config keys, and its files or its version if the kind of data has them.

    The classes of a pretrained checkpoint are not included. Neither is the commit that a branch of the hub points to.

    Raises:
        UserError: If a file is missing.
    """
    return cast(Identity, import_module(data.source).identify(data))


def collect_source_keys(data: DataSettings) -> Identity:
    """Return the config keys of scope SOURCE, which say which data is read, with their values."""
    return {
        field.name: getattr(data, field.name) for field in fields(data) if field.metadata["key"].scope is Scope.SOURCE
    }


def identify_file(path: Path) -> FileIdentity:
    """Return the identity of a file."""
    stat = path.stat()
    return {"path": str(path.resolve()), "size": stat.st_size, "mtime_ns": stat.st_mtime_ns}
