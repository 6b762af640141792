"""Training examples of `data.stream`. Only a few blocks of them are on the disk at a time.

A block is `data.stream` consecutive examples. Every process of a run opens the blocks that its batches need. The
first process that needs a block reads it in the user's function, and the others wait for the lock of its directory. A
thread reads the next block ahead. The first block is in the cache of the data and stays there.
"""

import json
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock, Thread
from typing import cast

import numpy as np
from typing_extensions import override

from common.config.data import CustomDataSettings
from common.config.tasks import ClassificationSettings, RegressionSettings, TaskSettings
from common.data.atomic_directory import compute_fingerprint, lock_path, open_or_build
from common.data.batches import Arrays
from common.data.splits.array_column import Column
from common.data.splits.array_split import ArraySplit
from common.errors import UserError

CHECKSUMS = "checksums.json"  # the checksums of all blocks that were read so far, by their numbers
ATTEMPTS = 10  # times that a block is read if a process that is more than a block ahead removes it
KEPT_LOCKS = 8  # blocks before and after the current one whose lock files are kept: a process may wait for them
REMOVE_SECONDS = 5.0  # how long a process that still ends may write into a directory that is removed

# A function that reads the examples of a range of indices, and writes their arrays to an empty directory.
ReadBlock = Callable[[int, int, Path], dict[str, object]]
OpenBlock = Callable[[Path], ArraySplit]


@dataclass(frozen=True)
class StreamSplit(ArraySplit):
    """The training examples of a stream. The inherited arrays are those of its first block.

    Attributes:
        directory: The directory of the other blocks, which belongs to one run; None outside of a run.
        count: Number of examples of an epoch.
        block_size: Number of examples of a block; the last one may have fewer.
        read_block: Writes a block.
        open_block: Opens a block.
        blocks: The blocks that this process has opened, at most two.
        lock: Held by the thread that uses `blocks`.
    """

    directory: Path | None = None
    count: int = 0
    block_size: int = 1
    read_block: ReadBlock | None = None
    open_block: OpenBlock | None = None
    blocks: dict[int, ArraySplit] = field(default_factory=dict, compare=False)
    lock: Lock = field(default_factory=Lock, compare=False)

    transforms_labels = True  # a batch must gather its labels, because `labels` has only the labels of the first block

    @override
    def __len__(self) -> int:
        return self.count

    @override
    def lengths(self, ids: np.ndarray) -> np.ndarray:
        return np.zeros(len(ids), np.int64)

    @override
    def weights(self, ids: np.ndarray) -> np.ndarray:
        if self.example_weights is None:
            return np.ones(len(ids))
        return self._collect(ids, lambda split, rows: {"weights": split.weights(rows)})["weights"]

    @override
    def loss_counts(self, ids: np.ndarray) -> np.ndarray:
        if not self.label.shape:
            return np.ones(len(ids))
        return self._collect(ids, lambda split, rows: {"counts": split.loss_counts(rows)})["counts"]

    @override
    def gather(self, ids: np.ndarray, batch: np.ndarray) -> Arrays:
        return self._collect(ids, lambda split, rows: split.gather(rows, rows))

    @contextmanager
    def open_blocks(self, checksums: Mapping[str, str]) -> Iterator[None]:
        """Keep the directory of the blocks for one run. Remove all blocks at the start and at the end.

        Args:
            checksums: The checksums of the blocks that were read until the checkpoint. The blocks must have the same
                checksums again.

        Raises:
            UserError: A run on another host uses the directory, with the same `run_dir` and the same cache.
        """
        assert self.directory is not None
        problem = (
            f"cache_dir={self.directory.parent}: another run, whose run_dir has the same path, keeps the blocks of its "
            "stream there; set another run_dir or cache_dir"
        )
        with lock_path(self.directory, problem):
            self._remove_blocks()
            with lock_path(self.directory / CHECKSUMS):
                _write_checksums(self.directory, checksums)
            try:
                yield
            finally:
                self._remove_blocks()

    def _remove_blocks(self) -> None:
        """Remove all blocks of the run. Processes that have not ended yet may still write some."""
        assert self.directory is not None
        give_up = time.monotonic() + REMOVE_SECONDS
        while self.directory.exists() and time.monotonic() < give_up:
            shutil.rmtree(self.directory, ignore_errors=True)

    def read_checksums(self) -> dict[str, str]:
        """Return the checksums of the blocks that the run has read, by their numbers."""
        path = None if self.directory is None else self.directory / CHECKSUMS
        return cast(dict[str, str], json.loads(path.read_text())) if path is not None and path.exists() else {}

    def _collect(self, ids: np.ndarray, gather: Callable[[ArraySplit, np.ndarray], Arrays]) -> Arrays:
        """Gather arrays of the examples from their blocks."""
        numbers, rows = np.divmod(ids, self.block_size)
        arrays: Arrays = {}
        for number in np.unique(numbers).tolist():
            places = np.flatnonzero(numbers == number)
            for name, values in gather(self._get_block(number), rows[places]).items():
                if name not in arrays:
                    arrays[name] = np.empty((len(ids), *values.shape[1:]), values.dtype)
                arrays[name][places] = values
        return arrays

    def _get_block(self, number: int) -> ArraySplit:
        """Return a block. If this process has not opened it, open it, and let a thread read the next one."""
        if self.directory is None:
            if number == 0:
                return self._build_first_block()
            raise UserError(
                "data.stream: only training reads the examples after the first block; set data.stream and "
                "data.stream_examples to null"
            )
        with self.lock:
            if number not in self.blocks:
                self.blocks[number] = self._prepare(self.directory, number) if number else self._build_first_block()
                if len(self.blocks) > 2:
                    del self.blocks[next(iter(self.blocks))]
                if (self.directory / CHECKSUMS).exists():  # training has begun
                    self._remove_other_blocks(self.directory, number)
                    following = (number + 1) % self.block_count
                    Thread(target=self._read_ahead, args=(self.directory, following), daemon=True).start()
            return self.blocks[number]

    def _build_first_block(self) -> ArraySplit:
        """Return the first block, which is in the cache of the data."""
        return ArraySplit(self.inputs, self.label, self.example_weights, self.task)

    @property
    def block_count(self) -> int:
        """Number of blocks of an epoch."""
        return -(-self.count // self.block_size)

    def _read_ahead(self, directory: Path, number: int) -> None:
        """Read a block, unless it is on the disk. The process that needs it reads it again after an error."""
        with suppress(UserError, OSError):
            if number:
                self._prepare(directory, number)

    def _prepare(self, run_directory: Path, number: int) -> ArraySplit:
        """Read a block unless it is on the disk, and open it. Raise UserError if it cannot be read."""
        assert self.read_block is not None and self.open_block is not None
        first, read_block = number * self.block_size, self.read_block
        end = min(first + self.block_size, self.count)
        directory = run_directory / f"block-{number}"
        for _ in range(ATTEMPTS):
            with suppress(FileNotFoundError):  # another process has removed the block
                manifest = open_or_build(directory, lambda partial: read_block(first, end, partial))
                fingerprint = compute_fingerprint(cast(Mapping[str, object], manifest["checksums"]))
                _compare_checksum(run_directory, number, fingerprint, (first, end))
                return self.open_block(directory)
        raise UserError(f"data.stream: other processes removed {directory} before it was used; raise data.stream")

    def _remove_other_blocks(self, directory: Path, number: int) -> None:
        """Remove all blocks except for blocks number - 1 to number + 2, which other processes may need.

        Processes that have opened a block keep it.
        """
        kept = {f"block-{(number + offset) % self.block_count}" for offset in (-1, 0, 1, 2)}
        kept_locks = {
            f"block-{(number + offset) % self.block_count}.lock" for offset in range(-KEPT_LOCKS, KEPT_LOCKS + 1)
        }
        for path in directory.glob("block-*"):
            if path.is_dir() and path.suffix == "" and path.name not in kept:
                removed = path.with_suffix(".removed")
                with suppress(OSError):
                    path.rename(removed)
                    shutil.rmtree(removed, ignore_errors=True)
            elif path.suffix == ".lock" and path.name not in kept_locks:
                path.unlink(missing_ok=True)


def _compare_checksum(directory: Path, number: int, checksum: str, limits: tuple[int, int]) -> None:
    """Record the checksum of a block, or raise UserError if the block was different when it was read before.

    limits: the first example of the block, and the end of its examples.
    """
    path = directory / CHECKSUMS
    with lock_path(path):
        checksums = json.loads(path.read_text()) if path.exists() else {}
        if str(number) not in checksums:
            _write_checksums(directory, {**checksums, str(number): checksum})
            return
    if checksums[str(number)] != checksum:
        shutil.rmtree(directory / f"block-{number}", ignore_errors=True)
        raise UserError(
            f"data.read: examples {limits[0]} to {limits[1] - 1} of train differ from those that were read before, in "
            "this run or in the run that it resumes; yield the same examples every time, or start a new run"
        )


def _write_checksums(directory: Path, checksums: Mapping[str, str]) -> None:
    partial = directory / f"{CHECKSUMS}.partial"
    partial.write_text(json.dumps(checksums))
    partial.replace(directory / CHECKSUMS)


def check_streamed_arrays(data: CustomDataSettings, task: TaskSettings, first: ArraySplit) -> None:
    """Raise UserError if a stream cannot have such arrays, or such labels of the task. first: the first block."""
    columns: dict[str, Column] = {**first.inputs, data.label: first.label}
    for name, column in columns.items():
        if column.offsets is not None:
            raise UserError(f"data.stream: {name} has examples of different lengths; pad them, or set data.stream=null")
    if first.label.shape and first.label.values.dtype.kind != "f":
        raise UserError(f"data.stream: {data.label} has labels of tokens or pixels; set data.stream=null")
    if isinstance(task, ClassificationSettings) and first.label.values.dtype.kind == "f":
        raise UserError(f"data.stream: {data.label} has shares of classes; yield integers, or set data.stream=null")
    if isinstance(task, RegressionSettings) and task.loss == "poisson":
        raise UserError("data.stream: task.loss=poisson does not read streams; choose another loss")
