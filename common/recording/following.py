"""The arguments and the batches of a script that follows the record of another script.

A script follows a record if it starts from the recorded weights and trains on the recorded batches. The class that does
this needs all of Lockstep. Therefore this class is imported only if a script follows a record.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from typing import Any


def open_follower(
    follow: object, map_file: str | None, directory: str, import_follower: Callable[[], Callable[..., Any]]
) -> Any:  # noqa: ANN401  the class is one of a framework
    """Open the record that a script follows; return None if it follows none. Raise ValueError for a wrong argument.

    Args:
        follow: The directory of that record; None to follow none. An opened record is returned unchanged.
        map_file: The file that pairs the variables of the two models.
        directory: The directory of the record that is written.
        import_follower: Returns the class that opens the record.
    """
    if follow is None and map_file is not None:
        raise ValueError(f"map={map_file}: pairs the variables with those of another record; pass follow= too")
    if not isinstance(follow, (str, os.PathLike)):
        return follow
    if os.path.realpath(follow) == os.path.realpath(directory):
        raise ValueError(f"follow={follow}: this recorder writes its own record there; pass another directory to it")
    try:
        kind = import_follower()
    except (ImportError, SyntaxError, TypeError) as error:  # an old version of Python cannot read all of Lockstep
        raise ValueError(
            f"follow={follow}: following needs all of Lockstep in this environment ({error}); install it here"
        ) from error
    return kind(os.fspath(follow), map_file)


class MappedLoader:
    """An iterable over the batches of a loader, each of which passes through a function."""

    def __init__(self, loader: Iterable[Any], function: Callable[[Any], Any]) -> None:
        """Prepare to iterate over a loader. function: returns the batch that the script gets."""
        self._loader, self._function = loader, function

    def __iter__(self) -> Iterator[Any]:
        """Yield the batches."""
        for batch in self._loader:
            yield self._function(batch)

    def __len__(self) -> int:
        """Return the number of the loader's batches."""
        return len(self._loader)  # type: ignore[arg-type]
