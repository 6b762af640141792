"""One side of a diagnosis of records: what its script computed, with the arrays of all its processes joined.

A script follows a record if it takes the initial weights and the batches of that record.
"""

from collections.abc import Iterable, Sequence
from functools import cached_property, lru_cache

import numpy as np

from common.diagnose.recorded.example_rows import join_ranks
from common.diagnose.recorded.recorded_batches import RecordedBatches
from common.diagnose.recorded.recorded_gradients import RecordedGradients
from common.diagnose.recorded.recorded_model import RecordedModel
from common.diagnose.recorded.script_changes import ScriptChanges
from common.diagnose.recorded.time_axis import find_recorded_sizes, put_examples_first
from common.errors import UserError
from common.map.description import RecordedCall
from common.recording.record_format import LayerFacts, OptimizerFacts, StepFacts
from common.recording.record_reader import Record, TensorFile

WEIGHTS_IN_MEMORY = 2  # steps whose weights are kept: stages compare the weights before a step with those after it


class RecordedSide:
    """A record as side "a" or "b" of a diagnosis.

    Attributes:
        name: The side: "a" or "b".
        record: The record.
        batches: The inputs and outputs of the model, and the labels.
        gradients: The gradients before and after clipping and reduction.
        changes: What the script did to its gradients.
    """

    def __init__(self, name: str, record: Record) -> None:
        self.name, self.record = name, record
        self.batches, self.gradients = RecordedBatches(record, self.layers), RecordedGradients(record)
        self.changes = ScriptChanges(record, self.gradients)
        self.read_weights = lru_cache(WEIGHTS_IN_MEMORY)(self._read_weights)
        self.read_before = lru_cache(WEIGHTS_IN_MEMORY)(self._read_before)

    @property
    def title(self) -> str:
        """Name of the side in reports."""
        ranks = f" x{len(self.record.ranks)}" if len(self.record.ranks) > 1 else ""
        return f"{self.name.upper()} ({self.record.directory}, {self.record.framework}{ranks})"

    @property
    def is_torch(self) -> bool:
        """Return whether PyTorch trained."""
        return self.record.framework == "torch"

    @property
    def model(self) -> RecordedModel:
        """The model. Raise UserError if the recorder saw no forward pass."""
        facts = self.record.facts["model"]
        if facts is None:
            raise UserError(f"{self.record.directory}: the recorder saw no forward pass; let it see the model's calls")
        return RecordedModel(self.is_torch, facts)

    @property
    def layers(self) -> Sequence[LayerFacts]:
        """The layers in the order in which the forward pass entered them."""
        model = self.record.facts["model"]
        return model["layers"] if model is not None else []

    @property
    def unflattened_shapes(self) -> dict[str, tuple[int, ...]]:
        """The shapes of an example before the model flattened it for a layer, by the path of the layer."""
        shapes = {layer["path"]: layer["unflattened_shape"] for layer in self.layers}
        return {path: tuple(shape) for path, shape in shapes.items() if shape}

    @property
    def optimizer(self) -> OptimizerFacts | None:
        """The optimizer, or None if the recorder did not see it."""
        return self.record.facts["optimizer"]

    @property
    def replicas(self) -> int:
        """The number of replicas that train: processes, or devices of MirroredStrategy."""
        declared = self.record.facts["environment"]["flags"].get("replicas")
        return max(len(self.record.ranks), declared if isinstance(declared, int) else 1)

    @property
    def is_training(self) -> bool:
        """Return whether any layer was in training mode."""
        return any(layer["training"] for layer in self.layers)

    @cached_property
    def trainable(self) -> set[str]:
        """Names of the trainable variables."""
        model = self.record.facts["model"]
        return {name for name, facts in model["variables"].items() if facts["trainable"]} if model else set()

    def get_facts(self, step: int) -> StepFacts:
        """Return the numbers of a step in the first process."""
        return self.record.get_step_facts(step)[0]

    def _read_weights(self, step: int) -> dict[str, np.ndarray]:
        """Return the variables after a step, or at the start of the record for an earlier step."""
        return self.open_file(step).select("weight")

    def _read_before(self, step: int) -> dict[str, np.ndarray]:
        """Return the variables before the update of a step, with what the script changed since the update before."""
        return {**self.read_weights(step - 1), **self.open_file(step).select("changed_weight")}

    def list_changed(self, step: int) -> list[str]:
        """Return the variables that the script changed between the update before a step and that of the step.

        Those with NaN are left out: recorders have compared it with itself, and found it changed.
        """
        names, weights = self.get_facts(step).get("changed_weights", []), self.read_weights(step - 1)
        return [name for name in names if name not in weights or not np.isnan(weights[name]).any()]

    def has_unknown_weights(self, step: int, names: Iterable[str]) -> bool:
        """Check whether an older record lacks some of the variables before the update of a step."""
        unknown = {*self.list_changed(step)} - self.open_file(step).select("changed_weight").keys()
        return not unknown.isdisjoint(names)

    def open_file(self, step: int) -> TensorFile:
        """Open the file of a step. For a step before the first recorded one, open the file of the initial state."""
        rank = self.record.ranks[0]
        first = min(facts["step"] for facts in rank.facts["steps"])
        return rank.start if step < first else rank.open_step(step)

    def read_slots(self, step: int) -> dict[str, np.ndarray] | None:
        """Return the optimizer's arrays after a step as NAME/SLOT; None: not recorded."""
        rank = self.record.ranks[0]
        steps = [facts["step"] for facts in rank.facts["steps"]]
        if step < min(steps):
            return rank.start.select("slot")
        return (rank.open_step(step).select("slot") or None) if step in steps else None

    def read_followed(self, step: int) -> dict[str, np.ndarray]:
        """Return the outputs of the layers, by path, for the inputs in the followed record."""
        return self._put_examples_first(step, 0, "followed")

    def _put_examples_first(self, step: int, rank: int, kind: str) -> dict[str, np.ndarray]:
        """Return the arrays "layer" or "followed" of a process, examples-first."""
        file = self.record.ranks[rank].open_step(step)
        arrays, sizes = file.select(kind), find_recorded_sizes(self.layers, file)
        return arrays if sizes is None else {name: put_examples_first(x, sizes) for name, x in arrays.items()}

    def read_layer_calls(self, step: int) -> dict[str, RecordedCall]:
        """Return the inputs and outputs of the layers in the first micro-batches of the processes, by path."""
        files = [self._put_examples_first(step, rank, "layer") for rank in range(len(self.record.ranks))]
        calls = {}
        for layer in self.layers:
            path = layer["path"]
            received, returned = (
                join_ranks([file.get(f"{path}/{kind}") for file in files]) for kind in ("input", "output")
            )
            if received is not None or returned is not None:
                calls[path] = RecordedCall(received, returned)
        return calls
