"""Directories that are built once, however many processes ask for them, and verified by checksum when they are opened.

A directory is built beside its final place, sealed with a manifest of checksums, fsynced and renamed: it is there whole
or not at all. The lock is the kernel's, so a builder that is killed frees it and another process takes over.
"""

import json
import logging
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import xxhash
from filelock import FileLock

from common.errors import UserError

log = logging.getLogger("lockstep")

MANIFEST = "manifest.json"


def open_or_build(directory: Path, build: Callable[[Path], dict[str, Any]]) -> dict[str, Any]:
    """The manifest of `directory`; where it is not whole `build(empty directory)` makes it and returns extra entries.

    Raises UserError where the cache directory, its parent, cannot be written.
    """
    manifest, _ = _verified(directory)
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
        manifest, problem = _verified(directory)
        if manifest is not None:  # another process built it while this one waited
            return manifest
        if problem:
            log.warning("%s: %s; building it again", directory, problem)
        return _build(directory, build)


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


def _verified(directory: Path) -> tuple[dict[str, Any] | None, str]:
    """The manifest of a whole directory, or None and what is wrong ("" where there is nothing yet)."""
    if not directory.exists():
        return None, ""
    try:
        manifest: dict[str, Any] = json.loads((directory / MANIFEST).read_text())
        if manifest.pop("seal") != fingerprint(manifest):
            return None, f"{MANIFEST} does not match its checksum"
        for name, expected in manifest["checksums"].items():
            if checksum(directory / name) != expected:
                return None, f"{name} does not match its checksum"
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        return None, f"cannot be read ({error})"
    return manifest, ""


def _build(directory: Path, build: Callable[[Path], dict[str, Any]]) -> dict[str, Any]:
    for abandoned in directory.parent.glob(f"{directory.name}.*.partial"):  # we hold the lock: its builder is dead
        shutil.rmtree(abandoned)
    partial = directory.with_name(f"{directory.name}.{os.getpid()}.partial")
    partial.mkdir()
    try:
        extra = build(partial)
        files = sorted(path for path in partial.rglob("*") if path.is_file())
        manifest = {**extra, "checksums": {str(path.relative_to(partial)): checksum(path) for path in files}}
        (partial / MANIFEST).write_text(json.dumps({**manifest, "seal": fingerprint(manifest)}, indent=1))
        for path in [*files, partial / MANIFEST, partial]:
            _fsync(path)
        if directory.exists():
            directory.rename(partial.with_suffix(".broken.partial"))
        partial.rename(directory)
        _fsync(directory.parent)
    finally:
        for leftover in directory.parent.glob(f"{directory.name}.{os.getpid()}.*partial"):
            shutil.rmtree(leftover, ignore_errors=True)
    return manifest


def _fsync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
