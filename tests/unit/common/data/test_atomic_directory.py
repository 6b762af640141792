"""Atomic directories: built once, sealed, verified and repaired."""

import json
import logging
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from common.data import atomic_directory as store
from common.errors import UserError

Entries = dict[str, Any]


class Builder:
    """Builder of two files, one of them in a subdirectory, that counts its calls."""

    def __init__(self) -> None:
        self.builds = 0

    def __call__(self, directory: Path) -> Entries:
        assert not list(directory.iterdir())
        self.builds += 1
        (directory / "a.bin").write_bytes(b"a" * 3_000_000)
        (directory / "sub").mkdir()
        (directory / "sub" / "b.txt").write_text("b")
        return {"rows": 7}


@pytest.fixture
def build() -> Builder:
    return Builder()


def names(directory: Path) -> set[str]:
    return {path.name for path in directory.iterdir()}


def test_built_once_and_sealed(tmp_path: Path, build: Builder) -> None:
    directory = tmp_path / "parent" / "cache"
    manifest = store.open_or_build(directory, build)
    assert store.open_or_build(directory, build) == manifest
    assert build.builds == 1
    assert manifest["rows"] == 7
    assert manifest["checksums"] == {name: store.compute_checksum(directory / name) for name in ("a.bin", "sub/b.txt")}
    assert names(directory.parent) == {"cache", "cache.lock"}


def test_an_exception_leaves_nothing(tmp_path: Path, build: Builder) -> None:
    def fail(directory: Path) -> Entries:
        build(directory)
        raise RuntimeError("disk on fire")

    with pytest.raises(RuntimeError, match="disk on fire"):
        store.open_or_build(tmp_path / "cache", fail)
    assert names(tmp_path) == {"cache.lock"}
    store.open_or_build(tmp_path / "cache", build)
    assert build.builds == 2


def truncate(directory: Path) -> None:
    with (directory / "a.bin").open("r+b") as file:
        file.truncate(2_999_999)


def flip_a_byte(directory: Path) -> None:
    content = bytearray((directory / "a.bin").read_bytes())
    content[2_000_000] ^= 1
    (directory / "a.bin").write_bytes(content)


def change_the_manifest(directory: Path) -> None:
    manifest = json.loads((directory / "manifest.json").read_text())
    (directory / "manifest.json").write_text(json.dumps({**manifest, "rows": 8}))


DAMAGES: dict[str, tuple[Callable[[Path], Any], str]] = {
    "truncated": (truncate, "a.bin does not match its checksum"),
    "altered": (flip_a_byte, "a.bin does not match its checksum"),
    "removed": (lambda directory: (directory / "sub/b.txt").unlink(), "cannot be read"),
    "no manifest": (lambda directory: (directory / "manifest.json").unlink(), "manifest.json: cannot be read"),
    "empty manifest": (lambda directory: (directory / "manifest.json").write_text(""), "manifest.json: not valid JSON"),
    "manifest of a list": (
        lambda directory: (directory / "manifest.json").write_text("[]"),
        "manifest.json: not a JSON object",
    ),
    "manifest without seal": (
        lambda directory: (directory / "manifest.json").write_text("{}"),
        "manifest.json does not match its checksum",
    ),
    "altered manifest": (change_the_manifest, "manifest.json does not match its checksum"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_damage_is_reported_and_repaired(
    tmp_path: Path, build: Builder, caplog: pytest.LogCaptureFixture, damage: str
) -> None:
    directory = tmp_path / "cache"
    manifest = store.open_or_build(directory, build)
    do_damage, problem = DAMAGES[damage]
    do_damage(directory)
    with caplog.at_level(logging.WARNING, "lockstep"):
        assert store.open_or_build(directory, build) == manifest
    assert build.builds == 2
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert caplog.messages[0].startswith(f"{directory}: {problem}")
    assert caplog.messages[0].endswith("; building it again")
    assert names(tmp_path) == {"cache", "cache.lock"}
    assert names(directory) == {"a.bin", "sub", "manifest.json"}


def test_directories_of_killed_builders_are_removed(tmp_path: Path, build: Builder) -> None:
    (tmp_path / "cache.12345.partial").mkdir()
    (tmp_path / "cache.12345.partial" / "a.bin").write_bytes(b"half")
    (tmp_path / "other.12345.partial").mkdir()
    store.open_or_build(tmp_path / "cache", build)
    assert names(tmp_path) == {"cache", "cache.lock", "other.12345.partial"}


def test_a_whole_directory_needs_no_lock(tmp_path: Path, build: Builder, monkeypatch: pytest.MonkeyPatch) -> None:
    store.open_or_build(tmp_path / "cache", build)
    monkeypatch.setattr(store, "FileLock", None)
    store.open_or_build(tmp_path / "cache", build)
    shutil.rmtree(tmp_path / "cache")
    with pytest.raises(TypeError):
        store.open_or_build(tmp_path / "cache", build)


def test_a_verified_directory_is_not_hashed_again(tmp_path: Path, build: Builder) -> None:
    manifest = store.open_or_build(tmp_path / "cache", build)
    flip_a_byte(tmp_path / "cache")
    assert store.read_manifest(tmp_path / "cache") == manifest


@pytest.mark.parametrize("damage", [name for name in DAMAGES if "manifest" in name])
def test_a_damaged_manifest_of_a_verified_directory(tmp_path: Path, build: Builder, damage: str) -> None:
    directory = tmp_path / "cache"
    store.open_or_build(directory, build)
    do_damage, problem = DAMAGES[damage]
    do_damage(directory)
    with pytest.raises(UserError) as raised:
        store.read_manifest(directory)
    message = str(raised.value)
    assert message.startswith(f"{directory}: {problem}") and "\n" not in message
    assert message.endswith("; start the command again to rebuild it")


def test_a_directory_that_was_removed(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"^.*cache: manifest.json: cannot be read: No such file"):
        store.read_manifest(tmp_path / "cache")


def test_a_path_that_cannot_be_written(tmp_path: Path, build: Builder) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match=r"^cache_dir=.*file: cannot be written .Not a directory|File exists.; choose"):
        store.open_or_build(tmp_path / "file" / "cache", build)


@pytest.mark.parametrize("name", ["./a.bin", "sub/../a.bin", ".//a.bin", "/a.bin", "../a.bin", "", "a.bin/"])
def test_a_file_is_named_in_one_way(tmp_path: Path, build: Builder, name: str) -> None:
    """Test that a manifest cannot make a reader read a file over and over under other names."""
    store.open_or_build(tmp_path / "cache", build)
    checksum = store.compute_checksum(tmp_path / "cache" / "a.bin")
    store.write_manifest(tmp_path / "cache", {"checksums": {"a.bin": checksum, name: checksum}})
    assert store.verify_directory(tmp_path / "cache") == (None, f"{name} is outside of the directory")


def test_fingerprint_does_not_depend_on_the_order_of_keys() -> None:
    assert store.compute_fingerprint({"a": 1, "b": [2]}) == store.compute_fingerprint({"b": [2], "a": 1})
    assert store.compute_fingerprint({"a": 1}) != store.compute_fingerprint({"a": 2})
    assert len(store.compute_fingerprint({})) == 16
