"""The columns of a data set that a config names."""

import reprlib
from collections.abc import Collection

from common.errors import UserError

RequiredColumns = list[tuple[str, str]]  # (config key, column name)

show = reprlib.Repr()
show.maxlist = show.maxstring = 40


def check_columns(at: str, columns: RequiredColumns, found: Collection[str]) -> None:
    """Raise UserError unless every column is once among those found. at: the file or data set, for the message."""
    for key, name in columns:
        if name not in found:
            or_null = ", or to null for single sentences" if key == "data.hypothesis" else ""
            raise UserError(f"{at}: no column {name!r}; set {key} to one of {show.repr(list(found))}{or_null}")
        if (count := list(found).count(name)) > 1:
            raise UserError(f"{at}: {count} columns {name!r} ({key}); rename or remove all but one")
