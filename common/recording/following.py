"""Arguments of a recorder that follows another record. Only following itself needs more than a recorder imports."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from typing import Any


def open_follower(
    follow: object, map_file: str | None, directory: str, import_follower: Callable[[], Callable[..., Any]]
) -> Any:  # noqa: ANN401  the class is one of a framework
    """Open the record that a script follows; return None if it follows none. Raise ValueError for a wrong argument.

    Args:
        follow: The directory of that record, or what this function returned for it.
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
    except (ImportError, SyntaxError) as error:  # an old version of Python cannot read all of Lockstep
        raise ValueError(
            f"follow={follow}: following needs all of Lockstep in this environment ({error}); install it here"
        ) from error
    return kind(os.fspath(follow), map_file)


def follow_batches(loader: Iterable[Any], follower: Any) -> Iterable[Any]:  # noqa: ANN401  as above
    """Return the batches of the followed record in place of the loader's own. Raise ValueError if there is none."""
    if follower is None:
        raise ValueError("batches: this recorder follows no other record; pass follow=DIRECTORY to it")
    batches: Iterable[Any] = follower.batches(loader)
    return batches
