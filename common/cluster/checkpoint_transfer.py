"""Hands the checkpoint that an attempt starts from to the hosts that do not have it: they need no shared storage.

The first host offers its checkpoint by step and fingerprint. A host that does not find the same one asks for it. What
is sent is state.json and then the files that it lists, each after its size in eight bytes. The fingerprint is that of
state.json, which has the checksums of all the others: nothing else can be taken for the checkpoint.
"""

import logging
import shutil
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path, PurePosixPath
from typing import BinaryIO

from common.errors import UserError, build_write_error
from common.run.checkpoint import DIRECTORY, STATE, Checkpoint, open_checkpoint, reopen_checkpoint, saved
from common.run.context import RunContext
from common.run.directory import chief_run_dir
from common.run.inputs import open_prepared_checkpoint
from common.run.prepare import prepare_start

log = logging.getLogger("lockstep")

PIECE = 1 << 20  # bytes that are sent at once

Offer = dict[str, int | str] | None  # the step and the fingerprint of a checkpoint; None for the initial weights


class BrokenTransfer(Exception):
    """The connection broke, or what arrived is not the checkpoint that was offered."""


class CheckpointTransfer:
    """What a host's command does so that the processes of all hosts start from the first host's checkpoint."""

    def __init__(self, context: RunContext, node: int) -> None:
        self._context, self._run_dir, self._node = context, context.run_dir, node

    def offer(self) -> Offer:
        """On the first host: what it has prepared."""
        checkpoint = open_prepared_checkpoint(self._run_dir)
        return {"step": checkpoint.position.step, "fingerprint": checkpoint.fingerprint} if checkpoint else None

    def pieces(self) -> Iterator[bytes]:
        """On the first host: what is sent. Raises OSError."""
        checkpoint = open_prepared_checkpoint(self._run_dir)
        assert checkpoint is not None
        yield from pack(checkpoint)

    def follow(self, offer: object, fetch: Callable[[str], BinaryIO]) -> None:
        """On the others: have the processes start from what the first host offers.

        fetch: asks the first host's command for the checkpoint with this fingerprint, where this host does not have it;
        raises OSError. Raises BrokenTransfer, and UserError where the checkpoint cannot be written.
        """
        prepared = open_prepared_checkpoint(self._run_dir)
        match offer:
            case None:
                found = None
                if prepared is not None:
                    log.warning(
                        "the first host starts from the initial weights, and so not from %s", prepared.directory
                    )
            case {"step": int(step), "fingerprint": str(fingerprint)}:
                found = self._find(prepared, fingerprint) or self._receive(step, fingerprint, fetch)
            case _:
                raise BrokenTransfer(f"{offer} is no checkpoint")
        if found != prepared:
            prepare_start(self._context, found)

    def _find(self, prepared: Checkpoint | None, fingerprint: str) -> Checkpoint | None:
        """The checkpoint with this fingerprint, where this host sees it."""
        if prepared is not None and prepared.fingerprint == fingerprint:
            return prepared
        for run_dir in (chief_run_dir(self._run_dir, self._node), self._run_dir):
            for directory in reversed(saved(run_dir)):
                with suppress(UserError):  # it is damaged
                    if reopen_checkpoint(directory).fingerprint == fingerprint:
                        return open_checkpoint(directory)
        return None

    def _receive(self, step: int, fingerprint: str, fetch: Callable[[str], BinaryIO]) -> Checkpoint:
        directory = self._run_dir / DIRECTORY / f"step-{step:08}"
        log.info("receiving the checkpoint of step %d from the first host", step)
        try:
            stream = fetch(fingerprint)
        except OSError as error:
            raise BrokenTransfer(str(error)) from error
        with closing(stream):
            return unpack(stream, directory, fingerprint)


def pack(checkpoint: Checkpoint) -> Iterator[bytes]:
    """A checkpoint as a stream of bytes. Raises OSError where it cannot be read."""
    for name in (STATE, *checkpoint.state["checksums"]):
        path = checkpoint.directory / name
        yield path.stat().st_size.to_bytes(8)
        with path.open("rb") as file:
            while piece := file.read(PIECE):
                yield piece


def unpack(stream: BinaryIO, directory: Path, fingerprint: str) -> Checkpoint:
    """Make the checkpoint with this fingerprint from the stream that `pack` made; it replaces those beside it.

    It appears complete and verified or not at all. Raises BrokenTransfer, and UserError where it cannot be written.
    """
    partial = directory.with_suffix(".partial")
    try:
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        _unpack(stream, partial, fingerprint)
        for other in directory.parent.glob("step-*"):
            if other != partial:
                shutil.rmtree(other)
        partial.rename(directory)
    except OSError as error:
        raise build_write_error(directory, error) from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)  # all the more on a full disk
    return reopen_checkpoint(directory)


def _unpack(stream: BinaryIO, partial: Path, fingerprint: str) -> None:
    _unpack_file(stream, partial / STATE)
    try:
        found = reopen_checkpoint(partial)
        if found.fingerprint != fingerprint:
            raise BrokenTransfer(f"it has fingerprint {found.fingerprint}, not {fingerprint}")
        for name in found.state["checksums"]:
            path = PurePosixPath(name)
            if path.is_absolute() or ".." in path.parts or name == STATE:
                raise BrokenTransfer(f"{name} is no file of a checkpoint")
            (partial / path).parent.mkdir(parents=True, exist_ok=True)
            _unpack_file(stream, partial / path)
        open_checkpoint(partial)
    except UserError as error:
        raise BrokenTransfer(str(error)) from error


def _unpack_file(stream: BinaryIO, path: Path) -> None:
    left = int.from_bytes(_read(stream, 8))
    with path.open("wb") as file:
        while left:
            piece = _read(stream, min(left, PIECE))
            file.write(piece)
            left -= len(piece)


def _read(stream: BinaryIO, size: int) -> bytes:
    """So many bytes from the first host."""
    try:
        found = stream.read(size)
    except OSError as error:
        raise BrokenTransfer(str(error)) from error
    if len(found) < size:
        raise BrokenTransfer("the connection was closed")
    return found
