"""Reader of a zip archive that may come from somebody else."""

import io
import zipfile
from pathlib import Path

from typing_extensions import override

MAX_READ_BYTES = 4 << 20  # the index of the largest bundle, with 10,000 members, has some megabytes


class ReadError(Exception):
    """A bundle cannot be read. Its argument is the OSError; another OSError means that a file cannot be written."""


class BoundedReader(io.BufferedReader):
    """Reader of a file that refuses to read many bytes at once, such as a large index of an archive."""

    def __init__(self, path: Path) -> None:
        try:
            super().__init__(io.FileIO(path))
        except OSError as error:
            raise ReadError(error) from error

    @override
    def read(self, size: int | None = -1, /) -> bytes:
        try:
            data = super().read(MAX_READ_BYTES + 1 if size is None or size < 0 else min(size, MAX_READ_BYTES + 1))
        except OSError as error:
            raise ReadError(error) from error
        if len(data) > MAX_READ_BYTES:
            raise zipfile.BadZipFile(f"has an index of more than {MAX_READ_BYTES >> 20} MiB")
        return data

    @override
    def seek(self, target: int, whence: int = 0, /) -> int:
        try:
            return super().seek(target, whence)
        except OSError as error:
            raise zipfile.BadZipFile("has an index that points out of the file") from error
