"""Observations of the optimizer step that the script computes now."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import tensorflow as tf

from common.recording.gradient_changes import GradientChanges
from common.recording.other_arrays import list_keys, list_others
from common.recording.record_format import LossFacts, LossTerm, StepFacts, name_call
from common.recording.record_writer import MIN_COPIED_BYTES
from tf_impl.record.gradients import Gradients, add_gradients
from tf_impl.record.layer_observer import LayerObserver
from tf_impl.record.tensors import Arrays, Copies, is_storable, to_array, view_array


@dataclass(eq=False)
class LossCall:
    """A call of an object or a function of keras.losses.

    Attributes:
        function: The object or the function.
        facts: Its description.
        labels: Its arguments other than the outputs of the model, by name.
        results: The tensors that it returned.
        value: The mean of what it returned.
        share: The sum of what it returned times the gradient of the loss by it; None if that was not seen.
    """

    function: object
    facts: LossFacts
    labels: Arrays
    results: list[tf.Tensor]
    value: float = 0.0
    share: float | None = None

    def take_gradients(self, gradients: Sequence[tf.Tensor | None], loss_scale: float | None) -> None:
        """Compute the value, and the share from the gradients of the loss by the results."""
        arrays = [to_array(result).astype(np.float64) for result in self.results]
        self.value = float(np.mean([array.mean() for array in arrays])) if arrays else 0.0
        pairs = zip(arrays, gradients)  # noqa: B905
        shares = [(array * to_array(gradient)).sum() for array, gradient in pairs if gradient is not None]
        self.share = float(sum(shares)) / (loss_scale or 1.0) if shares else None

    def describe(self) -> LossTerm:
        """Return the call as a term of the loss."""
        return {**self.facts, "value": self.value, "share": self.share}


@dataclass(eq=False)
class ModelCall:
    """A forward pass of the model, or of the layers that the script called instead of the model.

    Attributes:
        inputs: What the model received.
        outputs: What the model returned.
        results: The tensors that it returned.
        layers: The observer of its layers; None if they are not observed.
        parts: The names of the layers that the script called instead of the model.
        is_trained: Whether these layers have variables that are trained: a teacher within the model has none.
    """

    inputs: Arrays
    outputs: Arrays = field(default_factory=dict)
    results: list[tf.Tensor] = field(default_factory=list)
    layers: LayerObserver | None = None
    parts: list[str] = field(default_factory=list)
    is_trained: bool = False


@dataclass(eq=False)
class MicroBatch:
    """The forward passes, the loss and the gradients of a tape, on one replica.

    Attributes:
        calls: The forward passes. Those on which the loss does not depend are left out once it is differentiated.
        loss_calls: The calls of losses. Calls on which the loss does not depend are left out once it is differentiated.
        labels: What the losses received besides the model's outputs.
        others: The arrays of the script's batch that neither the model nor the losses received.
        layers: What the layers received and returned in the first forward pass, by the names of a record.
        loss: The loss, without the factor of a loss scale; None until it is differentiated.
        gradients: The gradients that GradientTape returned, without the factor of a loss scale.
    """

    calls: list[ModelCall] = field(default_factory=list)
    loss_calls: list[LossCall] = field(default_factory=list)
    labels: Arrays = field(default_factory=dict)
    others: Arrays = field(default_factory=dict)
    keys: dict[str, str] = field(default_factory=dict)
    layers: Arrays = field(default_factory=dict)
    loss: float | None = None
    gradients: dict[str, np.ndarray] = field(default_factory=dict)

    def select_calls(self, unused: Collection[ModelCall | LossCall]) -> None:
        """Keep the calls that are used, of the model without a teacher and of losses, or all, and name the labels."""
        self.calls = [call for call in self.calls if call not in unused and call.is_trained] or self.calls
        self.loss_calls = [call for call in self.loss_calls if call not in unused] or self.loss_calls
        for index, loss_call in enumerate(self.loss_calls):
            suffix = f".{index}" if index else ""
            self.labels.update({f"{name}{suffix}": array for name, array in loss_call.labels.items()})

    def forget_tensors(self) -> None:
        """Forget the tensors and the observers of the calls, which would stay in memory."""
        for call in self.calls:
            call.layers = None
            call.results.clear()
        for loss_call in self.loss_calls:
            loss_call.results.clear()

    def name_arrays(self, number: int) -> Arrays:
        """Return the batch and the outputs by their names in a record. number: index of the micro-batch."""
        kinds = {f"batch/{number}/label": self.labels, f"batch/{number}/other": self.others}
        for index, call in enumerate(self.calls):
            prefix = name_call(number, index)
            kinds.update({f"{prefix}/input": call.inputs, f"{prefix}/output": call.outputs})
        return {f"{kind}/{name}": array for kind, arrays in kinds.items() for name, array in arrays.items()}


@dataclass
class Step:
    """An optimizer step.

    Attributes:
        number: The number of the step, from 1.
        rate: The learning rate that the update uses.
        loss_scale: The factor by which the optimizer multiplied the loss.
        momentums: The momentums before the update, until its gradients overwrite them.
        changed_weights: The variables before this step that the script changed since the previous one, by name.
        replicas: The micro-batches of each replica of this process.
        received: The gradients that each replica passed to the optimizer, without the loss scale.
        unclipped: The gradients in `received` before the script clipped them with clip_by_global_norm. Empty if it does
            not clip them.
        updates: How often the step passed gradients to the optimizer, on the first replica.
        changes: What the script did to the gradients before it passed them to the optimizer; None if that is not known.
        max_norm: The norm to which the script clipped the gradients.
        clipped_parts: The norm to which it clipped the gradients of each micro-batch instead of their sum.
        clip_factors: The factors by which gradients were multiplied before the update, by the name of the variable.
        decays: The multiples of the weights that the script added to gradients, by the name of the variable.
        is_exact: Whether the rehearsal returned what the real step returned, as far as they were compared.
        implied: The names of the variables whose gradients the rehearsal did not compute.
    """

    number: int
    rate: float
    loss_scale: float | None
    momentums: Gradients
    changed_weights: dict[str, np.ndarray] = field(default_factory=dict)
    replicas: dict[int, list[MicroBatch]] = field(default_factory=dict)
    received: dict[int, dict[str, np.ndarray]] = field(default_factory=dict)
    unclipped: dict[int, dict[str, np.ndarray]] = field(default_factory=dict)
    updates: int = 0
    changes: GradientChanges | None = None
    max_norm: float | None = None
    clipped_parts: float | None = None
    clip_factors: dict[str, float] = field(default_factory=dict)
    decays: dict[str, float] = field(default_factory=dict)
    is_exact: bool = True
    implied: Collection[str] = ()

    def find_open_batch(self, replica: int) -> MicroBatch | None:
        """Return the micro-batch of a replica whose gradients are not computed yet; None if there is none."""
        batches = self.replicas.get(replica, [])
        return batches[-1] if batches and not batches[-1].gradients else None

    def open_batch(self, replica: int) -> MicroBatch:
        """Return the micro-batch of a replica whose gradients are not computed yet, a new one if there is none."""
        batch = self.find_open_batch(replica) or MicroBatch()
        batches = self.replicas.setdefault(replica, [])
        if batch not in batches[-1:]:
            batches.append(batch)
        return batch

    def take_gradients(self, replica: int, loss: float, gradients: dict[str, np.ndarray]) -> MicroBatch:
        """Return the micro-batch of a replica, which receives its loss and gradients.

        A script may differentiate one loss by some variables after others: these are gradients of one micro-batch.
        """
        batches = self.replicas.get(replica, [])
        if batches and batches[-1].loss == loss and not batches[-1].gradients.keys() & gradients.keys():
            batches[-1].gradients.update(gradients)
            return batches[-1]
        batch = self.open_batch(replica)
        batch.loss, batch.gradients = loss, gradients
        return batch

    def take_update(self, replica: int, received: dict[str, np.ndarray], unclipped: dict[str, np.ndarray]) -> None:
        """Take the gradients that a replica passes to the optimizer, and those before it clipped them."""
        self.received[replica] = received
        if unclipped:
            self.unclipped[replica] = unclipped
        self.updates += replica == 0

    def add_others(self, batch: Mapping[str, tf.Tensor]) -> list[str]:
        """Take the arrays of the batch that neither the model nor the losses received, if there is one micro-batch.

        They are its labels if no loss showed any, and if they have as many rows as an input.

        Args:
            batch: The tensors of the batch by name.

        Returns:
            The names of the labels.
        """
        if len(self.micro_batches) != 1:
            return []
        micro_batch = self.micro_batches[0]
        tensors = {name: tensor for name, tensor in batch.items() if is_storable(tensor)}
        leaves = {name: view_array(tensor) for name, tensor in tensors.items()}
        inputs = [array for call in micro_batch.calls for array in call.inputs.values()]
        names = list_others(leaves, [*inputs, *micro_batch.labels.values()])
        others = Copies(MIN_COPIED_BYTES).copy({name: tensors[name] for name in names})
        rows = {len(array) for array in inputs if isinstance(array, np.ndarray) and array.ndim}
        labels = [] if micro_batch.labels else [name for name in others if len(leaves[name]) in rows]
        micro_batch.labels = micro_batch.labels or {name: others[name] for name in labels}
        micro_batch.others = {name: array for name, array in others.items() if name not in labels}
        received = {f"input/{name}": array for call in micro_batch.calls[:1] for name, array in call.inputs.items()}
        received.update({f"label/{name}": array for name, array in micro_batch.labels.items()})
        micro_batch.keys = list_keys(leaves, received)
        return labels

    @property
    def micro_batches(self) -> list[MicroBatch]:
        """All micro-batches in the order of the replicas.

        Without a gradient that the optimizer receives, a pass belongs to another model or optimizer, as in a GAN.
        """
        received = {name for gradients in self.received.values() for name in gradients}
        batches = [batch for _, batches in sorted(self.replicas.items()) for batch in batches]
        batches = [batch for batch in batches if batch.gradients] or batches
        return [batch for batch in batches if not received.isdisjoint(batch.gradients)] or batches

    def describe(self, skipped: bool) -> StepFacts:
        """Return the numbers of the step. skipped: whether the optimizer left the update out."""
        facts: StepFacts = {
            "step": self.number,
            "micro_batches": len(self.micro_batches),
            "losses": [batch.loss for batch in self.micro_batches],
            "rates": [self.rate],
            "loss_scale": self.loss_scale,
            "skipped": skipped,
            "max_norm": self.max_norm,
            "calls": [len(batch.calls) for batch in self.micro_batches],
            "terms": [[call.describe() for call in batch.loss_calls] for batch in self.micro_batches],
        }
        if self.clip_factors:
            facts["clip_factors"] = self.clip_factors
        if self.decays:
            facts["decays"] = self.decays
        if self.clipped_parts is not None:
            facts["clipped_parts"] = self.clipped_parts
        if self.micro_batches and self.micro_batches[0].keys:
            facts["keys"] = self.micro_batches[0].keys
        if self.changed_weights:
            facts["changed_weights"] = [*self.changed_weights]
        return facts

    def name_batch_arrays(self) -> Arrays:
        """Return the arrays of the micro-batches, the layers and changed weights, as they are named in a record."""
        arrays: Arrays = {}
        for number, batch in enumerate(self.micro_batches):
            arrays.update(batch.name_arrays(number))
        arrays.update({f"changed_weight/{name}": array for name, array in self.changed_weights.items()})
        return {**arrays, **(self.micro_batches[0].layers if self.micro_batches else {})}

    @property
    def has_unchanged_gradients(self) -> bool:
        """Return whether the optimizer received, on one replica, the very gradients that one tape returned."""
        batches, received = self.micro_batches, [*self.received.values()]
        if not self.is_exact or self.loss_scale is not None or (len(batches), len(received)) != (1, 1):
            return False
        if batches[0].gradients.keys() != received[0].keys():
            return False
        return all(array is received[0][name] for name, array in batches[0].gradients.items())

    def list_tape_gradients(self, divisor: int = 1) -> list[dict[str, np.ndarray]]:
        """Return, for each replica, the sum of the gradients of its micro-batches, divided by `divisor`."""
        sums = [add_gradients([batch.gradients for batch in batches]) for _, batches in sorted(self.replicas.items())]
        return (
            [{name: array / divisor for name, array in gradients.items()} for gradients in sums]
            if divisor > 1
            else sums
        )


def take_shares(
    calls: Sequence[ModelCall | LossCall], gradients: Sequence[Sequence[tf.Tensor | None]], step: Step | None
) -> None:
    """Give the calls of losses their shares of the loss of a step; None: the record has ended.

    Args:
        calls: Calls of the model and of losses.
        gradients: For each call, the gradients of the loss by its results.
        step: The step.
    """
    for call, of_results in zip(calls, gradients):  # noqa: B905
        if isinstance(call, LossCall) and step is not None:
            call.take_gradients(of_results, step.loss_scale)
