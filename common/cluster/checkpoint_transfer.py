"""Transfer of a checkpoint between the hosts of a run, so that hosts need no shared storage.

All processes of a run must start from the same checkpoint. The first host offers its checkpoint by step and
fingerprint. A host that lacks this checkpoint fetches it as a stream of bytes: state.json and then the files that
state.json lists, each after its size in eight bytes. The fingerprint is computed from state.json, which has the
checksums of all other files. Therefore other data cannot be taken for the checkpoint.
"""

import logging
import shutil
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import BinaryIO

from common.cluster.peer_messages import CheckpointOffer
from common.data.atomic_directory import is_inside
from common.errors import UserError, build_write_error
from common.run.checkpoint import (
    CHECKPOINTS_DIRECTORY,
    Checkpoint,
    list_checkpoints,
    open_checkpoint,
    open_unverified_checkpoint,
    parse_step,
)
from common.run.checkpoint_state import STATE_FILE
from common.run.context import RunContext
from common.run.directory import find_chief_run_dir
from common.run.inputs import open_prepared_checkpoint
from common.run.prepare import prepare_start

log = logging.getLogger("lockstep")

CHUNK_BYTES = 1 << 20  # number of bytes that are read and sent at once


class BrokenTransferError(Exception):
    """The connection broke, or what arrived is not the checkpoint that was offered."""


class CheckpointTransfer:
    """One host's side of the transfer: the first host offers and sends, the other hosts accept."""

    def __init__(self, context: RunContext, host_index: int) -> None:
        self._context, self._run_dir, self._host_index = context, context.run_dir, host_index

    def make_offer(self) -> CheckpointOffer | None:
        """Return the checkpoint that the first host has prepared; None for the initial weights."""
        checkpoint = open_prepared_checkpoint(self._run_dir)
        return {"step": checkpoint.position.step, "fingerprint": checkpoint.fingerprint} if checkpoint else None

    def read_chunks(self) -> Iterator[bytes]:
        """Yield the checkpoint that the first host has offered as a stream of bytes. Raise OSError."""
        checkpoint = open_prepared_checkpoint(self._run_dir)
        assert checkpoint is not None
        yield from pack_checkpoint(checkpoint)

    def accept_offer(self, offer: object, fetch: Callable[[str], BinaryIO]) -> None:
        """Make this host's processes start from what the first host offers.

        Args:
            offer: the CheckpointOffer of the first host as received, so not validated; None for the initial weights.
            fetch: takes a fingerprint and returns the stream of that checkpoint from the first host; raises OSError.

        Raises:
            BrokenTransferError: the offer is not valid, or the checkpoint does not arrive complete.
            UserError: the checkpoint cannot be written.
        """
        prepared = open_prepared_checkpoint(self._run_dir)
        checkpoint: Checkpoint | None
        match offer:
            case None:
                checkpoint = None
                if prepared is not None:
                    log.warning(
                        "the first host starts from the initial weights, and so not from %s", prepared.directory
                    )
            case {"step": int(step), "fingerprint": str(fingerprint)}:
                checkpoint = self._find(prepared, fingerprint) or self._receive(step, fingerprint, fetch)
            case _:
                raise BrokenTransferError(f"{offer} is not a checkpoint")
        if checkpoint != prepared:
            prepare_start(self._context, checkpoint)

    def _find(self, prepared: Checkpoint | None, fingerprint: str) -> Checkpoint | None:
        """Return the checkpoint with this fingerprint if this host has it."""
        if prepared is not None and prepared.fingerprint == fingerprint:
            return prepared
        for run_dir in (find_chief_run_dir(self._run_dir, self._host_index), self._run_dir):
            for directory in reversed(list_checkpoints(run_dir)):
                with suppress(UserError):  # a damaged checkpoint
                    if open_unverified_checkpoint(directory).fingerprint == fingerprint:
                        return open_checkpoint(directory)
        return None

    def _receive(self, step: int, fingerprint: str, fetch: Callable[[str], BinaryIO]) -> Checkpoint:
        directory = self._run_dir / CHECKPOINTS_DIRECTORY / f"step-{step:08}"
        log.info("receiving the checkpoint of step %d from the first host", step)
        try:
            stream = fetch(fingerprint)
        except OSError as error:
            raise BrokenTransferError(str(error)) from error
        with closing(stream):
            return unpack_checkpoint(stream, directory, fingerprint)


def pack_checkpoint(checkpoint: Checkpoint) -> Iterator[bytes]:
    """Yield a checkpoint as a stream of bytes. Raise OSError if it cannot be read."""
    for name in (STATE_FILE, *checkpoint.state["checksums"]):
        path = checkpoint.directory / name
        yield path.stat().st_size.to_bytes(8)
        with path.open("rb") as file:
            while chunk := file.read(CHUNK_BYTES):
                yield chunk


def unpack_checkpoint(stream: BinaryIO, directory: Path, fingerprint: str) -> Checkpoint:
    """Write the checkpoint that a stream of `pack_checkpoint` holds. Remove all other checkpoints of the run.

    The directory appears complete and verified, or not at all. Raise BrokenTransferError, and UserError if the
    checkpoint cannot be written.
    """
    partial = directory.with_suffix(".partial")
    try:
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        _unpack_files(stream, partial, directory, fingerprint)
        if directory.exists():  # a damaged checkpoint, or the one of an earlier attempt
            directory.rename(directory.with_suffix(".removed.partial"))
        partial.rename(directory)
        for other in directory.parent.glob("step-*"):
            if other != directory:
                shutil.rmtree(other)
    except OSError as error:
        raise build_write_error(directory, error) from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)  # frees space if the disk is full
    return open_unverified_checkpoint(directory)


def _unpack_files(stream: BinaryIO, partial: Path, directory: Path, fingerprint: str) -> None:
    _unpack_file(stream, partial / STATE_FILE)
    try:
        checkpoint = open_unverified_checkpoint(partial)
        if checkpoint.fingerprint != fingerprint:
            raise BrokenTransferError(f"the received fingerprint is {checkpoint.fingerprint}, not {fingerprint}")
        if checkpoint.position.step != parse_step(directory):
            raise BrokenTransferError(f"the received step is {checkpoint.position.step}, not {parse_step(directory)}")
        for name in checkpoint.state["checksums"]:
            if not is_inside(name) or name == STATE_FILE:
                raise BrokenTransferError(f"{name} is not a file of a checkpoint")
            path = partial / name
            path.parent.mkdir(parents=True, exist_ok=True)
            _unpack_file(stream, path)
        open_checkpoint(partial)
    except UserError as error:
        raise BrokenTransferError(str(error)) from error


def _unpack_file(stream: BinaryIO, path: Path) -> None:
    remaining = int.from_bytes(_read_exactly(stream, 8))
    with path.open("wb") as file:
        while remaining:
            chunk = _read_exactly(stream, min(remaining, CHUNK_BYTES))
            file.write(chunk)
            remaining -= len(chunk)


def _read_exactly(stream: BinaryIO, size: int) -> bytes:
    """Read `size` bytes from the first host. Raise BrokenTransferError."""
    try:
        data = stream.read(size)
    except OSError as error:
        raise BrokenTransferError(str(error)) from error
    if len(data) < size:
        raise BrokenTransferError("the connection was closed")
    return data
