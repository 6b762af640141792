"""Directories that are there whole or not at all, verified by checksum when they are opened.

A directory is made beside its final place, sealed with a manifest of checksums, fsynced and renamed. One that several
processes ask for is built once: the lock is the kernel's, so a builder that is killed frees it and another takes over.
"""

import errno
import json
import logging
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import xxhash
from filelock import FileLock

from common.errors import UserError, cannot_be_written

log = logging.getLogger("lockstep")

MANIFEST = "manifest.json"


def open_or_build(directory: Path, build: Callable[[Path], dict[str, Any]]) -> dict[str, Any]:
    """The manifest of `directory`; where it is not whole `build(empty directory)` makes it and returns extra entries.

    Raises UserError where the cache directory, its parent, cannot be written.
    """
    manifest, _ = verified(directory)
    if manifest is not None:
        return manifest
    lock = FileLock(directory.with_name(directory.name + ".lock"))
    try:
        directory.parent.mkdir(parents=True, exist_ok=True)
        lock.acquire()
    except OSError as error:
        raise UserError(
            f"cache_dir={directory.parent}: cannot be written ({error.strerror}); choose another"
        ) from error
    with lock:
        manifest, problem = verified(directory)
        if manifest is not None:  # another process built it while this one waited
            return manifest
        if problem:
            log.warning("%s: %s; building it again", directory, problem)
        try:
            return _build(directory, build)
        except OSError as error:
            if error.errno in (None, errno.ENOSPC, errno.EDQUOT):  # None: NumPy's, of a file cut short
                raise cannot_be_written(f"cache_dir={directory.parent}", error) from error
            raise


def checksum(path: Path) -> str:
    """XXH3-128 of a file, read in pieces so that a mapped file does not become resident."""
    digest = xxhash.xxh3_128()
    with path.open("rb") as file:
        while piece := file.read(1 << 20):
            digest.update(piece)
    return digest.hexdigest()


def fingerprint(description: dict[str, Any]) -> str:
    """Sixteen hex digits that name what `description` describes."""
    return xxhash.xxh3_64(json.dumps(description, sort_keys=True).encode()).hexdigest()


def verified(directory: Path, name: str = MANIFEST) -> tuple[dict[str, Any] | None, str]:
    """The manifest of a whole directory, or None and what is wrong ("" where there is nothing yet)."""
    if not directory.exists():
        return None, ""
    try:
        manifest: dict[str, Any] = json.loads((directory / name).read_text())
        if manifest.pop("seal") != fingerprint(manifest):
            return None, f"{name} does not match its checksum"
        for file, expected in manifest["checksums"].items():
            if checksum(directory / file) != expected:
                return None, f"{file} does not match its checksum"
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        return None, f"cannot be read ({error})"
    return manifest, ""


def publish(partial: Path, directory: Path, extra: dict[str, Any], name: str = MANIFEST) -> dict[str, Any]:
    """Seal what was made in `partial`, bring it to the disk and rename it. Returns the manifest: `extra`, checksums."""
    files = sorted(path for path in partial.rglob("*") if path.is_file())
    manifest = {**extra, "checksums": {str(path.relative_to(partial)): checksum(path) for path in files}}
    for path in files:
        _fsync(path)
    write_manifest(partial, manifest, name)
    partial.rename(directory)
    _fsync(directory.parent)
    return manifest


def write_manifest(directory: Path, manifest: dict[str, Any], name: str = MANIFEST) -> None:
    """Write, or replace, the manifest of a directory."""
    partial = directory / f"{name}.partial"
    partial.write_text(json.dumps({**manifest, "seal": fingerprint(manifest)}, indent=1))
    _fsync(partial)
    partial.replace(directory / name)
    _fsync(directory)


def _build(directory: Path, build: Callable[[Path], dict[str, Any]]) -> dict[str, Any]:
    for abandoned in directory.parent.glob(f"{directory.name}.*.partial"):  # we hold the lock: its builder is dead
        shutil.rmtree(abandoned)
    partial = directory.with_name(f"{directory.name}.{os.getpid()}.partial")
    partial.mkdir()
    try:
        extra = build(partial)
        if directory.exists():
            directory.rename(partial.with_suffix(".broken.partial"))
        return publish(partial, directory, extra)
    finally:
        for leftover in directory.parent.glob(f"{directory.name}.{os.getpid()}.*partial"):
            shutil.rmtree(leftover, ignore_errors=True)


def _fsync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
