"""The versions of installed packages, found without importing them."""

from __future__ import annotations  # an interpreter that is too old imports this file, to say so

from collections.abc import Iterable
from contextlib import suppress
from importlib import metadata

DISTRIBUTIONS = {"tensorflow": ("tensorflow", "tensorflow-cpu", "tensorflow-macos", "tf-nightly", "tf-nightly-cpu")}


def find_versions(names: Iterable[str]) -> dict[str, str]:
    """Return the versions of packages. Packages that are not installed are left out, such as Lockstep in a checkout."""
    versions = {}
    for name in names:
        for distribution in reversed(DISTRIBUTIONS.get(name, (name,))):
            with suppress(metadata.PackageNotFoundError):
                versions[name] = metadata.version(distribution)
    return versions
