"""Which batches an asynchronous run's workers get, and when: parts of global batches in the plan's order, each once.

The bound on staleness holds by construction, whatever the workers' speeds: an update may be dispatched only if none of
those in progress, itself included, could then be applied more than `max_staleness` updates after its worker read the
parameters.
"""

from collections.abc import Iterable

from common.data.batches import GlobalBatch


class Dispatcher:
    """Dispatches batches, at most `at_once` at a time."""

    def __init__(
        self, batches: Iterable[GlobalBatch], updates_per_batch: int, at_once: int, max_staleness: int | None
    ) -> None:
        self._parts = (part for batch in batches for part in batch.divide(updates_per_batch))
        self._at_once, self._max_staleness = at_once, max_staleness
        self._exposed: dict[tuple[int, int], int] = {}  # updates that may come between a read and its update

    @property
    def in_progress(self) -> int:
        """Batches dispatched and not finished."""
        return len(self._exposed)

    def take(self) -> GlobalBatch | None:
        """The next batch; None where one in progress must finish first, or where there are no more."""
        if self.in_progress == self._at_once or not self._fresh_enough():
            return None
        batch = next(self._parts, None)
        if batch is not None:
            self._exposed = {key: exposure + 1 for key, exposure in self._exposed.items()}
            self._exposed[batch.step, batch.part] = self.in_progress
        return batch

    def finish(self, batch: GlobalBatch) -> None:
        """The update from this batch has been applied."""
        del self._exposed[batch.step, batch.part]

    def _fresh_enough(self) -> bool:
        bound = self._max_staleness
        return (
            bound is None or max(self.in_progress, *(exposure + 1 for exposure in self._exposed.values()), 0) <= bound
        )
