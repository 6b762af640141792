"""Bundles: a run or a record in one file, which another machine compares and diagnoses.

A bundle is a zip archive without compression. Zip and not tar: its index has the names and sizes of all members before
one is read, a reader takes only the members that it needs, each has a checksum, and there are no links, devices or
sparse members. Without compression no member is larger than the file. Most bytes are weights, which compress badly.

A bundle may come from somebody else. Only the members of the layouts below are read, each once. They are written to a
temporary directory, which the command removes at its end.
"""

import json
import re
import shutil
import stat
import struct
import tempfile
import zipfile
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from common.errors import UserError, build_write_error, error_reason, one_line
from common.records.bounded_reader import MAX_READ_BYTES, BoundedReader, ReadError

FORMAT = 1
RUN, RECORD = "run", "record"  # kinds of bundles
FACTS = "bundle.json"  # format, kind, the names of the other members, and the formats of the inputs
INPUTS = "inputs"  # directory of a run's data and initial weights
MAX_MEMBERS, CHUNK_BYTES = 10_000, 1 << 20
FIRST_BYTES = b"PK\x03\x04"
FILE = r"[A-Za-z0-9_%~-][A-Za-z0-9_%~.-]{0,199}"
NUMBER = r"[0-9]{1,16}"
CURVES = r"config\.yaml|summary\.json|(metrics|evals|traffic)\.jsonl|profile/rank-0\.json\.gz"  # read by common.compare
LAYOUTS = {
    RUN: re.compile(rf"{CURVES}|(checkpoints/step-{NUMBER}|{INPUTS}/(data|weights))/({FILE}/)?{FILE}"),
    RECORD: re.compile(rf"(rank-{NUMBER}/)?(record\.json|(start|step-{NUMBER})\.safetensors)"),
}
REQUIRED = {RUN: ("config.yaml", f"{INPUTS}/data/", f"{INPUTS}/weights/"), RECORD: ()}  # beginnings of names
# The members that common.compare reads, by the kind of the bundle
CURVE_MEMBERS = {RUN: re.compile(CURVES), RECORD: re.compile(rf"(rank-{NUMBER}/)?record\.json")}
# What zipfile raises for a damaged archive
ZIP_ERRORS = (zipfile.BadZipFile, EOFError, struct.error, NotImplementedError, RuntimeError, ValueError, OverflowError)


@dataclass(frozen=True)
class OpenBundles:
    """Bundles that are unpacked for as long as a command runs.

    Attributes:
        directories: The directory of each bundle, by the path of its file.
        damaged: The reason why a bundle cannot be read, by the path of the bundle.
    """

    directories: dict[Path, Path] = field(default_factory=dict)
    damaged: dict[Path, str] = field(default_factory=dict)

    def locate(self, path: Path) -> Path:
        """Return the directory of a bundle; any other path unchanged."""
        return self.directories.get(path, path)

    def get_origin(self, path: Path) -> Path:
        """Return the bundle whose directory this is; any other path unchanged."""
        return next((file for file, directory in self.directories.items() if directory == path), path)

    def rename(self, text: str) -> str:
        """Return a text that names bundles and their members in place of the unpacked files."""
        for file, directory in self.directories.items():
            text = text.replace(f"{directory}/", f"{file}: ").replace(str(directory), str(file))
        return text


def is_bundle(path: Path) -> bool:
    """Check whether a path is a file that begins as a bundle does, even a damaged one."""
    try:
        if not path.is_file():
            return False
        with path.open("rb") as file:
            return file.read(len(FIRST_BYTES)) == FIRST_BYTES
    except OSError:
        return False


@contextmanager
def open_bundles(paths: Iterable[Path], only_curves: bool = False) -> Iterator[OpenBundles]:
    """Unpack the bundles among some paths, and remove what was unpacked when the body ends.

    The errors of the body name the bundles and their members.

    Args:
        paths: Bundles and other paths.
        only_curves: Whether to unpack only what common.compare reads, which leaves out damaged bundles.

    Raises:
        UserError: A bundle is damaged, unless damaged ones are left out.
    """
    files = [path for path in dict.fromkeys(paths) if is_bundle(path)]
    if not files:
        yield OpenBundles()
        return
    with tempfile.TemporaryDirectory(prefix="lockstep-") as temporary:
        bundles = OpenBundles()
        for number, file in enumerate(files):
            directory = Path(temporary, f"{number}-bundle")
            try:
                unpack_bundle(file, directory, only_curves)
                bundles.directories[file] = directory
            except UserError as error:
                if not only_curves:
                    raise
                bundles.damaged[file] = str(error)
        try:
            yield bundles
        except UserError as error:
            error.args = (bundles.rename(str(error)),)
            raise


def write_bundle(path: Path, kind: str, members: Mapping[str, Path], formats: Mapping[str, int] | None = None) -> None:
    """Write a bundle. The file appears complete or not at all.

    Args:
        path: The file to create.
        kind: RUN or RECORD.
        members: The file of each member.
        formats: The formats of the data and the weights of a run.

    Raises:
        UserError: A member has no place in a bundle, or the file cannot be written.
    """
    for name in members:
        if not LAYOUTS[kind].fullmatch(name):
            raise UserError(f"{members[name]}: has a name that a bundle cannot hold; use letters, digits, - and _")
    if len(members) >= MAX_MEMBERS:
        raise UserError(f"{path}: would have {len(members)} members, and a bundle holds {MAX_MEMBERS - 1}")
    try:
        with tempfile.TemporaryDirectory(dir=path.parent, prefix="lockstep-") as temporary:
            partial = Path(temporary, "bundle")
            with zipfile.ZipFile(partial, "x") as archive:
                facts = {"format": FORMAT, "kind": kind, "members": [*members], "formats": {**(formats or {})}}
                archive.writestr(zipfile.ZipInfo(FACTS), json.dumps(facts))
                for name, file in members.items():
                    with (
                        file.open("rb") as source,
                        archive.open(zipfile.ZipInfo(name), "w", force_zip64=True) as target,
                    ):
                        shutil.copyfileobj(source, target, CHUNK_BYTES)
            partial.rename(path)
    except OSError as error:
        raise build_write_error(path, error) from error


def unpack_bundle(path: Path, directory: Path, only_curves: bool = False) -> None:
    """Write the members of a bundle to a new directory. Raise UserError that names a damaged member.

    only_curves: whether to leave out what common.compare does not read.
    """
    try:
        with BoundedReader(path) as file, zipfile.ZipFile(file) as archive:
            kind, names = _read_facts(path, archive)
            members = _check_members(path, archive, kind)
            _check_complete(path, kind, names, [member.filename for member in members])
            if only_curves:
                members = [member for member in members if CURVE_MEMBERS[kind].fullmatch(member.filename)]
            _check_space(path, directory.parent, sum(member.file_size for member in members))
            directory.mkdir(0o700)
            if kind == RUN and not only_curves:
                _unpack_member(path, archive, archive.infolist()[0], directory / FACTS)
            for member in members:
                _unpack_member(path, archive, member, directory / member.filename)
    except ZIP_ERRORS as error:
        if isinstance(error, UserError):
            raise
        raise UserError(f"{path}: not a bundle, or cut off: {_shorten(error)}; copy it again") from error
    except ReadError as error:
        raise UserError(f"{path}: cannot be read: {error_reason(error.args[0])}; copy it again") from error
    except OSError as error:
        raise build_write_error(directory, error) from error


def _read_facts(path: Path, archive: zipfile.ZipFile) -> tuple[str, list[str]]:
    """Return the kind, RUN or RECORD, and the names of the other members. Raise UserError for other archives."""
    first = next(iter(archive.infolist()), None)
    if first is None or first.orig_filename != FACTS:
        raise UserError(
            f"{path}: a zip archive that is not a bundle; make one with python -m common.export bundle=PATH"
        )
    _check_member(path, first)
    try:
        facts = json.loads(archive.read(first)) if first.file_size < MAX_READ_BYTES else None
    except (*ZIP_ERRORS, RecursionError) as error:
        raise UserError(f"{path}: {FACTS}: damaged: {_shorten(error)}; copy the bundle again") from error
    match facts:
        case {"format": version, "kind": "run" | "record" as kind, "members": [*names]} if version == FORMAT:
            return kind, list(map(str, names))
        case _:
            raise UserError(
                f"{path}: {FACTS}: not of format {FORMAT}, which this version of Lockstep reads; make the bundle "
                "again, or update Lockstep"
            )


def _check_members(path: Path, archive: zipfile.ZipFile, kind: str) -> list[zipfile.ZipInfo]:
    """Return all members but bundle.json. Raise UserError if one has no place in a bundle of this kind."""
    members = archive.infolist()[1:]
    if len(members) >= MAX_MEMBERS:
        raise UserError(f"{path}: has {len(members)} members, more than a bundle has; make the bundle again")
    names: set[str] = set()
    for member in members:
        name = member.orig_filename
        if not LAYOUTS[kind].fullmatch(name) or name != member.filename:
            raise UserError(f"{path}: {_shorten(name)}: not a member of a bundle of a {kind}; make the bundle again")
        if name.casefold() in names:
            raise UserError(f"{path}: {name}: is there twice; make the bundle again")
        names.add(name.casefold())
        _check_member(path, member)
    for member in members:
        parent = member.filename.casefold().rpartition("/")[0]
        if parent in names:
            raise UserError(f"{path}: {member.filename}: is below a file; make the bundle again")
    if sum(member.file_size for member in members) > path.stat().st_size:
        raise UserError(f"{path}: its members are larger than the file; make the bundle again")
    return members


def _check_complete(path: Path, kind: str, names: Iterable[str], members: Collection[str]) -> None:
    """Raise UserError if a bundle lacks a member that bundle.json names, or that every bundle of its kind has."""
    if missing := {*names} - {*members}:  # the index of an archive has no checksum
        raise UserError(f"{path}: {_shorten(min(missing))}: is missing; copy the bundle again")
    for part in REQUIRED[kind]:
        if not any(name.startswith(part) for name in members):
            raise UserError(f"{path}: has no {part}, which every bundle of a {kind} has; make the bundle again")


def _check_member(path: Path, member: zipfile.ZipInfo) -> None:
    """Raise UserError unless a member is a regular file without compression and encryption."""
    mode = member.external_attr >> 16
    problem = ""
    if stat.S_IFMT(mode) not in (0, stat.S_IFREG):
        problem = "a link, a directory or a device"
    elif member.compress_type != zipfile.ZIP_STORED or member.compress_size != member.file_size:
        problem = "compressed"
    elif member.flag_bits & 0x1:
        problem = "encrypted"
    if problem:
        name = _shorten(member.filename)
        raise UserError(f"{path}: {name}: {problem}, which no member of a bundle is; make the bundle again")


def _check_space(path: Path, directory: Path, size: int) -> None:
    free = shutil.disk_usage(directory).free
    if size > free:
        raise UserError(
            f"{path}: needs {size >> 20:,} MiB in {directory}, which has {free >> 20:,} MiB; "
            "set TMPDIR to a directory with more space"
        )


def _unpack_member(path: Path, archive: zipfile.ZipFile, member: zipfile.ZipInfo, target: Path) -> None:
    """Write a member to a file. Raise UserError if it does not match its checksum."""
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        with archive.open(member) as source, target.open("xb") as file:
            shutil.copyfileobj(source, file, CHUNK_BYTES)
    except ZIP_ERRORS as error:
        raise UserError(f"{path}: {member.filename}: damaged: {_shorten(error)}; copy the bundle again") from error
    if target.stat().st_size != member.file_size:
        raise UserError(f"{path}: {member.filename}: cut off; copy the bundle again")


def _shorten(text: object) -> str:
    return one_line(text)[:200]
