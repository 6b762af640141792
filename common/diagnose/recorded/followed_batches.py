"""The batches of a record, in the structure of the batches of the script that follows it.

A script follows a record if it trains on the recorded examples instead of its own. A leaf is an array of the script's
own batch, which may be nested; it shows the shape and the type that the script expects.
"""

from collections.abc import Collection, Mapping, Sequence

import numpy as np

from common.diagnose.recorded.example_order import convert_to_layout
from common.diagnose.recorded.example_rows import join_examples
from common.diagnose.recorded.matched_arrays import match_by_values, match_in_order
from common.diagnose.recorded.recorded_side import CLASS_WEIGHTS, RecordedSide
from common.diagnose.recorded.time_axis import Sizes, find_sizes_of_template, put_examples_first, put_time_first
from common.errors import UserError

Arrays = dict[str, np.ndarray]
# Names of the same input in transformers and KerasHub
SAME_INPUTS = {"token_ids": "input_ids", "padding_mask": "attention_mask", "segment_ids": "token_type_ids"}
LABEL_NAMES = ("label", "labels", "target", "targets", "y", "y_true")  # in scripts, PyTorch and Keras


class FollowedBatches:
    """Hands out the examples of a record step by step, in micro-batches of the script's size.

    A process takes its share of each micro-batch, so that all processes together take the examples of the step once.

    Attributes:
        notes: Sentences about arrays of the script's batches that are not replaced, or not in their order.
        may_have_time_first: Whether a layer of the script's model takes arrays with the time before the examples.
    """

    def __init__(self, side: RecordedSide) -> None:
        """Begin with the first recorded step."""
        self._side = side
        self._steps = list(side.record.steps)
        self._position = 0  # index of the next example within the step
        self.notes: list[str] = []
        self.may_have_time_first = False
        self._time_sizes: Sizes | None = None

    def fill(self, leaves: Mapping[str, np.ndarray], rank: int, world_size: int) -> Arrays | None:
        """Return the next micro-batch, as a recorded array for each leaf; None after the last one.

        Args:
            leaves: The script's own arrays, by the path of their keys and positions in its batch.
            rank: The number of this process.
            world_size: The number of processes.

        Raises:
            UserError: The record has nothing for an array of the script's batch.
        """
        if not self._steps:
            return None
        step = self._steps[0]
        arrays = self._read_step(step)
        total = len(next(iter(arrays.values())))
        sizes = self._find_time_sizes(leaves, arrays, {total // world_size, *self._side.count_examples(step)})
        self._time_sizes = sizes
        if sizes is not None:
            leaves = {name: put_examples_first(leaf, sizes) for name, leaf in leaves.items()}
        original_shapes = {name: leaf.shape for name, leaf in leaves.items()}
        leaves = _unflatten(leaves)
        size = max((len(leaf) for leaf in leaves.values() if leaf.ndim), default=0)
        rows = np.arange(self._position, min(self._position + size * world_size, total))
        share = np.array_split(rows, world_size)[rank]
        if not share.size:
            raise UserError(
                f"{self._side.record.directory}: step {step} has {total} examples, too few for {world_size} processes "
                f"with {size} each; use a smaller batch"
            )
        self._position = int(rows[-1]) + 1
        if self._position == total:
            self._steps, self._position = self._steps[1:], 0
        names = self._match({name: leaf for name, leaf in leaves.items() if leaf.ndim and len(leaf) == size}, arrays)
        filled = {leaf: self._convert(leaf, arrays[name][share], leaves[leaf]) for leaf, name in names.items()}
        filled = {
            leaf: array.reshape(-1) if original_shapes[leaf] != leaves[leaf].shape else array
            for leaf, array in filled.items()
        }
        if sizes is not None:
            self._time_sizes = sizes = sizes[0], len(share)
            filled = {leaf: put_time_first(array, sizes) for leaf, array in filled.items()}
        return filled

    def restore_time_axis(self, array: np.ndarray) -> np.ndarray:
        """Return what a recorded layer received in the order of the script's last batch, if that has the time first."""
        return array if self._time_sizes is None else put_time_first(array, self._time_sizes)

    def check_time_axis(self, shape: Sequence[int]) -> None:
        """Raise UserError if the script's batch was taken for one with the time first, and its model shows it is not.

        Args:
            shape: The shape of what the first layer that takes the time first received.
        """
        sizes = self._time_sizes
        if sizes is not None and sizes[0] != sizes[1] and tuple(shape[:2]) == (sizes[1], sizes[0]):
            raise UserError(
                f"the script's batches may have the time first or the examples, and its model exchanges the axes; use "
                f"batches of another number of examples than {sizes[0]}, which is the number of recorded time steps"
            )

    def _find_time_sizes(
        self, leaves: Mapping[str, np.ndarray], arrays: Arrays, counts: Collection[int]
    ) -> Sizes | None:
        """Return the sizes of the script's batch if it has the time first. Raise UserError if that is not certain.

        Args:
            leaves: The script's own arrays.
            arrays: The recorded ones.
            counts: The numbers of examples of recorded batches. Another number may be that of the script's time steps.
        """
        sizes = find_sizes_of_template(leaves.values(), arrays.values()) if self.may_have_time_first else None
        if sizes is not None and self._time_sizes is None and sizes[1] not in counts:
            name = next(name for name, leaf in leaves.items() if leaf.shape[:2] == sizes)
            raise UserError(
                f"{_describe(name, leaves[name])} of the script's batch may have the time first or the examples; use "
                f"batches of {max(counts)} examples, or {sizes[0]} time steps"
            )
        return sizes

    def _read_step(self, step: int) -> Arrays:
        """Return the inputs and labels of a step as "input NAME" and "label NAME", with an example in each row."""
        inputs = self._side.read_batch(step, "input")
        count = sum(self._side.count_examples(step))
        arrays = {f"input {name}": array for name, array in inputs.items() if len(array) == count}
        if not arrays:
            raise UserError(
                f"{self._side.record.directory}: has no whole inputs of step {step}; record it with a larger max_bytes="
            )
        labels = {name: array for name, array in self._read_labels(step).items() if name not in inputs}
        # A model that reconstructs its input may flatten it for the loss
        copies = {name: next((x for x in arrays.values() if _are_copies(x, array)), array)
                  for name, array in labels.items()}  # fmt: skip
        return arrays | {f"label {name}": array for name, array in copies.items()}

    def _read_labels(self, step: int) -> Arrays:
        """Return the labels of a step, with an example in each row, even if the loss got all tokens in one axis."""
        micro_batches, counts = self._side.list_micro_batches(step), self._side.count_examples(step)
        parts = [self._side.read_part(step, *micro_batch, "label") for micro_batch in micro_batches]
        labels: Arrays = {}
        for name in parts[0] if parts else ():
            arrays = [part.get(name, np.empty(())) for part in parts]
            sizes = {len(array) / count if array.ndim else 0.0 for array, count in zip(arrays, counts, strict=True)}
            if name != CLASS_WEIGHTS and len(sizes) == 1 and (size := sizes.pop()) in range(1, len(arrays[0]) + 1):
                joined = join_examples(arrays)
                labels[name] = joined if size == 1 else joined.reshape(sum(counts), int(size), *joined.shape[1:])
        return labels

    def _match(self, leaves: Arrays, arrays: Arrays) -> dict[str, str]:
        """Return the name of the recorded array for each leaf: by the same key, otherwise by shape, type and values."""
        matches: dict[str, str] = {}
        for are_same in (_have_equal_keys, _are_synonyms):
            for leaf in leaves:
                same = [name for name in arrays if name not in matches.values() and are_same(leaf, name)]
                if leaf not in matches and same:
                    matches[leaf] = same[0]
        named = {*matches.values()}
        for fits in (_has_same_shape, _has_equal_shape, _has_like_shape):  # from the strictest to the loosest
            unused = {name: array for name, array in arrays.items() if name not in matches.values()}
            unmatched = {leaf: array for leaf, array in leaves.items() if leaf not in matches}
            best, in_order = (match(unmatched, unused, fits) for match in (match_by_values, match_in_order))
            moved = [f"{leaf} gets {name}" for leaf, name in best.items() if in_order.get(leaf) != name]
            if moved:
                self._add_note(f"batches: {', '.join(moved)}, because their values contradict the order; check that")
            matches |= best
        for leaf, array in leaves.items():
            if leaf not in matches:
                self._report_unmatched(leaf, array, arrays, matches, named)
        return {leaf: matches[leaf] for leaf in leaves if leaf in matches}

    def _report_unmatched(
        self, leaf: str, array: np.ndarray, arrays: Arrays, matches: Mapping[str, str], named: Collection[str]
    ) -> None:
        """Note that a leaf keeps its values, if the record has no array left for it. Otherwise raise UserError.

        Args:
            leaf: The name of the leaf.
            array: The script's own array.
            arrays: The recorded arrays by name.
            matches: Their names by those of the arrays that they replace.
            named: Names of recorded arrays that have the key of the array that they replace, so that they fit no other.
        """
        directory, used = self._side.record.directory, [arrays[name] for name in matches.values()]
        are_used = all(any(_are_copies(x, known) for x in used) for known in arrays.values())
        is_known = any(name.startswith("label ") for name in arrays)
        if (
            is_known
            and are_used
            and not any(_has_like_shape(known, array) for name, known in arrays.items() if name not in named)
        ):
            sentence = (
                f"batches: {leaf} of the script's batch is not replaced: the followed script's model and loss received "
                f"only {', '.join(arrays)}"
            )
            self._add_note(sentence)
            return
        recorded = ", ".join(_describe(name, arrays[name]) for name in arrays)
        raise UserError(
            f"{directory}: has nothing for {_describe(leaf, array)} of the script's batch, "
            f"but {recorded}; remove it from the batch, or let the followed script's model receive it"
        )

    def _add_note(self, sentence: str) -> None:
        self.notes += [] if sentence in self.notes else [sentence]

    def _convert(self, leaf: str, array: np.ndarray, template: np.ndarray) -> np.ndarray:
        """Return recorded examples in the layout and the type of the script's array."""
        converted = convert_to_layout(array, template)
        cast = converted.astype(template.dtype)
        is_lossless = converted.ndim == template.ndim and np.array_equal(convert_to_layout(converted, array), array)
        if not is_lossless or (template.dtype.kind != "f" and not np.array_equal(cast, converted)):
            raise UserError(
                f"{self._side.record.directory}: its values do not fit {_describe(leaf, template)} of the script's "
                "batch; prepare the batches before the loop, so that the loop gets what the model receives"
            )
        return cast


def _get_key(name: str) -> str:
    """Return the last key of the name of an array."""
    return name.rpartition(".")[2].rpartition(" ")[2]


def _have_equal_keys(leaf: str, name: str) -> bool:
    """Check whether an array of the script's batch and a recorded one have the same last key, which is no position."""
    return _get_key(leaf) == _get_key(name) and not _get_key(leaf).isdecimal()


def _are_synonyms(leaf: str, name: str) -> bool:
    """Check whether the last keys of an array of the script's batch and of a recorded one are synonyms."""
    keys = _get_key(leaf), _get_key(name)
    if name.startswith("label "):
        return all(key in LABEL_NAMES for key in keys)
    return keys[0] in {*SAME_INPUTS, *SAME_INPUTS.values()} and len({SAME_INPUTS.get(key, key) for key in keys}) == 1


def _unflatten(leaves: Mapping[str, np.ndarray]) -> Arrays:
    """Return the arrays of a batch. Labels whose tokens share one axis get the shape of the token ids."""
    tokens = [x for x in leaves.values() if x.ndim == 2 and x.shape[1] > 1 and x.dtype.kind in "iu"]
    return {
        name: leaf.reshape(next((x.shape for x in tokens if leaf.ndim == 1 and leaf.size == x.size), leaf.shape))
        for name, leaf in leaves.items()
    }


def _are_copies(a: np.ndarray, b: np.ndarray) -> bool:
    """Check whether two arrays have the same values for each example."""
    return a.size == b.size and len(a) == len(b) and np.array_equal(a.reshape(len(a), -1), b.reshape(len(b), -1))


def _has_same_shape(array: np.ndarray, template: np.ndarray) -> bool:
    """Check whether recorded examples have the shape and the kind of the script's."""
    return array.shape[1:] == template.shape[1:] and (array.dtype.kind == "f") == (template.dtype.kind == "f")


def _has_equal_shape(array: np.ndarray, template: np.ndarray) -> bool:
    """Check whether recorded examples have the shape and the kind of the script's after a change of layout."""
    is_float = [x.dtype.kind == "f" for x in (array, template)]
    converted = convert_to_layout(array[:1], template[:1])
    is_one_hot = {array.ndim, template.ndim} == {1, 2} and converted.ndim == template.ndim
    if not _may_be_classes(array, template):
        return False
    return (is_float[0] == is_float[1] or is_one_hot) and (
        converted.shape[1:] == template.shape[1:] or _are_tokens(array, template)
    )


def _has_like_shape(array: np.ndarray, template: np.ndarray) -> bool:
    """Check whether recorded examples may replace the script's, though their type or sizes differ."""
    if not _may_be_classes(array, template):
        return False
    has_columns = (array.ndim, template.ndim) == (2, 1)
    are_features = array.ndim == template.ndim == 2 and "f" in (array.dtype.kind, template.dtype.kind)
    if are_features and array.shape[1] != template.shape[1]:
        return False
    return (
        has_columns
        or array.ndim == template.ndim
        or convert_to_layout(array[:1], template[:1]).shape[1:] == template.shape[1:]
    )


def _may_be_classes(array: np.ndarray, template: np.ndarray) -> bool:
    """Check whether each recorded row can become one number, if the script has numbers: one-hot, or one element."""
    return (
        not (array.ndim == 2 and template.ndim == 1) or array.shape[1] == 1 or np.allclose(array.sum(1), 1, atol=1e-3)
    )


def _are_tokens(array: np.ndarray, template: np.ndarray) -> bool:
    """Check whether both are sequences of integers, whose lengths may differ."""
    return all(x.ndim == 2 and x.dtype.kind in "iub" for x in (array, template))


def _describe(name: str, array: np.ndarray) -> str:
    return f"{name} {array.dtype}{list(array.shape)}"
