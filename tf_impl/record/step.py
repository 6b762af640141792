"""Observations of the optimizer step that the script computes now."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from common.recording.record_format import LossFacts, StepFacts
from tf_impl.record.gradients import Gradients
from tf_impl.record.tensors import Arrays


class CalledFunction(NamedTuple):
    """A call of a function of keras.losses, before a gradient shows whether it computes the loss.

    Attributes:
        function: The function.
        facts: Its description.
        labels: Its arguments other than the outputs of the model.
        result: What it returned.
    """

    function: object
    facts: LossFacts
    labels: dict[str, object]
    result: object


@dataclass
class MicroBatch:
    """One forward pass, its loss and its gradients, on one replica.

    Attributes:
        inputs: What the model received.
        labels: What the loss received besides the model's outputs.
        outputs: What the model returned.
        layers: What the layers received and returned, by the names of a record.
        loss: The loss, without the factor of a loss scale; None until it is differentiated.
        gradients: The gradients that GradientTape returned, without the factor of a loss scale.
        model_calls: How often the model was called.
        parts: The names of the layers that the script called instead of the model.
        has_loss_object: Whether the script called a loss object.
        functions: The functions of keras.losses that the script called.
    """

    inputs: Arrays = field(default_factory=dict)
    labels: Arrays = field(default_factory=dict)
    outputs: Arrays = field(default_factory=dict)
    layers: Arrays = field(default_factory=dict)
    loss: float | None = None
    gradients: dict[str, np.ndarray] = field(default_factory=dict)
    model_calls: int = 0
    parts: list[str] = field(default_factory=list)
    has_loss_object: bool = False
    functions: list[CalledFunction] = field(default_factory=list)

    def name_arrays(self, number: int) -> Arrays:
        """Return the inputs, labels and outputs by their names in a record. number: index of the micro-batch."""
        kinds = {"input": self.inputs, "label": self.labels, "output": self.outputs}
        return {f"batch/{number}/{kind}/{name}": arrays[name] for kind, arrays in kinds.items() for name in arrays}


@dataclass
class Step:
    """An optimizer step.

    Attributes:
        number: The number of the step, from 1.
        rate: The learning rate that the update uses.
        loss_scale: The factor by which the optimizer multiplied the loss.
        momentums: The momentums before the update.
        replicas: The micro-batches of each replica of this process.
        received: The gradients that each replica passed to the optimizer, without the loss scale.
        updates: How often the step passed gradients to the optimizer, on the first replica.
        max_norm: The norm to which the script clipped the gradients.
        clip_factors: The factors by which gradients were multiplied before the update, by the name of the variable.
        is_exact: Whether the rehearsal returned what the real step returned, as far as they were compared.
    """

    number: int
    rate: float
    loss_scale: float | None
    momentums: Gradients
    replicas: dict[int, list[MicroBatch]] = field(default_factory=dict)
    received: dict[int, dict[str, np.ndarray]] = field(default_factory=dict)
    updates: int = 0
    max_norm: float | None = None
    clip_factors: dict[str, float] = field(default_factory=dict)
    is_exact: bool = True

    @property
    def micro_batches(self) -> list[MicroBatch]:
        """All micro-batches, those of the first replica first."""
        return [batch for _, batches in sorted(self.replicas.items()) for batch in batches]

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
        }
        if self.clip_factors:
            facts["clip_factors"] = self.clip_factors
        return facts

    def name_batch_arrays(self) -> Arrays:
        """Return the arrays of the micro-batches, and of the layers in the first one, as they are named in a record."""
        arrays: Arrays = {}
        for number, batch in enumerate(self.micro_batches):
            arrays.update(batch.name_arrays(number))
        return {**arrays, **(self.micro_batches[0].layers if self.micro_batches else {})}

    def list_tape_gradients(self, divisor: int = 1) -> list[dict[str, np.ndarray]]:
        """Return, for each replica, the sum of the gradients of its micro-batches, divided by `divisor`."""
        sums = [add_gradients([batch.gradients for batch in batches]) for _, batches in sorted(self.replicas.items())]
        return (
            [{name: array / divisor for name, array in gradients.items()} for gradients in sums]
            if divisor > 1
            else sums
        )


def add_gradients(gradients: Sequence[Mapping[str, np.ndarray]]) -> dict[str, np.ndarray]:
    """Return the sum of gradients by name."""
    total: dict[str, np.ndarray] = {}
    for arrays in gradients:
        for name, array in arrays.items():
            total[name] = total[name] + array if name in total else array
    return total
