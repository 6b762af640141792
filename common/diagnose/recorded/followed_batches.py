"""The batches of a record, in the structure of the batches of the script that follows it.

A script follows a record if it trains on the recorded examples instead of its own. The script's own batch may be
nested. A leaf is an array in it, with the shape and the type that the script expects.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import product

import numpy as np

from common.diagnose.recorded.example_order import convert_to_layout
from common.diagnose.recorded.followed_arrays import LATER_CALL, FollowedArrays
from common.diagnose.recorded.losses.class_weights import ClassWeights, find_class_weights
from common.diagnose.recorded.matched_arrays import (
    are_copies,
    has_equal_shape,
    has_like_shape,
    has_same_shape,
    is_continuous,
    match_by_values,
    match_in_order,
    unflatten,
)
from common.diagnose.recorded.operations.section_side import SectionSide
from common.diagnose.recorded.recorded_batches import SAMPLE_WEIGHTS
from common.diagnose.recorded.recorded_side import RecordedSide
from common.diagnose.recorded.time_axis import TimeSizes, infer_follower_sizes, put_examples_first, put_time_first
from common.errors import UserError
from common.recording.record_format import OPERAND

Arrays = dict[str, np.ndarray]
# Names of the same input in transformers and KerasHub
SAME_INPUTS = {"token_ids": "input_ids", "padding_mask": "attention_mask", "segment_ids": "token_type_ids"}
MADE = " (constant: made by the script)"
LABEL_NAMES = ("label", "labels", "target", "targets", "y", "y_true")  # in scripts, PyTorch and Keras


class FollowedBatches:
    """Hands out the examples of a record step by step, in micro-batches of the script's size.

    A process takes its share of each micro-batch, so that all processes together take the examples of the step once.

    Attributes:
        notes: Sentences about arrays of the script's batches that are not replaced, or not in the script's order.
        may_have_time_first: Whether a layer of the script's model takes time-first arrays.
    """

    def __init__(self, side: RecordedSide) -> None:
        """Begin with the first recorded step."""
        self._side, self._arrays = side, FollowedArrays(side)
        self._steps = list(side.record.steps)
        self._updates = 0  # number of updates of the script
        self._position = 0  # index of the next example within the step
        self.notes: list[str] = []
        self.may_have_time_first = False
        self._time_sizes: TimeSizes | None = None

    def end_step(self) -> None:
        """Count an update of the script. The script needs no more examples of this step of the record."""
        self._updates += 1

    def _skip_finished_steps(self) -> None:
        """Leave out the rest of the recorded steps that the script has ended with fewer examples."""
        finished = self._side.record.steps[: self._updates]
        if not (self._steps and self._steps[0] in finished):
            return
        if self._position:
            self._add_note(
                f"batches: the script updates after {self._position} examples in step {self._steps[0]}, and the "
                "followed script after more, or in several backward passes; the rest of its examples is left out"
            )
        self._steps, self._position = [step for step in self._steps if step not in finished], 0

    def fill(self, leaves: Mapping[str, np.ndarray], rank: int, world_size: int) -> Arrays | None:
        """Return the next micro-batch, as a recorded array for each leaf; None after the last one.

        Args:
            leaves: The script's own arrays, by the path of their keys and positions in its batch.
            rank: The number of this process.
            world_size: The number of processes.

        Raises:
            UserError: The record has nothing for an array of the script's batch.
        """
        self._skip_finished_steps()
        if not self._steps:
            return None
        step = self._steps[0]
        arrays = self._arrays.read(step)
        total = len(next(iter(arrays.values())))
        sizes = self._find_time_sizes(leaves, arrays, {total // world_size, *self._arrays.count_rows(step)})
        self._time_sizes = sizes
        if sizes is not None:
            leaves = {name: put_examples_first(leaf, sizes) for name, leaf in leaves.items()}
        original_shapes = {name: leaf.shape for name, leaf in leaves.items()}
        leaves = unflatten(leaves)
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
        examples = {name: leaf for name, leaf in leaves.items() if leaf.ndim and len(leaf) == size}
        # Otherwise the record has an array for each of these leaves, and labels may follow from an input as weights do
        has_further = len(examples) > len({*arrays} - {f"label {SAMPLE_WEIGHTS}"})
        weights = find_class_weights(examples) if has_further else {}
        names = self._match({name: leaf for name, leaf in examples.items() if name not in weights}, arrays)
        filled = {leaf: self._convert(leaf, name, arrays[name][share], leaves[leaf]) for leaf, name in names.items()}
        filled |= {leaf: self._weigh(leaf, rule, filled) for leaf, rule in weights.items()}
        filled = {
            leaf: array.reshape(-1) if original_shapes[leaf] != leaves[leaf].shape else array
            for leaf, array in filled.items()
        }
        if sizes is not None:
            self._time_sizes = sizes = sizes[0], len(share)
            filled = {leaf: put_time_first(array, sizes) for leaf, array in filled.items()}
        return filled

    def restore_time_axis(self, array: np.ndarray) -> np.ndarray:
        """Convert the input of a recorded layer to time-first if the script's last batch is time-first."""
        return array if self._time_sizes is None else put_time_first(array, self._time_sizes)

    def check_time_axis(self, shape: Sequence[int]) -> None:
        """Raise UserError if the script's batch was taken for a time-first batch, but the model shows the opposite.

        Args:
            shape: The shape of the input of the first time-first layer.
        """
        sizes = self._time_sizes
        if sizes is not None and sizes[0] != sizes[1] and tuple(shape[:2]) == (sizes[1], sizes[0]):
            raise UserError(
                f"the script's batches may be time-first or batch-first, and its model swaps the axes; use batches "
                f"whose number of examples is not {sizes[0]}, the number of recorded time steps"
            )

    def _find_time_sizes(
        self, leaves: Mapping[str, np.ndarray], arrays: Arrays, counts: Collection[int]
    ) -> TimeSizes | None:
        """Return (time, examples) of the script's batch if it is time-first. Raise UserError if that is not certain.

        Args:
            leaves: The arrays of the script's batch.
            arrays: The arrays of the recorded batch.
            counts: The numbers of examples of recorded batches. Another length may be the number of time steps.
        """
        sizes = infer_follower_sizes(leaves.values(), arrays.values()) if self.may_have_time_first else None
        if sizes is not None and self._time_sizes is None and sizes[1] not in counts:
            name = next(name for name, leaf in leaves.items() if leaf.shape[:2] == sizes)
            raise UserError(
                f"{_describe(name, leaves[name])} of the script's batch may be time-first or batch-first; use "
                f"batches of {max(counts)} examples, or {sizes[0]} time steps"
            )
        return sizes

    def _match(self, leaves: Arrays, arrays: Arrays) -> dict[str, str]:
        """Return the name of the recorded array for each leaf: by the same key, otherwise by shape, type and values."""
        matches: dict[str, str] = {}
        for are_same in (_have_equal_keys, _are_synonyms):
            for leaf in leaves:
                same = [name for name in arrays if name not in matches.values() and are_same(leaf, name)]
                if leaf not in matches and same:
                    matches[leaf] = same[0]
        named = {*matches.values()}
        # From the strictest to the loosest, and the weights of examples after the labels
        labels = {name: array for name, array in arrays.items() if name != f"label {SAMPLE_WEIGHTS}"}
        for candidates, fits in product((labels, arrays), (has_same_shape, has_equal_shape, has_like_shape)):
            unused = {name: array for name, array in candidates.items() if name not in matches.values()}
            unmatched = {leaf: array for leaf, array in leaves.items() if leaf not in matches}
            may_replace = self._exclude_constants(fits)
            best, in_order = (match(unmatched, unused, may_replace) for match in (match_by_values, match_in_order))
            moved = [f"{leaf} gets {name}" for leaf, name in best.items() if in_order.get(leaf) != name]
            if moved:
                self._add_note(f"batches: {', '.join(moved)}, because their values contradict the order; check that")
            matches |= best
        if later := [f"{leaf} gets {name}" for leaf, name in matches.items() if name.startswith(LATER_CALL)]:
            self._add_note(
                f"batches: the followed script calls its model several times: {', '.join(later)}; check that"
            )
        if operands := [f"{leaf} gets {name}" for leaf, name in matches.items() if name.startswith(f"label {OPERAND}")]:
            self._add_note(
                f"batches: the followed script computes its loss itself: {', '.join(operands)}, with which it combines "
                "the outputs of its model; check that these are the labels"
            )
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
            matches: The name of the recorded array by the name of the leaf that it replaces.
            named: Names of recorded arrays that have the key of the array that they replace, so that they fit no other.
        """
        directory, used = self._side.record.directory, [arrays[name] for name in matches.values()]
        # A script computes the labels of real and fake images itself, and the inputs of later calls with another model
        own_arrays = [
            name
            for name, known in arrays.items()
            if name.startswith(LATER_CALL) or (is_continuous(array) and self._arrays.is_made(known))
        ]
        are_used = all(name in own_arrays or any(are_copies(x, known) for x in used) for name, known in arrays.items())
        may_be_label = array.ndim == 1 or array.dtype.kind != "f" or _get_key(leaf) in LABEL_NAMES
        excluded = {*named, *(name for name in own_arrays if not name.startswith(LATER_CALL))}
        is_known = any(name.startswith("label ") or (name in own_arrays and not may_be_label) for name in arrays)
        is_known |= self._has_no_labels()
        if (
            is_known
            and are_used
            and not any(has_like_shape(known, array) for name, known in arrays.items() if name not in excluded)
        ):
            listed = ", ".join(name + (MADE if self._arrays.is_made(known) else "") for name, known in arrays.items())
            sentence = (
                f"batches: {leaf} of the script's batch is not replaced: the followed script's model and loss received "
                f"only {listed}"
            )
            self._add_note(sentence)
            return
        recorded = ", ".join(_describe(name, arrays[name]) for name in arrays)
        raise UserError(
            f"{directory}: has nothing for {_describe(leaf, array)} of the script's batch, "
            f"but {recorded}; remove it from the batch, or let the followed script's model receive it"
        )

    def _has_no_labels(self) -> bool:
        """Check whether the operations of the followed script show that its loss needs nothing but outputs."""
        trace = self._side.record.ranks[0].operations
        if trace is None or not trace["complete"] or trace["loss"] is None:
            return False
        count = self._arrays.count_rows(self._side.record.steps[0])[0]
        return not SectionSide(trace, trace["loss"], ()).may_receive_labels(count)

    def _exclude_constants(self, fits: Callable[[np.ndarray, np.ndarray], bool]) -> Callable[..., bool]:
        """Return a check by which labels that the followed script made replace no continuous values."""
        return lambda array, template: (
            fits(array, template) and not (self._arrays.is_made(array) and is_continuous(template))
        )

    def _add_note(self, sentence: str) -> None:
        self.notes += [] if sentence in self.notes else [sentence]

    def _weigh(self, leaf: str, rule: ClassWeights, filled: Arrays) -> np.ndarray:
        """Return the weights that the script gives to the recorded labels by their classes."""
        weights = rule.compute(filled[rule.labels]) if rule.labels in filled else None
        if weights is None:
            raise UserError(
                f"{self._side.record.directory}: has labels for which {leaf} of the script's batch shows no weight; "
                "let the script's first batch have all classes"
            )
        return weights

    def _convert(self, leaf: str, name: str, array: np.ndarray, template: np.ndarray) -> np.ndarray:
        """Return recorded examples with a name in the layout and the type of the script's array."""
        converted = convert_to_layout(array, template)
        cast = converted.astype(template.dtype)
        is_lossless = converted.ndim == template.ndim and np.array_equal(convert_to_layout(converted, array), array)
        sizes = converted.shape[1:], template.shape[1:]  # a part of labels has fewer values: boxes without classes
        is_label = name.startswith("label ") and len(sizes[0]) > 1 and array.dtype.kind == "f"
        is_part = is_label and sizes[0][:-1] == sizes[1][:-1] and sizes[0] != sizes[1]
        if is_part or not is_lossless or (template.dtype.kind != "f" and not np.array_equal(cast, converted)):
            raise UserError(
                f"{self._side.record.directory}: its values {array.dtype}{list(array.shape)} do not fit "
                f"{_describe(leaf, template)} of the script's batch; prepare the batches before the loop, so that the "
                "loop gets what the model and the loss receive"
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


def _describe(name: str, array: np.ndarray) -> str:
    return f"{name} {array.dtype}{list(array.shape)}"
