"""One side of a diagnosis of records: what its script computed, with the arrays of all its processes joined.

The examples of a step are those of all micro-batches of all processes, in the order of the processes. A micro-batch is
named by its process and its number, from 0, within the step of the process. An array is abridged if the record holds
only a sample of its elements, because the whole array did not fit. A script follows a record if it takes the initial
weights and the batches of that record.
"""

from collections.abc import Mapping, Sequence
from functools import cache, cached_property, lru_cache

import numpy as np

from common.diagnose.recorded.example_rows import join_examples, join_ranks, split_examples
from common.diagnose.recorded.model_calls import count_calls, join_calls, join_labels, split_rows
from common.diagnose.recorded.time_axis import (
    Sizes,
    find_sizes,
    list_state_sizes,
    put_examples_first,
    put_layers_second,
    takes_time_first,
)
from common.diagnose.recorded.variable_pairs import RecordedModel
from common.errors import UserError, one_line
from common.map.description import RecordedCall
from common.recording.clip_factors import restore_gradients
from common.recording.record_format import LayerFacts, OptimizerFacts, StepFacts, name_call
from common.recording.record_reader import Record, TensorFile

Arrays = Mapping[str, np.ndarray]
WEIGHTS_IN_MEMORY = 2  # steps whose weights are kept: stages compare the weights before a step with those after it
PARTS_IN_MEMORY = 64  # a part: the inputs, labels or outputs of one micro-batch
LABELS = "labels"  # the input that holds the labels if the model computes its own loss
CLASS_WEIGHTS = "weight"  # the argument of a loss function with the weights of the classes
SAMPLE_WEIGHTS = "sample_weight"  # the argument with the weights of the examples, in Keras
WEIGHTS_IN_LOSS = (CLASS_WEIGHTS, SAMPLE_WEIGHTS)


class RecordedSide:
    """A record as side "a" or "b" of a diagnosis.

    Attributes:
        name: The side: "a" or "b".
        record: The record.
    """

    def __init__(self, name: str, record: Record) -> None:
        self.name, self.record = name, record
        self.read_batch = cache(self._read_batch)  # shared by several stages
        self.read_part = lru_cache(PARTS_IN_MEMORY)(self._read_part)
        self.read_call = lru_cache(PARTS_IN_MEMORY)(self._read_call)
        self.count_rows = cache(self._count_rows)
        self.read_weights = lru_cache(WEIGHTS_IN_MEMORY)(self._read_weights)

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
        """The optimizer, or None if it was not seen."""
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

    def open_file(self, step: int) -> TensorFile:
        """Open the file of a step, or that of the start of the record for an earlier step."""
        rank = self.record.ranks[0]
        first = min(facts["step"] for facts in rank.facts["steps"])
        return rank.start if step < first else rank.open_step(step)

    def read_slots(self, step: int) -> dict[str, np.ndarray] | None:
        """Return the optimizer's arrays after a step as NAME/SLOT; None if they are not recorded."""
        rank = self.record.ranks[0]
        steps = [facts["step"] for facts in rank.facts["steps"]]
        if step < min(steps):
            return rank.start.select("slot")
        return (rank.open_step(step).select("slot") or None) if step in steps else None

    def read_gradients(self, step: int, kind: str = "gradient", rank: int = 0) -> dict[str, np.ndarray]:
        """Return the gradients of one process. `kind`: "gradient", "gradient_unclipped" or "gradient_local".

        Raise UserError if a clipped one is missing.
        """
        file, factors = self.record.ranks[rank].open_step(step), {}
        if kind == "gradient_unclipped":
            factors = self.record.get_step_facts(step)[rank].get("clip_factors", {})
            if missing := [name for name in factors if f"gradient/{name}" not in file.names]:
                raise UserError(
                    f"{file.path}: has no gradient/{one_line(missing[0])[:200]}, which has a factor in record.json; "
                    "record the script again"
                )
        restored = restore_gradients(file.select("gradient"), factors) if factors else {}
        return restored | file.select(kind)

    def has_abridged_gradients(self, step: int) -> bool:
        """Check whether any gradient of a step is abridged, before or after clipping."""
        abridged = [name for rank in self.record.ranks for name in rank.open_step(step).abridged]
        return any(name.startswith(("gradient/", "gradient_unclipped/")) for name in abridged)

    def read_reduced_gradients(self, step: int) -> dict[str, np.ndarray]:
        """Return the gradients of a step before clipping; the received ones if nothing clips or `changes_gradients`."""
        received = self.read_gradients(step)
        return received if self.changes_gradients else received | self.read_gradients(step, "gradient_unclipped")

    @cached_property
    def changes_gradients(self) -> bool:
        """Guess from the norms whether the script scales or, with several processes, reduces gradients itself."""
        if any(self.get_facts(step)["max_norm"] is not None for step in self.record.steps):
            return False
        factors = [
            float(np.linalg.norm(received[name])) / norm
            for step in self.record.steps
            if (received := self.read_gradients(step))
            for name, array in self.read_gradients(step, "gradient_unclipped").items()
            if name in received and (norm := float(np.linalg.norm(array)))
        ]
        is_scaled = len(factors) > 1 and bool(np.allclose(factors, factors[0], rtol=1e-3))
        return is_scaled or (bool(factors) and len(self.record.ranks) > 1)

    def list_micro_batches(self, step: int) -> list[tuple[int, int]]:
        """Return the process and the number of each micro-batch."""
        return [
            (rank, number)
            for rank, facts in enumerate(self.record.get_step_facts(step))
            for number in range(facts["micro_batches"])
        ]

    def _read_part(self, step: int, rank: int, number: int, kind: str) -> dict[str, np.ndarray]:
        """Return the arrays "input", "label" or "output" of one micro-batch, with the examples of all calls first."""
        if (calls := count_calls(self.record.ranks[rank].open_step(step), number)) == 1:
            return self.read_call(step, rank, number, kind)
        if kind != "label":
            return join_calls([self.read_call(step, rank, number, kind, call) for call in range(calls)])
        counts = self.count_rows(step, rank, number)
        return join_labels(self.read_call(step, rank, number, kind), counts, (CLASS_WEIGHTS,))

    def _read_call(self, step: int, rank: int, number: int, kind: str, call: int = 0) -> dict[str, np.ndarray]:
        """Return the arrays of a kind, "input", "output" or "label", of one call, with the examples first."""
        file = self.record.ranks[rank].open_step(step)
        arrays = file.select(f"{name_call(number, call)}/{kind}")
        inputs = file.select(f"{name_call(number, call)}/input")
        examples = next((len(array) for array in inputs.values() if array.ndim), None)
        timed = inputs.get(self._time_first_input) if self._time_first_input is not None else None
        if timed is not None:
            time, examples = timed.shape[:2]
            arrays = {name: put_examples_first(array, (time, examples)) for name, array in arrays.items()}
        if examples is None:
            return arrays
        return {name: put_layers_second(array, examples, self._state_sizes) for name, array in arrays.items()}

    @cached_property
    def _time_first_input(self) -> str | None:
        """Return the name of an input of the model with the time in the first axis, or None."""
        if not self.record.steps:
            return None
        step = self.record.steps[0]
        inputs, sizes = self.record.ranks[0].open_step(step).select("batch/0/input"), self._find_time_sizes(step, 0)
        return next((name for name, array in inputs.items() if array.shape[:2] == sizes), None)

    @cached_property
    def _state_sizes(self) -> set[Sizes]:
        return list_state_sizes(self.layers)

    def _find_time_sizes(self, step: int, rank: int) -> Sizes | None:
        """Return (time, examples) of the first micro-batch of a process; None if the examples are first."""
        if not any(map(takes_time_first, self.layers)):
            return None  # without reading what the layers received
        file = self.record.ranks[rank].open_step(step)
        return find_sizes(self.layers, file.select("layer"), file.select("batch/0/input").values())

    def _read_batch(self, step: int, kind: str) -> dict[str, np.ndarray]:
        """Return the arrays of all micro-batches by name, with an example in each row."""
        parts = [self.read_part(step, *micro_batch, kind) for micro_batch in self.list_micro_batches(step)]
        names = [name for name in parts[0] if all(name in part for part in parts)] if parts else []
        return {name: join_examples([part[name] for part in parts]) for name in names if parts[0][name].ndim}

    def count_examples(self, step: int) -> list[int]:
        """Return the number of examples of each micro-batch, even if its inputs are abridged."""
        return [sum(self.count_rows(step, *micro_batch)) for micro_batch in self.list_micro_batches(step)]

    def _count_rows(self, step: int, rank: int, number: int) -> list[int]:
        """Return the number of examples of each call of a micro-batch, even if its inputs are abridged."""
        counts = []
        for call in range(count_calls(self.record.ranks[rank].open_step(step), number)):
            shapes = [array.shape for array in self.read_call(step, rank, number, "input", call).values()]
            shapes += map(tuple, self._list_abridged(step, rank, number, "input", call).values())
            counts.append(next((shape[0] for shape in shapes if shape), 0))
        return counts

    def list_call_rows(self, step: int) -> list[np.ndarray]:
        """Return the rows of each call among all examples of a step; none if micro-batches differ in their calls."""
        return split_rows([self.count_rows(step, *micro_batch) for micro_batch in self.list_micro_batches(step)])

    def has_abridged_inputs(self, step: int) -> bool:
        """Check whether an input of any micro-batch is abridged."""
        return any(
            self._list_abridged(step, *micro_batch, "input", call)
            for micro_batch in self.list_micro_batches(step)
            for call in range(len(self.count_rows(step, *micro_batch)))
        )

    def has_abridged_labels(self, step: int) -> bool:
        """Check whether a label of any micro-batch is abridged."""
        return any(
            self._list_abridged(step, *micro_batch, "label")
            or LABELS in self._list_abridged(step, *micro_batch, "input")
            for micro_batch in self.list_micro_batches(step)
        )

    def _list_abridged(self, step: int, rank: int, number: int, kind: str, call: int = 0) -> dict[str, list[int]]:
        """Return the shapes of the abridged arrays of a call of a micro-batch, by name."""
        file, prefix = self.record.ranks[rank].open_step(step), f"{name_call(number, call)}/{kind}/"
        return {
            name.removeprefix(prefix): facts["shape"]
            for name, facts in file.abridged.items()
            if name.startswith(prefix)
        }

    def read_labels(self, step: int) -> dict[str, np.ndarray]:
        """Return the labels of a step, with an example in each row."""
        count = sum(self.count_examples(step))
        inputs = self.read_batch(step, "input")
        labels = {LABELS: inputs[LABELS]} if LABELS in inputs else self.read_batch(step, "label")
        rows = {name: split_examples(array, count) for name, array in labels.items() if name not in WEIGHTS_IN_LOSS}
        return {name: array for name, array in rows.items() if len(array) == count}

    def read_followed(self, step: int) -> dict[str, np.ndarray]:
        """Return, by path, what the layers returned for the inputs in the followed record."""
        return self._put_examples_first(step, 0, "followed")

    def _put_examples_first(self, step: int, rank: int, kind: str) -> dict[str, np.ndarray]:
        """Return the arrays "layer" or "followed" of a process, with the examples first."""
        arrays, sizes = self.record.ranks[rank].open_step(step).select(kind), self._find_time_sizes(step, rank)
        return arrays if sizes is None else {name: put_examples_first(x, sizes) for name, x in arrays.items()}

    def read_layer_calls(self, step: int) -> dict[str, RecordedCall]:
        """Return what the layers received and returned in the first micro-batches of the processes, by path."""
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
