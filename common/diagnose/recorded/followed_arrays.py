"""The arrays of a record for the batches of a following script."""

from collections.abc import Collection, Mapping
from functools import lru_cache

import numpy as np

from common.diagnose.recorded.array_layouts import convert_to_layout
from common.diagnose.recorded.carried_states import list_states_of_calls
from common.diagnose.recorded.example_rows import join_examples
from common.diagnose.recorded.matched_arrays import are_copies, is_constant
from common.diagnose.recorded.merged_axes import merge_axes
from common.diagnose.recorded.padded_lists import Lengths, join_lists
from common.diagnose.recorded.recorded_batches import CLASS_WEIGHTS, POSITIVE_WEIGHTS
from common.diagnose.recorded.recorded_side import RecordedSide
from common.errors import UserError, escape_control_characters, one_line

Arrays = dict[str, np.ndarray]
ALL_CALLS = "input (all calls) "  # the begin of the names of the inputs of all calls, which the script cut from a batch
LATER_CALL = "input (call "  # the begin of the names of the inputs of later calls of the model
OTHER = "other "  # the begin of the names of arrays that neither the model nor its loss function received


class FollowedArrays:
    """The inputs and labels of the steps of a record, with an example in each row.

    Attributes:
        lengths: The number of rows of each example of the lists of the step that was read last, by name.
    """

    def __init__(self, side: RecordedSide) -> None:
        """Prepare to read. side: the record."""
        self._side, self._directory, self._batches = side, side.record.directory, side.batches
        note = next(iter(side.record.notes), "record another loop of the script")
        self._reason = escape_control_characters(one_line(note))
        self.lengths: Lengths = {}
        self._shapes: dict[str, list[tuple[int, ...]]] = {}  # of the examples of each micro-batch, by name
        self._step = 0  # the step that was read last
        self._constant: set[int] = set()  # identities of the labels that are constant in each micro-batch
        self.read = lru_cache(1)(self._read)

    def is_made(self, array: np.ndarray) -> bool:
        """Check whether an array of the step that was read last is one of labels that a script makes itself."""
        return id(array) in self._constant

    def _read(self, step: int) -> Arrays:
        """Return the inputs, labels and other arrays of a step, with an example in each row.

        Their names are "input NAME", "input (call 2) NAME" for later calls of the model, "input (all calls) NAME"
        [n, calls, ...], "label NAME" and "other NAME".
        """
        self._step, self._shapes, self.lengths = step, {}, {}
        states = {state.received for state in list_states_of_calls(self._side, step)}
        calls = self._read_calls(step)
        inputs, *later = [{name: x for name, x in call.items() if name not in states} for call in calls]
        arrays = {f"input {name}": array for name, array in inputs.items()}
        for number, call in enumerate(later, start=2):
            arrays |= {f"{LATER_CALL}{number}) {name}": array for name, array in call.items()}
        if later:
            frames = {name: [call[name] for call in (inputs, *later) if name in call] for name in inputs}
            arrays |= {
                f"{ALL_CALLS}{name}": np.stack(parts, axis=1)
                for name, parts in frames.items()
                if len(parts) > len(later) and len({part.shape for part in parts}) == 1
            }
        if not inputs:
            advice = "record it with a larger max_bytes=" if self._batches.has_abridged_inputs(step) else self._reason
            raise UserError(f"{self._directory}: has no whole inputs of step {step}; {advice}")
        keys = self._side.get_facts(step).get("keys", {})
        is_whole = any(key.startswith("input/") for key in keys)  # the model receives an array of the batch as it is
        if not is_whole and (joined := self._read_joined(step)):
            return joined
        labels = self._read_labels(step, "label")
        # A key such as "labels" is one array, and a position such as "0" is that of an argument of each function
        labels = {name: array for name, array in labels.items() if name.isdecimal() or name not in inputs}
        # A model that reconstructs its input may flatten it for the loss
        copies = {name: next((x for x in arrays.values() if are_copies(x, array)), array)
                  for name, array in labels.items()}  # fmt: skip
        ends = np.cumsum(self.count_rows(step))[:-1]
        constant = [name for name, array in copies.items() if all(map(is_constant, np.split(array, ends)))]
        self._constant = {id(copies[name]) for name in constant}
        arrays |= {f"label {name}": array for name, array in copies.items()}
        return arrays | {f"{OTHER}{name}": array for name, array in self._read_labels(step, "other").items()}

    def take(self, name: str, array: np.ndarray, rows: np.ndarray) -> np.ndarray:
        """Return some examples of an array, without what pads its shorter micro-batches if they are one of these.

        Args:
            name: The name of the array.
            array: The array of the step.
            rows: The indices of the examples, which follow one another.
        """
        number = self._find_micro_batch(self._step, int(rows[0]), len(rows))
        shapes = self._shapes.get(name, [])
        if number is None or number >= len(shapes) or len(shapes[number]) != array.ndim - 1:
            return array[rows]
        return array[rows][(slice(None), *map(slice, shapes[number]))]

    def read_micro_batch(self, step: int, start: int, count: int | None = None) -> tuple[Arrays, int]:
        """Return the arrays of a micro-batch as they are, also without a row for each example, and the number of rows.

        Args:
            step: The number of the step.
            start: The index of its first example. None are returned if no micro-batch begins there.
            count: The number of its examples, if that is known. None are returned if it has others.
        """
        number = self._find_micro_batch(step, start, count)
        if number is None:
            return {}, 0
        micro_batch = self._batches.list_micro_batches(step)[number]
        kinds = {kind: self._batches.read_call(step, *micro_batch, kind) for kind in ("input", "label", "other")}
        arrays = {f"{kind} {name}": x for kind, of_kind in kinds.items() for name, x in of_kind.items()}
        return arrays, self.count_rows(step)[number]

    def _find_micro_batch(self, step: int, start: int, count: int | None) -> int | None:
        """Return the number of the micro-batch that begins with an example, and has a number of examples."""
        counts = self.count_rows(step)
        starts = np.cumsum([0, *counts]).tolist()
        places = enumerate(zip(starts, counts, strict=False))
        return next((number for number, place in places if place[0] == start and count in (None, place[1])), None)

    def read_named(self, names: Collection[str], step: int) -> Arrays:
        """Return arrays of a step by the names that `read` gives them."""
        keys = {name: name.partition(" ")[::2] for name in names}
        return {name: self._batches.read_step(step, kind)[key] for name, (kind, key) in keys.items()}

    def _read_joined(self, step: int) -> Arrays:
        """Return the arrays of the batch if the script has joined several of them for its model, such as views."""
        micro_batches, counts = self._batches.list_micro_batches(step), self.count_rows(step)
        parts = [
            {
                f"{kind} {name}": array
                for kind in ("label", "other")
                for name, array in join_lists(self._batches.read_call(step, *micro_batch, kind), {count})[0].items()
                if array.ndim
            }
            for micro_batch, count in zip(micro_batches, counts, strict=True)
        ]
        names = [name for name in parts[0] if all(name in part for part in parts)]
        shares = {name: {len(part[name]) / count for part, count in zip(parts, counts, strict=True)} for name in names}
        views = [shares[name] for name in names if name.startswith(OTHER)]
        if not views or any(share != views[0] for share in views) or not _are_parts(views[0]):
            return {}
        return {name: join_examples([part[name] for part in parts]) for name in names if shares[name] == views[0]}

    def count_rows(self, step: int) -> list[int]:
        """Return the number of examples of the first call of each micro-batch."""
        return [
            self._batches.count_rows(step, *micro_batch)[0] for micro_batch in self._batches.list_micro_batches(step)
        ]

    def _read_calls(self, step: int) -> list[Arrays]:
        """Return the inputs of each call of the model that has as many examples as the first one."""
        micro_batches = self._batches.list_micro_batches(step)
        rows = [self._batches.count_rows(step, *micro_batch) for micro_batch in micro_batches]
        calls: list[Arrays] = []
        for call in range(min(map(len, rows))):
            if any(sizes[call] != sizes[0] for sizes in rows):
                continue
            parts = [self._batches.read_call(step, *micro_batch, "input", call) for micro_batch in micro_batches]
            names = [name for name in parts[0] if all(name in part and part[name].ndim for part in parts)]
            arrays = {name: join_examples([part[name] for part in parts]) for name in names}
            title = f"{LATER_CALL}{call + 1}) " if call else "input "
            self._shapes |= {f"{title}{name}": [part[name].shape[1:] for part in parts] for name in names}
            count = sum(sizes[0] for sizes in rows)
            calls.append({name: array for name, array in arrays.items() if len(array) == count})
        return calls

    def _read_labels(self, step: int, kind: str) -> Arrays:
        """Return labels of a step with an example in each row, even if the loss got all tokens in one axis.

        Args:
            step: The number of the step.
            kind: "label", or "other" for the arrays that no loss function received.
        """
        micro_batches, counts = self._batches.list_micro_batches(step), self.count_rows(step)
        parts = [self._batches.read_call(step, *micro_batch, kind) for micro_batch in micro_batches]
        joined_lists = [join_lists(part, {count}) for part, count in zip(parts, counts, strict=True)]
        parts = [
            {name: merge_axes(array, count) for name, array in arrays.items()}
            for (arrays, _), count in zip(joined_lists, counts, strict=True)
        ]
        calls = max(len(self._batches.count_rows(step, *micro_batch)) for micro_batch in micro_batches)
        labels: Arrays = {}
        for name in parts[0] if parts else ():
            arrays = [part.get(name, np.empty(())) for part in parts]
            sizes = {len(array) / count if array.ndim else 0.0 for array, count in zip(arrays, counts, strict=True)}
            if (name in (CLASS_WEIGHTS, POSITIVE_WEIGHTS) and kind == "label") or (calls > 1 and sizes == {calls}):
                continue  # labels of the rows of all calls are made by the script, as the numbers of pairs in SimCLR
            if len(sizes) == 1 and (size := sizes.pop()) in range(1, max(arrays[0].shape[:1], default=0) + 1):
                joined = join_examples(arrays)
                if name in joined_lists[0][1]:
                    self.lengths[f"{kind} {name}"] = np.concatenate([lengths[name] for _, lengths in joined_lists])
                self._shapes[f"{kind} {name}"] = [array.shape[1:] for array in arrays]
                labels[name] = joined if size == 1 else joined.reshape(sum(counts), int(size), *joined.shape[1:])
        return labels


def lay_out_calls(arrays: Arrays, leaves: Mapping[str, np.ndarray]) -> Arrays:
    """Return arrays with the inputs of all calls [n, calls, ...] in the layout of a leaf [calls, n, ...]."""
    converted = dict(arrays)
    for name, array in arrays.items():
        for leaf in leaves.values() if name.startswith(ALL_CALLS) else ():
            if leaf.shape[:2] != array.shape[1::-1]:
                continue
            calls = [convert_to_layout(array[:, call], leaf[0]) for call in range(array.shape[1])]
            if calls[0].shape == leaf.shape[1:]:
                converted[name] = np.stack(calls, axis=1)
    return converted


def _are_parts(shares: set[float]) -> bool:
    """Check whether arrays have one share of the model's rows, of which whole numbers make all: a half, a third."""
    return len(shares) == 1 and all(0 < share < 1 and (1 / share).is_integer() for share in shares)
