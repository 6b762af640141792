"""Check that a data set has the columns that the config names, such as data.label=verdict."""

from collections.abc import Collection

from common.data.abbreviation import abbreviate
from common.errors import UserError

RequiredColumns = list[tuple[str, str]]  # (config key, column name)


def check_columns(location: str, required: RequiredColumns, names: Collection[str]) -> None:
    """Raise UserError unless the data has every required column exactly once.

    Args:
        location: File or data set, for the error.
        required: Columns that the config names.
        names: Names of all columns of the data.
    """
    for key, name in required:
        if name not in names:
            or_null = ", or to null for single sentences" if key == "data.hypothesis" else ""
            raise UserError(f"{location}: no column {name!r}; set {key} to one of {abbreviate(list(names))}{or_null}")
        if (count := list(names).count(name)) > 1:
            raise UserError(f"{location}: {count} columns {name!r} ({key}); rename or remove all but one")
