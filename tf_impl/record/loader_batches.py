"""The batches of a loop over a loader, whose places name the arrays that the step receives."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tf_impl.record.tensors import name_tensors


class LoaderBatches:
    """Remembers the batch that a loader has returned last."""

    def __init__(self, follower: Any) -> None:  # noqa: ANN401  its class needs all of Lockstep
        """Begin without a batch. follower: gives the script the batches of a record; None if it follows none."""
        self._follower = follower
        self._batch: object = None

    def take(self, batch: object) -> object:
        """Remember and return the batch that the script gets for a batch of its loader."""
        self._batch = batch if self._follower is None else self._follower.replace_batch(batch)
        return self._batch

    def choose(self, args: Sequence[object], kwargs: Mapping[str, object]) -> object:
        """Return the batch if all tensors among a function's arguments are its, else the arguments by name.

        A script may pass the arrays of a batch in another order than a loader returns them.
        """
        arguments = dict([*zip(map(str, range(len(args))), args), *kwargs.items()])  # noqa: B905
        known = {id(tensor) for tensor in name_tensors(self._batch).values()}
        are_known = all(id(tensor) in known for tensor in name_tensors(arguments).values())
        return self._batch if are_known else arguments
