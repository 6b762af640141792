"""A step after the optimizer's update: what the update changed, and the gradients that it used."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Mapping
from typing import Any

import numpy as np

from common.recording.clip_factors import find_factor
from common.recording.record_format import RecordFacts
from tf_impl.record import notes
from tf_impl.record.gradients import (
    Gradients,
    add_gradients,
    clip_gradients,
    has_clipping,
    recover_gradients,
    relative_difference,
)
from tf_impl.record.layer_observer import LayerObserver, describe_layers
from tf_impl.record.model_facts import Layer, describe_model, name_by_identity
from tf_impl.record.optimizer_facts import (
    Optimizer,
    count_updates,
    describe_optimizer,
    describe_schedule,
    read_loss_scale,
    unwrap_optimizer,
    view_momentums,
)
from tf_impl.record.step import Step
from tf_impl.record.tensors import Arrays

# Errors of gradients that the slots imply or that another kernel computed, in roundings of their largest element
NOISE_ROUNDINGS = 80


class FinishedStep:
    """A step whose `recorder.step()` context has ended.

    Attributes:
        has_updated: Whether the optimizer updated, or skipped its update. If not, more
            micro-batches of the step follow.
        is_skipped: Whether the optimizer skipped its update because the scaled gradients were not finite.
        implied: The names of the variables whose gradients the slots imply, also in the next step.
        of_others: The names of the variables whose gradients other optimizers receive, once `complete_facts` is called.
        has_stored_changes: Whether `read_gradients` returned gradients that the script then changed in another way than
            by a factor and a decay.
    """

    def __init__(self, step: Step, optimizer: Optimizer, iterations: int, variables: Mapping[str, Any]) -> None:
        """Look at the optimizer.

        Args:
            step: The step.
            optimizer: The optimizer after it.
            iterations: The number of updates before it.
            variables: The variables of the model by name.
        """
        self._step, self._optimizer = step, optimizer
        self._inner = unwrap_optimizer(optimizer)
        updates = count_updates(optimizer) - iterations
        scale = read_loss_scale(optimizer)
        has_scale = step.loss_scale is not None and scale is not None
        self.is_skipped = updates == 0 and has_scale and scale < step.loss_scale  # type: ignore[operator]
        self.has_updated = updates > 0 or self.is_skipped
        self._updates, self._iterations, self._variables = updates, iterations, variables
        self.implied: Collection[str] = ()
        self.of_others: list[str] = []
        self.has_stored_changes = False

    def read_gradients(self, tolerance: float, note: Callable[[str], None], clipped_rows: Gradients) -> Arrays:
        """Return the gradients of the update by their names in a record, and set clip_factors and max_norm of the step.

        Args:
            tolerance: Relative difference up to which the rehearsed gradients explain the update.
            note: Takes a sentence about what was not seen.
            clipped_rows: The gradients that Keras clips before it adds the repeated rows of sparse ones.
        """
        step = self._step
        after = view_momentums(self._optimizer, self._variables)
        used = {} if self._updates != 1 else recover_gradients(self._inner, step.momentums, after, step.rate)
        accumulated = getattr(self._inner, "gradient_accumulation_steps", None) or 1
        from_tape = step.list_tape_gradients(accumulated)
        of_replicas = from_tape if accumulated > 1 else [*filter(None, step.received.values())] or from_tape
        if step.implied:
            of_replicas = [{name: array for name, array in used.items() if name in step.implied}]
        received = add_gradients(of_replicas)
        # Keras clips the gradients of each replica before it sums them
        clipped = add_gradients([clip_gradients(self._optimizer, gradients) for gradients in of_replicas])
        clipped.update({name: array for name, array in clipped_rows.items() if name in clipped})
        if step.max_norm is not None and len(from_tape) < len(step.micro_batches) and not step.unclipped:
            step.max_norm, step.clipped_parts = None, step.max_norm
            note(notes.CLIPPED_PARTS)
        if self._updates > 1:
            note(notes.SEVERAL_UPDATES.format(step.number, self._updates))
        is_recovered, is_unchanged = bool(used), step.has_unchanged_gradients and not has_clipping(self._optimizer)
        if not is_recovered and not step.implied:
            note(notes.COMPUTED_GRADIENTS.format(type(self._inner).__name__))
            used = clipped
        used = {name: array for name, array in used.items() if name in received or not received}
        is_clipped = step.max_norm is not None or relative_difference(clipped, received) > 0
        difference = relative_difference(clipped, used)
        if difference > tolerance and step.is_exact:
            note(notes.DIFFERENT_GRADIENTS.format(step.number, difference))
        arrays: Arrays = {f"gradient/{name}": array for name, array in used.items()}
        if self._has_known_changes(accumulated) and self._add_optimizer_clipping(received, used):
            assert step.changes is not None
            step.clip_factors, step.decays = step.changes.factors, step.changes.decays
            self.has_stored_changes = bool(step.changes.others)
            arrays.update({f"gradient_unclipped/{name}": array for name, array in step.changes.others.items()})
        elif (is_clipped or (difference > tolerance and not is_unchanged)) and step.is_exact:
            # Else, dropout masks may differ. The optimizer received unchanged gradients as the tape returned them: if
            # they differ from the rehearsed ones, the compiled step rounds a steep function in another way
            raw = add_gradients([*step.unclipped.values()] or from_tape) if step.max_norm is not None else received
            arrays.update(self._name_unclipped(raw, used))
        elif is_recovered and is_unchanged and difference <= tolerance:
            self.implied = frozenset(used)
        self._set_max_norm()
        return arrays

    def _has_known_changes(self, accumulated: int) -> bool:
        """Check whether the script changed the gradients of the tapes in a way that the record can hold.

        If it changed them before tf.clip_by_global_norm, or took several tapes, only factors and decays are certain.

        Args:
            accumulated: The number of contexts whose gradients the optimizer adds.
        """
        step, changes = self._step, self._step.changes
        if changes is None or accumulated > 1 or not step.is_exact:
            return False
        count, is_clipped = len(step.micro_batches), has_clipping(self._optimizer)
        if changes.others:
            return count == 1 and step.max_norm is None and not is_clipped
        if count > 1 and not changes.divide(count, step.received[0]):
            return False
        return bool(changes.decays) or (bool(changes.factors) and not step.unclipped and not is_clipped)

    def _add_optimizer_clipping(self, received: Gradients, used: Gradients) -> bool:
        """Multiply what the script changes by the factors of the optimizer's clipping. Return whether all are known."""
        changes = self._step.changes
        assert changes is not None
        clipped = [name for name in used if used[name].any()] if has_clipping(self._optimizer) else []
        factors = {name: find_factor(received[name], used[name], NOISE_ROUNDINGS) for name in clipped}
        for name, factor in factors.items():
            changes.factors[name] = changes.factors.get(name, 1.0) * (factor or 1.0)
            changes.decays.update({name: changes.decays[name] * (factor or 1.0)} if name in changes.decays else {})
        return None not in factors.values()

    def _name_unclipped(self, gradients: Gradients, used: Gradients) -> Arrays:
        """Return the gradients before clipping, except those for which `used = factor * gradient`: note these factors.

        Args:
            gradients: The gradients before clipping.
            used: The gradients that the update used.
        """
        arrays: Arrays = {}
        for name, array in gradients.items():
            factor = find_factor(array, used[name], NOISE_ROUNDINGS) if name in used else None
            if factor is None:
                arrays[f"gradient_unclipped/{name}"] = array
            else:
                self._step.clip_factors[name] = factor
        return arrays

    def complete_facts(self, facts: RecordFacts, model: Layer, layers: LayerObserver | None) -> None:
        """Add the model, the optimizer and the scheduler to the facts of a record, if they are missing there.

        Args:
            facts: The facts.
            model: The model.
            layers: Its layers, as the first forward pass showed them.
        """
        if facts["model"] is None:
            described = describe_model(model, describe_layers(layers, name_by_identity(self._variables)))
            facts["model"] = described
            if layers is not None and layers.draws:
                states = np.concatenate([np.ravel(state) for states in layers.draws.values() for state in states])
                described["random_layers"] = [*layers.draws]
                described["random_state"] = hashlib.sha256(states.tobytes()).hexdigest()
            taped = dict.fromkeys(name for named in self._step.list_tape_gradients() for name in named)
            updated = dict.fromkeys(name for named in self._step.received.values() for name in named) or taped
            rate = {"learning_rate": self._step.rate, "iterations": self._iterations}
            optimizer = describe_optimizer(self._optimizer, self._variables, updated, rate)
            optimizer["missing"] = [name for name in optimizer["missing"] if name not in taped]
            facts["optimizer"], self.of_others = optimizer, [name for name in taped if name not in updated]
            facts["scheduler"] = describe_schedule(self._optimizer)

    def _set_max_norm(self) -> None:
        limit = getattr(self._inner, "global_clipnorm", None)
        if limit is not None:
            self._step.max_norm = float(limit)
