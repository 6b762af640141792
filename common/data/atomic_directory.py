"""Directories that appear complete or not at all, verified by checksum when they are opened.

A directory is written under a temporary name beside its final path, sealed with a manifest of checksums, fsynced and
renamed. Where several processes ask for the same one, a single process builds it under a file lock. The kernel releases
the lock of a process that is killed, and the next process builds the directory.
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

from common.errors import UserError, build_write_error

log = logging.getLogger("lockstep")

MANIFEST = "manifest.json"


def open_or_build(directory: Path, build: Callable[[Path], dict[str, Any]]) -> dict[str, Any]:
    """The manifest of `directory`, which is built first where it is missing or damaged.

    `build` fills the empty directory that it is given and returns further entries of the manifest. Raises UserError
    where the parent, the cache directory, cannot be written.
    """
    manifest, _ = verify_directory(directory)
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
        manifest, problem = verify_directory(directory)
        if manifest is not None:  # another process built it while this one waited
            return manifest
        if problem:
            log.warning("%s: %s; building it again", directory, problem)
        try:
            return _build(directory, build)
        except OSError as error:
            if error.errno in (None, errno.ENOSPC, errno.EDQUOT):  # None: from NumPy, of an incomplete write
                raise build_write_error(f"cache_dir={directory.parent}", error) from error
            raise


def compute_checksum(path: Path) -> str:
    """XXH3-128 of a file, read in pieces so that a mapped file does not become resident."""
    digest = xxhash.xxh3_128()
    with path.open("rb") as file:
        while piece := file.read(1 << 20):
            digest.update(piece)
    return digest.hexdigest()


def compute_fingerprint(description: dict[str, Any]) -> str:
    """Sixteen hex digits that name what `description` describes."""
    return xxhash.xxh3_64(json.dumps(description, sort_keys=True).encode()).hexdigest()


def read_manifest(directory: Path, name: str = MANIFEST) -> dict[str, Any]:
    """The manifest of a directory that was verified before: its seal is checked, its files are not.

    Raises UserError where the manifest cannot be read or does not match its seal.
    """
    try:
        return _sealed(directory, name)
    except _Damaged as damage:
        raise UserError(f"{directory}: {damage}; start the command again to rebuild it") from damage


def verify_directory(directory: Path, name: str = MANIFEST) -> tuple[dict[str, Any] | None, str]:
    """The manifest of a directory whose files match their checksums, or None and the reason, "" where it is missing."""
    if not directory.exists():
        return None, ""
    try:
        manifest = _sealed(directory, name)
        for file, expected in manifest["checksums"].items():
            if compute_checksum(directory / file) != expected:
                return None, f"{file} does not match its checksum"
    except _Damaged as damage:
        return None, str(damage)
    except OSError as error:
        return None, f"cannot be read ({error})"
    return manifest, ""


class _Damaged(Exception):
    """A manifest cannot be read or does not match its seal."""


def _sealed(directory: Path, name: str) -> dict[str, Any]:
    try:
        manifest: dict[str, Any] = json.loads((directory / name).read_text())
        if manifest.pop("seal") != compute_fingerprint(manifest):
            raise _Damaged(f"{name} does not match its checksum")
        manifest["checksums"].items()
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise _Damaged(f"cannot be read ({error})") from error
    return manifest


def publish(partial: Path, directory: Path, extra: dict[str, Any], name: str = MANIFEST) -> dict[str, Any]:
    """Seal the files in `partial`, fsync them and rename it to `directory`.

    Returns the manifest: `extra` and the checksums.
    """
    files = sorted(path for path in partial.rglob("*") if path.is_file())
    manifest = {**extra, "checksums": {str(path.relative_to(partial)): compute_checksum(path) for path in files}}
    for path in files:
        _fsync(path)
    write_manifest(partial, manifest, name)
    partial.rename(directory)
    _fsync(directory.parent)
    return manifest


def write_manifest(directory: Path, manifest: dict[str, Any], name: str = MANIFEST) -> None:
    """Write, or replace, the manifest of a directory."""
    partial = directory / f"{name}.partial"
    partial.write_text(json.dumps({**manifest, "seal": compute_fingerprint(manifest)}, indent=1))
    _fsync(partial)
    partial.replace(directory / name)
    _fsync(directory)


def _build(directory: Path, build: Callable[[Path], dict[str, Any]]) -> dict[str, Any]:
    for abandoned in directory.parent.glob(f"{directory.name}.*.partial"):  # of builders that were killed
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
