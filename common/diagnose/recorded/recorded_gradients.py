"""The gradients of a record: as the optimizer received them, before the script changed them, and before the reduction.

A script changes gradients if it clips, scales or masks them, or if it adds weight decay: a multiple of the weights.
"""

from functools import cached_property

import numpy as np

from common.errors import UserError, one_line
from common.recording.clip_factors import restore_gradients
from common.recording.record_reader import Record

Gradients = dict[str, np.ndarray]
SAME_FACTOR = 1e-3  # largest relative difference of factors that count as equal


class RecordedGradients:
    """The gradients of all processes of a record, by name of the variable."""

    def __init__(self, record: Record) -> None:
        self._record = record

    def read(self, step: int, kind: str = "gradient", rank: int = 0) -> Gradients:
        """Return the gradients of one process. `kind`: "gradient", "gradient_unclipped" or "gradient_local".

        Raise UserError if a clipped one is missing.
        """
        file, facts = self._record.ranks[rank].open_step(step), self._record.get_step_facts(step)[rank]
        if kind != "gradient_unclipped":
            return file.select(kind)
        factors, decays = facts.get("clip_factors", {}), facts.get("decays", {})
        if missing := [name for name in [*factors, *decays] if f"gradient/{name}" not in file.names]:
            raise UserError(
                f"{file.path}: has no gradient/{one_line(missing[0])[:200]}, which has a factor in record.json; "
                "record the script again"
            )
        restored = self._restore(step, factors, decays, rank) if factors or decays else {}
        return restored | file.select(kind)

    def read_without_decay(self, step: int) -> Gradients:
        """Return the received gradients, without multiples of the weights that the script added to them."""
        decays = self._record.get_step_facts(step)[0].get("decays", {})
        return self.read(step) | (self._restore(step, {}, decays) if decays else {})

    def read_reduced(self, step: int) -> Gradients:
        """Return the gradients of a step before the script changed them, other than by one factor in all steps."""
        received = self.read_without_decay(step)
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
        pairs = [(self.read(step, "gradient_unclipped"), self.read_without_decay(step)) for step in self._record.steps]
        factors = [
            float(np.linalg.norm(array)) / norm
            for before, after in pairs
            for name, array in after.items()
            if before and (norm := float(np.linalg.norm(before.get(name, array))))
        ]
        is_scaled = len(factors) > 1 and bool(np.allclose(factors, factors[0], rtol=SAME_FACTOR))
        is_scaled = is_scaled and abs(factors[0] - 1) > SAME_FACTOR
        return is_scaled or (bool(factors) and len(self._record.ranks) > 1)

    def _restore(self, step: int, factors: dict[str, float], decays: dict[str, float], rank: int = 0) -> Gradients:
        weights = self._record.ranks[rank].read_weights_before(step) if decays else {}
        return restore_gradients(self.read(step, rank=rank), factors, decays, weights)
