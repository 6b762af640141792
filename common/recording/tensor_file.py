"""The tensors of one file of a record, which may come from somebody else. record_format.py describes the names.

A tensor is abridged if the file holds only a sample of its elements, because the whole tensor was too large.
"""

import os
import stat
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from safetensors import SafetensorError, safe_open

from common.errors import UserError, error_reason, one_line
from common.recording.record_format import AbridgedTensor

DTYPES = {"F64", "F32", "F16", "I64", "I32", "I16", "I8", "U64", "U32", "U16", "U8", "BOOL"}
SAMPLE_PREFIX = "sample/"


class TensorFile:
    """The tensors of one file of a record.

    Attributes:
        path: The file.
        abridged: Descriptions of the abridged tensors, by name.
        names: Names of all tensors, including those that are abridged.
    """

    def __init__(self, path: Path, abridged: Mapping[str, AbridgedTensor], aliases: Mapping[str, str]) -> None:
        """Read the header of the file. Raise UserError if the file is missing or damaged.

        Args:
            path: The file.
            abridged: Descriptions of the abridged tensors, by name.
            aliases: The name under which the same tensor is stored, by name.
        """
        self.path, self._aliases = path, aliases
        with self._open() as file:
            # In the order of the script; versions before 0.6 only list them in alphabetical order
            keys = list(getattr(file, "offset_keys", file.keys)())
            unknown = sorted({file.get_slice(key).get_dtype() for key in keys} - DTYPES)
        if unknown:
            raise UserError(f"{path}: has tensors of the type {unknown[0]}, which no recorder writes; record again")
        if missing := next((name for name in aliases.values() if name not in keys), None):
            raise UserError(f"{path}: has no tensor {missing[:200]}, which record.json names; record the script again")
        self.names: Sequence[str] = [*(key for key in keys if not key.startswith(SAMPLE_PREFIX)), *aliases]
        self.abridged = {**abridged, **{name: abridged[key] for name, key in aliases.items() if key in abridged}}

    def read(self, name: str) -> np.ndarray:
        """Return a tensor, or the sample [n] of an abridged tensor."""
        with self._open() as file:
            array: np.ndarray = file.get_tensor(self._aliases.get(name, name))
        return array

    def select(self, prefix: str) -> dict[str, np.ndarray]:
        """Return the whole tensors whose names begin with PREFIX/, by the rest of the name."""
        start = f"{prefix}/"
        names = [name for name in self.names if name.startswith(start) and name not in self.abridged]
        with self._open() as file:
            return {name.removeprefix(start): file.get_tensor(self._aliases.get(name, name)) for name in names}

    def read_shapes(self, prefix: str) -> list[tuple[int, ...]]:
        """Return the shapes of the tensors whose names begin with PREFIX/, of abridged ones too."""
        names = [name for name in self.names if name.startswith(f"{prefix}/")]
        with self._open() as file:
            return [
                tuple(
                    self.abridged[name]["shape"]
                    if name in self.abridged
                    else file.get_slice(self._aliases.get(name, name)).get_shape()
                )
                for name in names
            ]

    @contextmanager
    def _open(self) -> Iterator[safe_open]:
        check_regular_file(self.path)
        try:
            with safe_open(self.path, framework="np") as file:
                yield file
        except (SafetensorError, OSError, ValueError, TypeError) as error:
            reason = one_line(error)[:200]
            raise UserError(f"{self.path}: damaged: {reason}; record the script again") from error


def check_regular_file(path: Path) -> None:
    """Raise UserError if a path is not a regular file: missing, a symbolic link, or a pipe that would block."""
    try:
        mode = os.lstat(path).st_mode
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error_reason(error)}; record the script again") from error
    if not stat.S_ISREG(mode):
        raise UserError(f"{path}: not a regular file; links are not followed: copy the file itself")
