"""Writer of a record, which a recorder uses within the process of a training script.

A record holds what the script computed in its first steps; record_format.py describes its files.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import sys
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple, Union

import numpy as np

from common.recording.array_norms import sum_squares
from common.recording.operation_format import OPERATIONS, OperationTrace
from common.recording.record_format import (
    FORMAT,
    RANK_PATTERN,
    RECORD,
    START,
    STEP_PATTERN,
    AbridgedTensor,
    Environment,
    RecordFacts,
    StepFacts,
)
from common.recording.tensor_writer import write_tensors

# Limits of the bytes that a recorder copies as a whole, for the layers and for the batches of a step: at least this
# many, and otherwise these shares of the bytes of the variables, in the first step and in a later one. So the record of
# three steps of Adam stays below 12 times the size of the parameters.
MIN_COPIED_BYTES = 64 << 20
FIRST_COPIED_SHARE, LATER_COPIED_SHARE = 0.75, 0.25
SAMPLE_SIZE = 4096  # number of elements that stand for a tensor that does not fit into the record
WRITTEN_NAMES = re.compile(
    r"(record\.json|operations\.json|start\.safetensors|step-\d{8}\.safetensors)(\.partial)?|rank-\d+"
)


class Sample(NamedTuple):
    """Elements that stand for a tensor that is too large for the record."""

    facts: AbridgedTensor
    positions: np.ndarray  # indices of the elements in the flattened tensor
    elements: np.ndarray


Arrays = Mapping[str, Union[np.ndarray, Sample]]  # noqa: UP007  Python 3.9 evaluates it


class RecordWriter:
    """Writes the record of one rank, step by step. A reader finds every step that is finished.

    An error of the file system ends the record with a warning, but not the training.

    Attributes:
        facts: The content of record.json, which a recorder completes; every step writes it.
        is_open: Whether the record still takes steps.
    """

    def __init__(
        self, directory: str, framework: str, environment: Environment, rank: int = 0, world_size: int = 1,
        max_bytes: int = 2 << 30,
    ) -> None:  # fmt: skip
        """Create the directory, and remove the record that an earlier run left there.

        Args:
            directory: Directory of the record of all ranks.
            framework: "torch" or "tensorflow".
            environment: Versions, device and flags.
            rank: Number of this process.
            world_size: Number of processes.
            max_bytes: Size limit of this rank's record in bytes. Beyond the limit, samples replace tensors.

        Raises:
            ValueError: The directory has files that no recorder wrote.
        """
        self._root = Path(directory)
        self._directory = self._root / RANK_PATTERN.format(rank) if world_size > 1 else self._root
        self._remaining_bytes = max_bytes
        self.is_open = True
        self.facts: RecordFacts = {
            "format": FORMAT,
            "framework": framework,
            "rank": rank,
            "world_size": world_size,
            "complete": False,
            "environment": environment,
            "model": None,
            "optimizer": None,
            "scheduler": None,
            "loss": None,
            "steps": [],
            "abridged": {},
            "aliases": {},
            "not_recorded": [],
        }
        self._guard(self._prepare_directory)

    def write_start(self, arrays: Arrays) -> None:
        """Write the weights and slots before the first recorded step."""
        self._guard(lambda: self._write(START, arrays))

    def write_operations(self, trace: OperationTrace) -> None:
        """Write the operations of the first micro-batch."""
        text = json.dumps(trace, default=str) + "\n"
        self._guard(lambda: self._replace(OPERATIONS, lambda partial: partial.write_text(text, encoding="utf-8")))

    def write_step(self, facts: StepFacts, arrays: Arrays) -> None:
        """Write a finished step."""

        def write() -> None:
            self._write(STEP_PATTERN.format(facts["step"]), arrays)
            self.facts["steps"].append(facts)
            self._write_facts()

        self._guard(write)

    def close(self, complete: bool) -> None:
        """End the record. `complete`: whether all steps that were asked for are recorded."""
        if self.is_open:
            self.facts["complete"] = complete
            self._guard(self._write_facts)
        self.is_open = False

    def note(self, sentence: str) -> None:
        """Add a sentence about something that cannot be recorded."""
        if sentence not in self.facts["not_recorded"]:
            self.facts["not_recorded"].append(sentence)

    def warn_of_no_step(self, sentence: str) -> None:
        """Note a sentence, and warn with it, if the record has no step. Call it when the script ends.

        If the script ends with an error, that is what its user has to read.
        """
        if not self.facts["steps"]:
            self.note(sentence)
            if getattr(sys, "last_value", None) is None:
                warnings.warn(sentence, RuntimeWarning, stacklevel=3)

    def _guard(self, write: Callable[[], None]) -> None:
        if not self.is_open:
            return
        try:
            write()
        except OSError as error:
            self.is_open = False
            reason = getattr(error, "strerror", None) or error
            warnings.warn(
                f"{self._directory}: the record ends here, and the training goes on: {reason}",
                RuntimeWarning,
                stacklevel=4,
            )

    def _prepare_directory(self) -> None:
        self._directory.mkdir(parents=True, exist_ok=True)
        if self._directory != self._root:  # a record of one process would hide those of the ranks
            (self._root / RECORD).unlink(missing_ok=True)
        paths = sorted(self._directory.iterdir())
        for path in paths:
            if not WRITTEN_NAMES.fullmatch(path.name):
                raise ValueError(f"{path}: is not a part of a record; name a new directory for the record")
        for path in paths:
            if path.is_file():
                path.unlink()

    def _write(self, name: str, arrays: Arrays) -> None:
        stored: dict[str, np.ndarray] = {}
        abridged: dict[str, AbridgedTensor] = {}
        aliases: dict[str, str] = {}
        names: dict[int, str] = {}  # the name under which each tensor is stored, by the id of its array
        for key, array in arrays.items():
            if (first_name := names.setdefault(id(array), key)) != key:
                aliases[key] = first_name
                continue
            if isinstance(array, np.ndarray) and self._is_too_large(array):
                array = draw_sample(array)
            if isinstance(array, Sample):
                abridged[key], stored[f"sample/{key}"], stored[key] = array
            else:
                stored[key] = array
            self._remaining_bytes -= stored[key].nbytes
        if abridged:
            self.facts["abridged"][name] = abridged
        if aliases:
            self.facts["aliases"][name] = aliases
        self._replace(name, lambda partial: write_tensors(partial, stored))

    def _is_too_large(self, array: np.ndarray) -> bool:
        return array.nbytes > self._remaining_bytes and array.size > SAMPLE_SIZE

    def _write_facts(self) -> None:
        text = json.dumps(self.facts, indent=1, default=str) + "\n"
        self._replace(RECORD, lambda partial: partial.write_text(text, encoding="utf-8"))

    def _replace(self, name: str, write: Callable[[Path], object]) -> None:
        """Write a file atomically: a reader finds the whole file or none."""
        path = self._directory / name
        partial = path.with_name(f"{name}.partial")
        try:
            write(partial)
            os.replace(partial, path)  # noqa: PTH105  as elsewhere; Path.replace is the same
        except BaseException:
            partial.unlink(missing_ok=True)  # frees space if the disk is full
            raise


def limit_copied_bytes(variable_bytes: int, step: int) -> int:
    """Return the number of bytes of layers, and of the batches of a step, that a recorder copies as a whole."""
    share = FIRST_COPIED_SHARE if step == 1 else LATER_COPIED_SHARE
    return max(MIN_COPIED_BYTES, int(share * variable_bytes))


def draw_sample(array: np.ndarray) -> Sample:
    """Draw the elements that stand for a tensor. The positions depend on its size only."""
    positions = np.sort(np.random.default_rng(0).integers(array.size, size=SAMPLE_SIZE))
    return Sample(_describe(array), positions, array.reshape(-1)[positions])


def list_plain_values(values: Mapping[str, object]) -> dict[str, object]:
    """Return the values that JSON can hold, such as an optimizer's hyperparameters."""
    return {name: plain for name, value in values.items() if (plain := _to_plain(value)) is not None or value is None}


def _to_plain(value: object) -> object:
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, (list, tuple)):
        items: list[object] = [_to_plain(item) for item in value]
        return None if any(item is None for item in items) else items
    return None


def _describe(array: np.ndarray) -> AbridgedTensor:
    return {
        "shape": list(array.shape),
        "norm": float(np.sqrt(sum_squares(array))),
        "sha256": hashlib.sha256(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data).hexdigest(),
    }
