"""The gradients of a record: as the optimizer received them, before clipping, and before the reduction."""

from functools import cached_property

import numpy as np

from common.errors import UserError, one_line
from common.recording.clip_factors import restore_gradients
from common.recording.record_reader import Record


class RecordedGradients:
    """The gradients of all processes of a record, by name of the variable."""

    def __init__(self, record: Record) -> None:
        self._record = record

    def read(self, step: int, kind: str = "gradient", rank: int = 0) -> dict[str, np.ndarray]:
        """Return the gradients of one process. `kind`: "gradient", "gradient_unclipped" or "gradient_local".

        Raise UserError if a clipped one is missing.
        """
        file, factors = self._record.ranks[rank].open_step(step), {}
        if kind == "gradient_unclipped":
            factors = self._record.get_step_facts(step)[rank].get("clip_factors", {})
            if missing := [name for name in factors if f"gradient/{name}" not in file.names]:
                raise UserError(
                    f"{file.path}: has no gradient/{one_line(missing[0])[:200]}, which has a factor in record.json; "
                    "record the script again"
                )
        restored = restore_gradients(file.select("gradient"), factors) if factors else {}
        return restored | file.select(kind)

    def read_reduced(self, step: int) -> dict[str, np.ndarray]:
        """Return the gradients of a step before clipping; the received ones if nothing clips or `are_changed`."""
        received = self.read(step)
        return received if self.are_changed_by_script else received | self.read(step, "gradient_unclipped")

    def are_abridged(self, step: int) -> bool:
        """Check whether any gradient of a step is abridged, before or after clipping."""
        abridged = [name for rank in self._record.ranks for name in rank.open_step(step).abridged]
        return any(name.startswith(("gradient/", "gradient_unclipped/")) for name in abridged)

    @cached_property
    def are_changed_by_script(self) -> bool:
        """Guess from the norms whether the script scales or, with several processes, reduces gradients itself."""
        if any(self._record.get_step_facts(step)[0]["max_norm"] is not None for step in self._record.steps):
            return False
        factors = [
            float(np.linalg.norm(received[name])) / norm
            for step in self._record.steps
            if (received := self.read(step))
            for name, array in self.read(step, "gradient_unclipped").items()
            if name in received and (norm := float(np.linalg.norm(array)))
        ]
        is_scaled = len(factors) > 1 and bool(np.allclose(factors, factors[0], rtol=1e-3))
        return is_scaled or (bool(factors) and len(self._record.ranks) > 1)
