"""Dispatch of batches to the workers of an asynchronous run. A batch here is a global batch or a part of one.

The batches are dispatched in the order of the plan, each of them once. A worker reads the parameters when it receives a
batch, and the batch finishes when its update is applied. The staleness of an update is the number of updates that
others apply in between. The limit on staleness holds at any speed of the workers: a batch is dispatched only if no
batch in progress, the new one included, could then exceed the limit.
"""

from collections.abc import Iterable

from common.data.batches import GlobalBatch


class Dispatcher:
    """Decides which batch a worker gets next, and when.

    Args:
        batches: the global batches, in the order of the plan.
        updates_per_batch: number of parts of a global batch. Each part makes one update.
        max_in_progress: largest number of batches in progress.
        max_staleness: limit on the staleness of an update; None for no limit.
    """

    def __init__(
        self, batches: Iterable[GlobalBatch], updates_per_batch: int, max_in_progress: int, max_staleness: int | None
    ) -> None:
        self._parts = (part for batch in batches for part in batch.divide(updates_per_batch))
        self._max_in_progress, self._max_staleness = max_in_progress, max_staleness
        # The largest staleness that the update of each batch in progress can have, by the step and part of the batch.
        self._possible_staleness: dict[tuple[int, int], int] = {}

    @property
    def in_progress(self) -> int:
        """Return the number of batches that are dispatched and not finished."""
        return len(self._possible_staleness)

    def take(self) -> GlobalBatch | None:
        """Return the next batch, or None if a batch in progress must finish first or no batch is left."""
        if self.in_progress == self._max_in_progress or not self._stays_within_limit():
            return None
        batch = next(self._parts, None)
        if batch is not None:
            # The new batch may finish before all others, and all others may finish before the new batch.
            self._possible_staleness = {key: staleness + 1 for key, staleness in self._possible_staleness.items()}
            self._possible_staleness[batch.step, batch.part] = self.in_progress
        return batch

    def finish(self, batch: GlobalBatch) -> None:
        """Record that the update from this batch has been applied."""
        del self._possible_staleness[batch.step, batch.part]

    def _stays_within_limit(self) -> bool:
        """Check whether one more batch in progress keeps every update within the limit on staleness."""
        if self._max_staleness is None:
            return True
        possible = [staleness + 1 for staleness in self._possible_staleness.values()]
        return max(self.in_progress, *possible, 0) <= self._max_staleness
