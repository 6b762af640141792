"""The batches of a record: the inputs and outputs of the model, and the labels, with an example in each row.

The examples of a step are the examples of all its micro-batches in all processes, in the order of the processes. A
micro-batch is named by its process and its number, from 0, within the step of the process. An array is abridged if the
record holds only a sample of its elements, because the whole array did not fit.
"""

from collections.abc import Sequence
from functools import cache, cached_property, lru_cache

import numpy as np

from common.diagnose.recorded.example_axis import infer_count, is_one_example, swap_examples
from common.diagnose.recorded.example_rows import join_examples, split_examples
from common.diagnose.recorded.model_calls import count_calls, find_call_rows, join_calls, join_labels
from common.diagnose.recorded.time_axis import (
    StateSizes,
    TimeSizes,
    find_recorded_sizes,
    has_time_first,
    is_state,
    list_state_sizes,
    put_examples_first,
    put_layers_second,
)
from common.recording.record_format import LayerFacts, name_call
from common.recording.record_reader import Record

PARTS_IN_MEMORY = 64  # a part: the inputs, labels or outputs of one micro-batch
LABELS = "labels"  # the input that holds the labels if the model computes its own loss
CLASS_WEIGHTS = "weight"  # the argument of a loss function with the weights of the classes
SAMPLE_WEIGHTS = "sample_weight"  # the argument with the weights of the examples, in Keras
POSITIVE_WEIGHTS = "pos_weight"  # the argument of PyTorch's binary cross entropy with the weight of the label 1
WEIGHTS_IN_LOSS = (CLASS_WEIGHTS, SAMPLE_WEIGHTS, POSITIVE_WEIGHTS)


class RecordedBatches:
    """The inputs, labels and outputs of a record. A `kind` of arrays is "input", "label" or "output".

    Attributes:
        read_step: Read the arrays of all micro-batches of a step: `read_step(step, kind)`.
        read_micro_batch: Read the arrays of a micro-batch: `read_micro_batch(step, rank, number, kind)`.
        read_call: Read the arrays of one call of the model: `read_call(step, rank, number, kind, call=0)`.
        count_rows: Count the examples of each call of a micro-batch: `count_rows(step, rank, number)`.
    """

    def __init__(self, record: Record, layers: Sequence[LayerFacts]) -> None:
        self._record, self._layers = record, layers
        self.read_step = cache(self._read_step)  # shared by several stages
        self.read_micro_batch = lru_cache(PARTS_IN_MEMORY)(self._read_micro_batch)
        self.read_call = lru_cache(PARTS_IN_MEMORY)(self._read_call)
        self.count_rows = cache(self._count_rows)
        self._infer_count = cache(self._read_count)

    def list_micro_batches(self, step: int) -> list[tuple[int, int]]:
        """Return the process and the number of each micro-batch."""
        return [
            (rank, number)
            for rank, facts in enumerate(self._record.get_step_facts(step))
            for number in range(facts["micro_batches"])
        ]

    def _read_step(self, step: int, kind: str) -> dict[str, np.ndarray]:
        """Return the arrays of all micro-batches by name, with an example in each row."""
        parts = [self.read_micro_batch(step, *micro_batch, kind) for micro_batch in self.list_micro_batches(step)]
        names = [name for name in parts[0] if all(name in part for part in parts)] if parts else []
        return {name: join_examples([part[name] for part in parts]) for name in names if parts[0][name].ndim}

    def _read_micro_batch(self, step: int, rank: int, number: int, kind: str) -> dict[str, np.ndarray]:
        """Return the arrays "input", "label" or "output" of one micro-batch, with the examples of all calls first."""
        if (calls := count_calls(self._record.ranks[rank].open_step(step), number)) == 1:
            return self.read_call(step, rank, number, kind)
        if kind != "label":
            return join_calls([self.read_call(step, rank, number, kind, call) for call in range(calls)])
        counts = self.count_rows(step, rank, number)
        return join_labels(self.read_call(step, rank, number, kind), counts, (CLASS_WEIGHTS,))

    def _read_call(self, step: int, rank: int, number: int, kind: str, call: int = 0) -> dict[str, np.ndarray]:
        """Return the arrays of a kind, "input", "output" or "label", of one call, examples-first."""
        file, prefix = self._record.ranks[rank].open_step(step), name_call(number, call)
        arrays = name_sample_weights(file.select(f"{prefix}/{kind}"))
        if kind != "label" and is_one_example(*(file.read_shapes(f"{prefix}/{x}") for x in ("input", "output"))):
            return {name: array[None] for name, array in arrays.items()}
        first_sizes, timed_input = self._time_first
        timed = None if timed_input is None else file.select(f"{prefix}/input").get(timed_input)
        examples = self._infer_count(step, rank, number, call) if timed is None else None
        if timed is not None and first_sizes is not None:
            time, examples = timed.shape[:2]
            sizes = None if first_sizes[0] is None else time, examples
            # If each array has its own number of time steps, states [layers, n, features] would count as sequences
            states = {
                name: put_layers_second(x, examples, self._state_sizes)
                for name, x in arrays.items()
                if sizes[0] is None
            }
            arrays = {
                name: x if states.get(name, x) is not x else put_examples_first(x, sizes) for name, x in arrays.items()
            }
        if examples is None:
            return arrays
        arrays = {name: put_layers_second(array, examples, self._state_sizes) for name, array in arrays.items()}
        return arrays if first_sizes is not None else {name: swap_examples(x, examples) for name, x in arrays.items()}

    def _read_count(self, step: int, rank: int, number: int, call: int) -> int | None:
        """Return the number of examples of one call, if no array is time-first."""
        file, prefix = self._record.ranks[rank].open_step(step), name_call(number, call)
        inputs, outputs, labels = (
            [shape for shape in file.read_shapes(kind) if not is_state(shape, self._state_sizes)]
            for kind in (f"{prefix}/input", f"{prefix}/output", f"{name_call(number, 0)}/label")
        )
        return 1 if is_one_example(inputs, outputs) else infer_count(inputs, [*outputs, *labels])

    @cached_property
    def _time_first(self) -> tuple[TimeSizes | None, str | None]:
        """Return the sizes of time-first inputs of the model, and the name of one of them; None without such inputs."""
        if not self._record.steps:
            return None, None
        file = self._record.ranks[0].open_step(self._record.steps[0])
        sizes = find_recorded_sizes(self._layers, file)
        inputs = file.select("batch/0/input") if sizes is not None else {}
        return sizes, next((name for name, x in inputs.items() if sizes is not None and has_time_first(x, sizes)), None)

    @cached_property
    def _state_sizes(self) -> set[StateSizes]:
        return list_state_sizes(self._layers)

    @property
    def are_time_first(self) -> bool:
        """Return whether the recorded arrays are time-first. Readers then get them examples-first."""
        return self._time_first[0] is not None

    def count_examples(self, step: int) -> list[int]:
        """Return the number of examples of each micro-batch, even if its inputs are abridged."""
        return [sum(self.count_rows(step, *micro_batch)) for micro_batch in self.list_micro_batches(step)]

    def _count_rows(self, step: int, rank: int, number: int) -> list[int]:
        """Return the number of examples of each call of a micro-batch, even if its inputs are abridged."""
        counts = []
        for call in range(count_calls(self._record.ranks[rank].open_step(step), number)):
            if self._time_first[0] is None:
                counts.append(self._infer_count(step, rank, number, call) or 0)
                continue
            shapes = [array.shape for array in self.read_call(step, rank, number, "input", call).values()]
            shapes += map(tuple, self._list_abridged(step, rank, number, "input", call).values())
            counts.append(next((shape[0] for shape in shapes if shape), 0))
        return counts

    def list_call_rows(self, step: int) -> list[np.ndarray]:
        """Return the indices of the rows of each call among all examples of a step, as `find_call_rows` does."""
        return find_call_rows([self.count_rows(step, *micro_batch) for micro_batch in self.list_micro_batches(step)])

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
        file, prefix = self._record.ranks[rank].open_step(step), f"{name_call(number, call)}/{kind}/"
        return {
            name.removeprefix(prefix): facts["shape"]
            for name, facts in file.abridged.items()
            if name.startswith(prefix)
        }

    def read_labels(self, step: int) -> dict[str, np.ndarray]:
        """Return the labels of a step, with an example in each row."""
        count = sum(self.count_examples(step))
        inputs = self.read_step(step, "input")
        labels = {LABELS: inputs[LABELS]} if LABELS in inputs else self.read_step(step, "label")
        rows = {name: split_examples(array, count) for name, array in labels.items() if name not in WEIGHTS_IN_LOSS}
        return {name: array for name, array in rows.items() if len(array) == count}


def name_sample_weights(arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return labels with the weights of examples under one name.

    PyTorch's binary cross entropy receives them as `weight`, the name of the weights of classes in other losses.
    """
    weights, target = arrays.get(CLASS_WEIGHTS), arrays.get("target")
    if weights is None or target is None or target.dtype.kind != "f" or not weights.ndim:
        return arrays
    if weights.shape != target.shape and weights.shape != (len(target), *[1] * (target.ndim - 1)):
        return arrays
    return {SAMPLE_WEIGHTS if name == CLASS_WEIGHTS else name: array for name, array in arrays.items()}
