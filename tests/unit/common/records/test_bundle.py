"""Bundles: what is written is read again, and a damaged or hostile file is refused in one line, with nothing left."""

import contextlib
import errno
import io
import json
import os
import shutil
import signal
import stat
import struct
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest
from typing_extensions import override

from common.errors import Interrupted, UserError
from common.export.__main__ import main as export
from common.records import bundle
from common.records.bundle import FACTS, RECORD, RUN, is_bundle, open_bundles, unpack_bundle, write_bundle
from common.training.stop import interrupt_on_signals

FACTS_OF_RUN = json.dumps({"format": 1, "kind": "run", "members": []}).encode()
STRIDE = 5  # bytes between the positions at which a file is damaged
CONTENT = {
    "config.yaml": b"train: {seed: 1}\n",
    "metrics.jsonl": b'{"step": 1}\n',
    "checkpoints/step-00000001/state.json": b"{}",
    "inputs/data/train.a%20b.npy": b"\0" * 100,
    "inputs/data/tokenizer/vocab.txt": b"a\nb\n",
    "inputs/weights/config.json": b"{}",
}


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the directory for temporary files."""
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    return tmp_path / "temporary"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Return the bundle of a run."""
    for name, content in CONTENT.items():
        (tmp_path / "run" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "run" / name).write_bytes(content)
    write_bundle(tmp_path / "x.zip", RUN, {name: tmp_path / "run" / name for name in CONTENT})
    return tmp_path / "x.zip"


def read_files(directory: Path) -> dict[str, bytes]:
    """Return the content of all files below a directory by their paths."""
    files = [path for path in directory.rglob("*") if not path.is_dir()]
    return {str(path.relative_to(directory)): path.read_bytes() for path in files if path.name != FACTS}


class Member(NamedTuple):
    """A member of an archive that the tests write."""

    name: str
    content: bytes = b"x"
    mode: int = 0
    method: int = zipfile.ZIP_STORED


def write_archive(path: Path, *members: Member, facts: bytes = FACTS_OF_RUN) -> Path:
    """Write a zip archive with bundle.json and other members, and return its path."""
    with zipfile.ZipFile(path, "w") as archive:
        for member in (Member(FACTS, facts), *members):
            info = zipfile.ZipInfo(member.name)
            info.external_attr, info.compress_type = member.mode << 16, member.method
            archive.writestr(info, member.content)
    return path


def test_a_bundle_is_read_as_it_was_written(file: Path, tmp_path: Path, temporary: Path) -> None:
    unpack_bundle(file, tmp_path / "again")
    assert read_files(tmp_path / "again") == CONTENT
    with open_bundles([file, tmp_path / "run", file]) as bundles:
        directory = bundles.locate(file)
        assert read_files(directory) == CONTENT and bundles.locate(tmp_path / "run") == tmp_path / "run"
        assert bundles.get_origin(directory) == file
        assert bundles.rename(f"{directory}/config.yaml, {directory}") == f"{file}: config.yaml, {file}"
    assert not any(temporary.iterdir())


def test_a_comparison_unpacks_the_curves_only(file: Path) -> None:
    with open_bundles([file], only_curves=True) as bundles:
        assert read_files(bundles.locate(file)).keys() == {"config.yaml", "metrics.jsonl"}


def test_errors_name_the_bundle_and_its_member(file: Path, temporary: Path) -> None:
    with pytest.raises(UserError, match=r"x\.zip: metrics\.jsonl:1: wrong$"), open_bundles([file]) as bundles:
        raise UserError(f"{bundles.locate(file)}/metrics.jsonl:1: wrong")
    assert not any(temporary.iterdir())


def test_nothing_is_left_by_an_interruption(
    file: Path, temporary: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with pytest.raises(Interrupted), interrupt_on_signals(), open_bundles([file]) as bundles:
        os.kill(os.getpid(), signal.SIGTERM)
        read_files(bundles.locate(file))  # Python calls the handler between two instructions

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(shutil, "copyfileobj", interrupt)
    with pytest.raises(KeyboardInterrupt), open_bundles([file]):
        pass
    before = {*tmp_path.rglob("*")}
    with pytest.raises(KeyboardInterrupt):
        write_bundle(tmp_path / "y.zip", RUN, {"config.yaml": file})
    assert not any(temporary.iterdir()) and {*tmp_path.rglob("*")} == before


def test_files_of_the_user_stay(file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Test that a file beside the new one, such as one of the name that earlier versions took, is kept."""
    (tmp_path / "secret").write_text("secret")
    (tmp_path / "y.zip.partial").symlink_to(tmp_path / "secret")
    (tmp_path / "out.partial").mkdir()
    (tmp_path / "out.partial" / "notes").touch()
    write_bundle(tmp_path / "y.zip", RUN, {name: tmp_path / "run" / name for name in CONTENT})
    for out in (tmp_path / "out", tmp_path / "none" / "out", tmp_path / "dangling"):
        if out.name == "dangling":
            out.symlink_to(tmp_path / "nowhere")
        with contextlib.suppress(SystemExit):
            export([f"unpack={tmp_path / 'y.zip'}", str(out)])
    assert read_files(tmp_path / "out") == CONTENT
    errors = capsys.readouterr().err.splitlines()
    assert len(errors) == 2 and "none/out: cannot be written (No such file" in errors[0]
    assert "dangling: exists; choose another path" in errors[1]
    assert (tmp_path / "out.partial" / "notes").exists() and (tmp_path / "y.zip.partial").is_symlink()
    assert (tmp_path / "secret").read_text() == "secret"
    assert not list(tmp_path.glob("lockstep-*"))


def test_a_bundle_that_cannot_be_read(file: Path, monkeypatch: pytest.MonkeyPatch, temporary: Path) -> None:
    class Failing(io.FileIO):
        @override
        def readinto(self, _: object, /) -> int:
            raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(io, "FileIO", Failing)
    with pytest.raises(UserError, match=r"^/.*/x\.zip: cannot be read: Input/output error; copy it again$"):
        unpack_bundle(file, temporary / "x")
    with pytest.raises(UserError, match=r"none\.zip: cannot be read: No such file"):
        unpack_bundle(file.with_name("none.zip"), temporary / "x")
    assert not any(temporary.iterdir())


@pytest.mark.parametrize(
    ("member", "problem"),
    [
        (Member("../config.yaml"), "not a member"),
        (Member("/etc/config.yaml"), "not a member"),
        (Member("checkpoints/step-1/../../../x"), "not a member"),
        (Member("checkpoints/step-1/.."), "not a member"),
        (Member("checkpoints/step-1/.hidden"), "not a member"),
        (Member("checkpoints/step-1/a\\b"), "not a member"),
        (Member("checkpoints/step-1/a\nb"), "not a member"),
        (Member("checkpoints/step-1/a\x1b[31m"), "not a member"),
        (Member("checkpoints/step-1/größe"), "not a member"),
        (Member("checkpoints/step-1/" + "a" * 300), "not a member"),
        (Member("checkpoints/step-1/a/b/c"), "not a member"),
        (Member("checkpoints/step-1/"), "not a member"),
        (Member("model.py"), "not a member"),
        (Member("config.yaml\n"), "not a member"),
        (Member("bundle.json"), "not a member"),
        (Member("prepared.json"), "not a member"),
        (Member("config.yaml", b"/etc/passwd", stat.S_IFLNK | 0o777), "a link"),
        (Member("config.yaml", mode=stat.S_IFIFO), "a link, a directory or a device"),
        (Member("config.yaml", mode=stat.S_IFDIR), "a link, a directory or a device"),
        (Member("config.yaml", b"\0" * 10**7, method=zipfile.ZIP_DEFLATED), "compressed"),
        (Member("config.yaml", b"\0" * 10**7, method=zipfile.ZIP_LZMA), "compressed"),
    ],
)
def test_members_that_no_bundle_has(member: Member, problem: str, tmp_path: Path, temporary: Path) -> None:
    file = write_archive(tmp_path / "x.zip", Member("metrics.jsonl"), member)
    with pytest.raises(UserError, match=problem) as raised, open_bundles([file]):
        pass
    assert "\n" not in str(raised.value) and "\x1b" not in str(raised.value)
    assert not any(temporary.iterdir()) and not (tmp_path / "config.yaml").exists()


@pytest.mark.parametrize(
    ("names", "problem"),
    [
        (("config.yaml", "config.yaml"), "config.yaml: is there twice"),
        (("inputs/data/a", "inputs/data/A"), "inputs/data/A: is there twice"),
        (("inputs/data/a", "inputs/data/a/b"), "inputs/data/a/b: is below a file"),
        (("inputs/data/a/b", "inputs/data/a"), "inputs/data/a/b: is below a file"),
    ],
)
def test_members_in_the_same_place(names: tuple[str, str], problem: str, tmp_path: Path, temporary: Path) -> None:
    with pytest.warns() if names[0] == names[1] else io.StringIO():
        file = write_archive(tmp_path / "x.zip", *map(Member, names))
    with pytest.raises(UserError, match=problem), open_bundles([file]):
        pass
    assert not any(temporary.iterdir())


@pytest.mark.parametrize(
    "facts", [b"", b"[]", b"1", b"{", b"[" * 4000, b" " * (5 << 20), b'{"format": 2, "kind": "run"}', b'{"format": 1}']
)
def test_other_facts(facts: bytes, tmp_path: Path, temporary: Path) -> None:
    file = write_archive(tmp_path / "x.zip", facts=facts)
    with pytest.raises(UserError, match=r"x\.zip: bundle\.json: (damaged|not of format 1)"), open_bundles([file]):
        pass
    assert not any(temporary.iterdir())


def test_another_archive(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "x.zip", "w") as archive:
        archive.writestr("model.keras", b"")
    assert is_bundle(tmp_path / "x.zip") and not is_bundle(tmp_path) and not is_bundle(tmp_path / "none")
    with pytest.raises(UserError, match="a zip archive that is not a bundle"), open_bundles([tmp_path / "x.zip"]):
        pass


def test_a_record_has_the_files_of_a_record(tmp_path: Path) -> None:
    facts = FACTS_OF_RUN.replace(b"run", RECORD.encode())
    names = ("record.json", "start.safetensors", "step-00000001.safetensors", "rank-1/record.json")
    unpack_bundle(write_archive(tmp_path / "x.zip", *map(Member, names), facts=facts), tmp_path / "x")
    assert read_files(tmp_path / "x").keys() == {*names}
    file = write_archive(tmp_path / "y.zip", Member("config.yaml"), facts=facts)
    with pytest.raises(UserError, match=r"config\.yaml: not a member of a bundle of a record"):
        unpack_bundle(file, tmp_path / "y")


def test_a_member_is_missing(tmp_path: Path) -> None:
    facts = FACTS_OF_RUN.replace(b"[]", b'["config.yaml", "metrics.jsonl"]')
    with pytest.raises(UserError, match=r"x\.zip: metrics\.jsonl: is missing; copy the bundle again"):
        unpack_bundle(write_archive(tmp_path / "x.zip", Member("config.yaml"), facts=facts), tmp_path / "x")


@pytest.mark.parametrize("part", ["config.yaml", "inputs/data/", "inputs/weights/"])
def test_a_run_without_its_inputs(part: str, tmp_path: Path) -> None:
    """Test that a bundle has all that the paths of its config would be read for otherwise."""
    names = [name for name in CONTENT if not name.startswith(part)]
    file = write_archive(tmp_path / "x.zip", *map(Member, names))
    for only_curves in (False, True):
        with pytest.raises(UserError, match=f"has no {part}, which every bundle of a run has; make the bundle again"):
            unpack_bundle(file, tmp_path / "x", only_curves)


def test_too_many_members(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bundle, "MAX_MEMBERS", 2)
    file = write_archive(tmp_path / "x.zip", Member("config.yaml"), Member("metrics.jsonl"))
    with pytest.raises(UserError, match="has 2 members, more than a bundle has"):
        unpack_bundle(file, tmp_path / "x")
    with pytest.raises(UserError, match="would have 2 members, and a bundle holds 1"):
        write_bundle(tmp_path / "y.zip", RUN, {"config.yaml": file, "metrics.jsonl": file})


def test_a_large_index_is_not_read(tmp_path: Path) -> None:
    """Let the end of an archive announce an index of 1 GB in a sparse file."""
    size = 1 << 30
    with (tmp_path / "x.zip").open("wb") as file:
        file.write(b"PK\x03\x04")
        file.truncate(size)
        file.seek(size)
        file.write(struct.pack("<4s4H2LH", b"PK\x05\x06", 0, 0, 0xFFFE, 0xFFFE, size, 0, 0))
    with pytest.raises(UserError, match="has an index of more than 4 MiB"):
        unpack_bundle(tmp_path / "x.zip", tmp_path / "x")


def test_a_full_disk(file: Path, temporary: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = shutil.disk_usage(file.parent)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=50))
    with pytest.raises(UserError, match=r"needs 0 MiB in .*, which has 0 MiB; set TMPDIR"), open_bundles([file]):
        pass
    assert not any(temporary.iterdir())


def test_members_that_share_bytes(tmp_path: Path) -> None:
    """Let many members of the index be one in the file, so that they are larger than the file."""
    file = write_archive(tmp_path / "x.zip", Member("config.yaml", b"\0" * 10_000))
    with zipfile.ZipFile(file, "a") as archive:
        member = archive.getinfo("config.yaml")
        for number in range(9):
            copy = zipfile.ZipInfo(f"inputs/data/{number}")
            copy.header_offset, copy.CRC = member.header_offset, member.CRC
            copy.compress_size = copy.file_size = member.file_size
            archive.filelist.append(copy)
        archive._didModify = True  # type: ignore[attr-defined]  # or the index is not written again
    with pytest.raises(UserError, match=r"larger than the file|not a bundle, or cut off|damaged"):
        unpack_bundle(file, tmp_path / "x")


def cut(content: bytes, position: int) -> bytes:
    """Return the bytes before a position."""
    return content[:position]


def change(content: bytes, position: int) -> bytes:
    """Return bytes of which one is another."""
    return content[:position] + bytes([content[position] ^ 0x41]) + content[position + 1 :]


@pytest.mark.slow
@pytest.mark.parametrize("damage", [cut, change])
def test_a_file_damaged_anywhere(
    damage: Callable[[bytes, int], bytes], file: Path, tmp_path: Path, temporary: Path
) -> None:
    """Test that a damaged file is refused, or that nothing but a date or a permission is damaged."""
    names = ("config.yaml", "inputs/data/train.a%20b.npy", "inputs/weights/config.json")
    write_bundle(tmp_path / "small.zip", RUN, {name: tmp_path / "run" / name for name in names})
    content, positions = (
        (tmp_path / "small.zip").read_bytes(),
        range(4, (tmp_path / "small.zip").stat().st_size, STRIDE),
    )
    refused = 0
    for position in positions:
        file.write_bytes(damage(content, position))
        try:
            with open_bundles([file]) as bundles:
                assert read_files(bundles.locate(file)) == {name: CONTENT[name] for name in names}, position
        except UserError as error:
            refused += 1
            assert str(error).startswith(f"{file}: ") and "\n" not in str(error), error
        assert not any(temporary.iterdir())
    assert refused > 0.5 * len(positions)
