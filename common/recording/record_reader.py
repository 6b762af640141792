"""Reader of records, which may come from somebody else. record_format.py describes their files.

Nothing in a record names a file that is opened: the names of the files follow from the numbers of steps and ranks.
Tensors are read when they are asked for.
"""

import hashlib
import os
import re
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path

import numpy as np

from common.errors import UserError, error_reason, one_line
from common.recording.operation_format import OPERATIONS, OperationTrace
from common.recording.record_checks import read_facts, read_operations
from common.recording.record_format import (
    RANK_PATTERN,
    RECORD,
    REFUSED,
    START,
    STEP_PATTERN,
    RecordFacts,
    StepFacts,
)
from common.recording.tensor_file import TensorFile, check_regular_file
from common.records.bundle import is_bundle

RANK_NAME = re.compile(r"rank-(0|[1-9]\d*)")


class RankRecord:
    """The record of one process.

    Attributes:
        directory: Its directory.
        facts: The content of record.json.
    """

    def __init__(self, directory: Path) -> None:
        """Read record.json. Raise UserError if it is missing or damaged, or if no step is finished."""
        self.directory = directory
        check_directory(directory)
        check_regular_file(directory / RECORD)
        self.facts: RecordFacts = read_facts(directory / RECORD)
        self._files: dict[str, TensorFile] = {}
        if not self.facts["steps"]:
            refusals = [note.removeprefix(REFUSED) for note in self.facts["not_recorded"] if note.startswith(REFUSED)]
            if refusals:
                raise UserError(f"{directory}: has no finished step, because following ended: {one_line(refusals[0])}")
            raise UserError(f"{directory}: has no finished step; let the script reach its first optimizer step")

    @cached_property
    def start(self) -> TensorFile:
        """The state before the first recorded step."""
        return self._open(START)

    @cached_property
    def operations(self) -> OperationTrace | None:
        """The operations of the first micro-batch; None if the record has none. UserError if the file is damaged."""
        path = self.directory / OPERATIONS
        if not os.path.lexists(path):
            return None
        check_regular_file(path)
        return read_operations(path)

    def hash_first_step(self) -> str:
        """Return the SHA-256 of the file of the first step, which identifies the record."""
        path = self.open_step(self.facts["steps"][0]["step"]).path
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()

    def open_step(self, step: int) -> TensorFile:
        """Return the tensors of a step. Raise UserError if its file is missing or damaged."""
        return self._open(STEP_PATTERN.format(step))

    def open_before(self, step: int) -> TensorFile:
        """Return the tensors before a step: of the step before it, or of the initial state."""
        earlier = [facts["step"] for facts in self.facts["steps"] if facts["step"] < step]
        return self.open_step(max(earlier)) if earlier else self.start

    def read_weights_before(self, step: int) -> dict[str, np.ndarray]:
        """Return the weights before the update of a step."""
        return {**self.open_before(step).select("weight"), **self.open_step(step).select("changed_weight")}

    def _open(self, name: str) -> TensorFile:
        if name not in self._files:
            abridged, aliases = self.facts["abridged"].get(name, {}), self.facts["aliases"].get(name, {})
            self._files[name] = TensorFile(self.directory / name, abridged, aliases)
        return self._files[name]


class Record:
    """The record of a training script: the records of its processes, one or more.

    Attributes:
        directory: Directory of the record.
        ranks: Record of each process.
        notes: Sentences for the report about what is incomplete.
    """

    def __init__(self, directory: Path, ranks: Sequence[RankRecord]) -> None:
        self.directory, self.ranks = directory, ranks
        self.notes = _list_notes(ranks)

    @property
    def facts(self) -> RecordFacts:
        """The content of record.json of the first process."""
        return self.ranks[0].facts

    @property
    def framework(self) -> str:
        """The framework: "torch" or "tensorflow"."""
        return self.facts["framework"]

    @cached_property
    def steps(self) -> list[int]:
        """Numbers of the steps that all processes recorded."""
        numbers = [{step["step"] for step in rank.facts["steps"]} for rank in self.ranks]
        return sorted(set.intersection(*numbers))

    def get_step_facts(self, step: int) -> list[StepFacts]:
        """Return the numbers of a step from each process."""
        return [next(facts for facts in rank.facts["steps"] if facts["step"] == step) for rank in self.ranks]

    def get_loss(self, step: int) -> float | None:
        """Return the mean loss of the micro-batches of all processes; None if one was not seen."""
        losses = [loss for facts in self.get_step_facts(step) for loss in facts["losses"]]
        seen_losses = [loss for loss in losses if loss is not None]
        return float(np.mean(seen_losses)) if seen_losses and len(seen_losses) == len(losses) else None


def is_record(path: Path) -> bool:
    """Check whether a path is the directory of a record, even of a damaged one."""
    names = (RECORD, START, f"{RANK_PATTERN.format(0)}/{RECORD}", f"{RANK_PATTERN.format(0)}/{START}")
    return any(os.path.lexists(path / name) for name in names) or bool(_list_rank_numbers(path))


def open_record(directory: Path) -> Record:
    """Open a record. Raise UserError if the record is missing or damaged."""
    check_directory(directory)
    if os.path.lexists(directory / RECORD):
        rank = RankRecord(directory)
        if rank.facts["world_size"] > 1:
            raise UserError(f"{directory}: the record of one of several processes; pass the directory above it")
        return Record(directory, [rank])
    numbers = _list_rank_numbers(directory)
    if not numbers and not os.path.lexists(directory / START):
        raise UserError(f"{directory}: not a record: has neither {RECORD} nor rank-0; pass the recorder's directory")
    first = directory / RANK_PATTERN.format(numbers[0]) if numbers else directory
    if not numbers or not os.path.lexists(first / RECORD):
        raise UserError(f"{first}: half written: no step is finished; let the script reach its first update")
    return _open_ranks(directory, numbers, _open_rank(first).facts)


def _open_rank(path: Path) -> RankRecord:
    if path.is_symlink():
        raise UserError(f"{path}: a symbolic link, which is not followed; copy the directory of the rank")
    return RankRecord(path)


def _open_ranks(directory: Path, numbers: Sequence[int], facts: RecordFacts) -> Record:
    """Open the records of all processes.

    Args:
        directory: The directory above them.
        numbers: The ranks that have a directory.
        facts: The content of record.json of one process.
    """
    world_size = facts["world_size"]
    missing = sorted({*range(world_size)} - {*numbers})
    if missing:
        raise UserError(
            f"{directory}: has no {RANK_PATTERN.format(missing[0])}, and the script had {world_size} processes; "
            "copy the directories of all ranks"
        )
    ranks = [_open_rank(directory / RANK_PATTERN.format(number)) for number in range(world_size)]
    for number, rank in enumerate(ranks):
        origin = (rank.facts["rank"], rank.facts["world_size"], rank.facts["framework"])
        if origin != (number, world_size, facts["framework"]):
            raise UserError(f"{rank.directory}: comes from another run than the other ranks; record the script again")
    record = Record(directory, ranks)
    if not record.steps:
        raise UserError(f"{directory}: no step is finished in all {world_size} processes; record the script again")
    return record


def check_directory(path: Path) -> None:
    """Raise UserError unless a path is a directory."""
    try:
        is_directory = path.is_dir()
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error_reason(error)}") from error
    if not is_directory and is_bundle(path):
        raise UserError(f"{path}: a bundle; unpack it first: python -m common.export unpack={path} DIRECTORY")
    if not is_directory:
        raise UserError(f"{path}: no such directory; pass the directory that the recorder was given")


def _list_rank_numbers(directory: Path) -> list[int]:
    """Return the sorted numbers of the ranks that have a directory."""
    try:
        names = [path.name for path in directory.iterdir()]
    except OSError:
        return []
    return sorted(int(match[1]) for name in names if (match := RANK_NAME.fullmatch(name)) and len(name) < 16)


def _list_notes(ranks: Sequence[RankRecord]) -> list[str]:
    """Return the sentences about incomplete parts of the records of all processes, without repetitions."""
    notes = [sentence for rank in ranks for sentence in rank.facts["not_recorded"]]
    counts = {len(rank.facts["steps"]) for rank in ranks}
    if len(counts) > 1:
        notes.append(f"the processes recorded {min(counts)} to {max(counts)} steps; the common ones are compared")
    if not all(rank.facts["complete"] for rank in ranks):
        notes.append("the script ended before all steps were recorded")
    abridged = sum(len(tensors) for rank in ranks for tensors in rank.facts["abridged"].values())
    if abridged:
        notes.append(
            f"{abridged} tensors are recorded as samples only, because of their size, and are not compared whole"
        )
    return list(dict.fromkeys(notes))
