"""Dispatch of batches to the workers of an asynchronous run: the parts of the global batches, in order, each once.

The limit on staleness holds at any speed of the workers. A batch is dispatched only if no batch in progress, the new
one included, could then be applied more than `max_staleness` updates after its worker read the parameters.
"""

from collections.abc import Iterable

from common.data.batches import GlobalBatch


class Dispatcher:
    """Decides which batch a worker gets next, and when.

    Args:
        batches: the global batches, in the order of the plan.
        updates_per_batch: number of parts of a global batch, each of which makes one update.
        at_once: largest number of batches in progress.
        max_staleness: limit on the staleness of an update; None is no limit.
    """

    def __init__(
        self, batches: Iterable[GlobalBatch], updates_per_batch: int, at_once: int, max_staleness: int | None
    ) -> None:
        self._parts = (part for batch in batches for part in batch.divide(updates_per_batch))
        self._at_once, self._max_staleness = at_once, max_staleness
        # By step and part of each batch in progress: the updates that may come between its read and its update.
        self._possible_staleness: dict[tuple[int, int], int] = {}

    @property
    def in_progress(self) -> int:
        """Return the number of batches that are dispatched and not finished."""
        return len(self._possible_staleness)

    def take(self) -> GlobalBatch | None:
        """Return the next batch, or None if a batch in progress must finish first or no batch is left."""
        if self.in_progress == self._at_once or not self._stays_within_limit():
            return None
        batch = next(self._parts, None)
        if batch is not None:
            self._possible_staleness = {key: updates + 1 for key, updates in self._possible_staleness.items()}
            self._possible_staleness[batch.step, batch.part] = self.in_progress
        return batch

    def finish(self, batch: GlobalBatch) -> None:
        """Record that the update from this batch has been applied."""
        del self._possible_staleness[batch.step, batch.part]

    def _stays_within_limit(self) -> bool:
        """Check whether one more batch in progress keeps every update within the limit on staleness."""
        if self._max_staleness is None:
            return True
        possible = [updates + 1 for updates in self._possible_staleness.values()]
        return max(self.in_progress, *possible, 0) <= self._max_staleness
