"""Directories that appear complete or not at all, and are verified by checksum when they are opened.

A directory (a cache or a checkpoint) has a manifest: a JSON file with the checksums of the other files, and with
entries that describe what they hold. The manifest's own checksum is its entry "seal". A directory is written under a
temporary name beside its final path, given its manifest, fsynced and renamed.

If several processes ask for the same directory, one of them builds it under a file lock. The kernel releases the lock
of a process that is killed, and the next process builds the directory.
"""

import errno
import json
import logging
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import Any, NotRequired, TypedDict, TypeVar, cast

import xxhash
from filelock import FileLock, Timeout

from common.errors import UserError, build_write_error, one_line
from common.records.files import read_json_object

log = logging.getLogger("lockstep")

MANIFEST = "manifest.json"
LOCK_SECONDS = 5.0  # time for another holder of a lock, such as a process that is ending, to release the lock
SEAL = "seal"  # the entry of a manifest with the checksum of all its other entries

# A manifest as read from JSON. Each caller casts it to the subclass of `Manifest` that names its entries.
JsonObject = dict[str, Any]
Entries = TypeVar("Entries", bound=Mapping[str, object])


class Manifest(TypedDict):
    """Entries that every manifest has. A subclass adds the entries of its kind of directory."""

    checksums: NotRequired[dict[str, str]]  # file's path in the directory -> its checksum; `publish` adds them


def open_or_build(directory: Path, build: Callable[[Path], Entries]) -> Entries:
    """Return the manifest of a directory. Build the directory first if it is missing or damaged.

    Args:
        directory: Final path, in the cache directory.
        build: A function that gets the path of an empty directory, writes the files there, and returns the entries of
            the manifest without the checksums.

    Raises:
        UserError: If the cache directory cannot be written.
    """
    manifest, _ = verify_directory(directory)
    if manifest is not None:
        return cast(Entries, manifest)
    with lock_path(directory):
        manifest, problem = verify_directory(directory)
        if manifest is not None:  # another process built the directory while this process waited
            return cast(Entries, manifest)
        if problem:
            log.warning("%s: %s; building it again", directory, problem)
        try:
            return _build(directory, build)
        except OSError as error:
            if error.errno in (None, errno.ENOSPC, errno.EDQUOT):  # NumPy reports an incomplete write without errno
                raise build_write_error(f"cache_dir={directory.parent}", error) from error
            raise


@contextmanager
def lock_path(path: Path, problem: str | None = None) -> Iterator[None]:
    """Hold the file lock of a path in the cache directory.

    Args:
        path: The path.
        problem: The text of the error if the lock is not free after LOCK_SECONDS; None to wait without a limit.

    Raises:
        UserError: Another process holds the lock, or the cache directory cannot be written.
    """
    lock = FileLock(path.with_name(path.name + ".lock"))
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        lock.acquire(timeout=-1 if problem is None else LOCK_SECONDS)
    except Timeout as error:
        assert problem is not None
        raise UserError(problem) from error
    except OSError as error:
        raise UserError(f"cache_dir={path.parent}: cannot be written ({error.strerror}); choose another") from error
    try:
        yield
    finally:
        lock.release()


def compute_checksum(path: Path) -> str:
    """Return the XXH3-128 of a file in hex. The file is read in pieces, so that it is never in memory as a whole."""
    digest = xxhash.xxh3_128()
    with path.open("rb") as file:
        while piece := file.read(1 << 20):
            digest.update(piece)
    return digest.hexdigest()


def compute_fingerprint(description: Mapping[str, object]) -> str:
    """Return the XXH3-64 of a description's JSON in hex. Equal descriptions have the same hash."""
    return xxhash.xxh3_64(json.dumps(description, sort_keys=True).encode()).hexdigest()


def read_manifest(directory: Path, name: str = MANIFEST) -> JsonObject:
    """Read the manifest of a directory that was verified before. Check the manifest's own checksum, but not the files.

    Args:
        directory: The directory.
        name: The name of the manifest's file in the directory, here and in the functions below.

    Raises:
        UserError: If the manifest cannot be read or is damaged.
    """
    try:
        return _read_checked(directory, name)
    except _DamagedManifestError as damage:
        raise UserError(f"{directory}: {damage}; start the command again to rebuild it") from damage


def verify_directory(directory: Path, name: str = MANIFEST) -> tuple[JsonObject | None, str]:
    """Read the manifest of a directory, and compare its checksums with the files.

    Returns:
        The manifest and "" if all files match; else None and the problem, which is "" for a missing directory.
    """
    if not directory.exists():
        return None, ""
    try:
        manifest = _read_checked(directory, name)
        for file, expected in manifest["checksums"].items():
            _check_place(directory, file)
            if compute_checksum(directory / file) != expected:
                return None, f"{file} does not match its checksum"
    except _DamagedManifestError as damage:
        return None, str(damage)
    except OSError as error:
        return None, f"cannot be read ({one_line(error)})"
    return manifest, ""


def is_inside(file: str) -> bool:
    """Check whether the path of a file in a manifest stays inside the directory, and has no `.` or `//`."""
    path = PurePosixPath(file)
    return str(path) == file and not path.is_absolute() and ".." not in path.parts and "\0" not in file


def _check_place(directory: Path, file: str) -> None:
    """Raise _DamagedManifestError unless a file of a manifest is inside the directory, and neither a link nor a device.

    The directory may come from somebody else.
    """
    if not is_inside(file):
        raise _DamagedManifestError(f"{file[:100]} is outside of the directory")
    path = directory
    for part in PurePosixPath(file).parts:
        path /= part
        if path.is_symlink():
            raise _DamagedManifestError(f"{path.relative_to(directory)} is a symbolic link")
    if path.exists() and not path.is_file():
        raise _DamagedManifestError(f"{file} is not a regular file")


class _DamagedManifestError(Exception):
    """A manifest that cannot be read or does not match its own checksum."""


def _read_checked(directory: Path, name: str) -> JsonObject:
    """Read a manifest and check its own checksum. Raise _DamagedManifestError if it is damaged."""
    try:
        manifest: JsonObject = read_json_object(directory / name)
        if manifest.pop(SEAL, None) != compute_fingerprint(manifest):
            raise _DamagedManifestError(f"{name} does not match its checksum")
    except (UserError, RecursionError) as error:
        raise _DamagedManifestError(one_line(error).removeprefix(f"{directory}/")) from error
    if not isinstance(manifest.get("checksums"), dict):
        raise _DamagedManifestError(f"{name} has no checksums")
    return manifest


def publish(partial: Path, directory: Path, entries: Entries, name: str = MANIFEST) -> Entries:
    """Write the manifest of the files in the directory `partial`, fsync them all and rename `partial` to `directory`.

    The directory gets its final name last, so it is always complete under that name.

    Returns:
        The manifest: `entries` and the checksums.
    """
    files = sorted(path for path in partial.rglob("*") if path.is_file())
    checksums = {str(path.relative_to(partial)): compute_checksum(path) for path in files}
    manifest = {**entries, "checksums": checksums}
    for path in files:
        _fsync(path)
    write_manifest(partial, manifest, name)
    partial.rename(directory)
    _fsync(directory.parent)
    return cast(Entries, manifest)


def write_manifest(directory: Path, manifest: Mapping[str, object], name: str = MANIFEST) -> None:
    """Write or replace the manifest of a directory, with its own checksum."""
    partial = directory / f"{name}.partial"
    partial.write_text(json.dumps({**manifest, SEAL: compute_fingerprint(manifest)}, indent=1))
    _fsync(partial)
    partial.replace(directory / name)
    _fsync(directory)


def _build(directory: Path, build: Callable[[Path], Entries]) -> Entries:
    for abandoned in directory.parent.glob(f"{directory.name}.*.partial"):  # left by builders that were killed
        shutil.rmtree(abandoned)
    partial = directory.with_name(f"{directory.name}.{os.getpid()}.partial")
    partial.mkdir()
    try:
        entries = build(partial)
        if directory.exists():
            directory.rename(partial.with_suffix(".broken.partial"))  # the damaged one, which is removed below
        return publish(partial, directory, entries)
    finally:
        for leftover in directory.parent.glob(f"{directory.name}.{os.getpid()}.*partial"):
            shutil.rmtree(leftover, ignore_errors=True)


def _fsync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
