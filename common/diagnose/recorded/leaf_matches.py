"""Assignment of the arrays of a record to the arrays of the batch of a script that follows it.

A leaf is an array of the script's own batch, which may be nested; it shows the shape and the type that the script
expects.
"""

from collections.abc import Callable, Collection, Mapping
from functools import cached_property
from itertools import product

import numpy as np

from common.diagnose.recorded.array_layouts import are_one_hot
from common.diagnose.recorded.example_axis import list_surplus_numbering
from common.diagnose.recorded.followed_arrays import ALL_CALLS, LATER_CALL, OTHER, FollowedArrays
from common.diagnose.recorded.leaf_keys import (
    LABEL_NAMES,
    are_synonyms,
    get_key,
    have_equal_keys,
    match_structure,
    match_without_rows,
    read_keys,
)
from common.diagnose.recorded.matched_arrays import (
    FEWEST,
    are_copies,
    has_converted_shape,
    has_equal_shape,
    has_exact,
    has_like_shape,
    has_one_column,
    has_same_frames,
    has_same_lengths,
    has_same_mask,
    has_same_shape,
    has_same_shape_of_data,
    have_other_ranges,
    is_constant,
    is_continuous,
    is_mask_of_other,
    match_by_values,
    match_copies,
    match_in_order,
    prefer_ranges,
)
from common.diagnose.recorded.operations.operation_words import locate
from common.diagnose.recorded.operations.section_side import SectionSide
from common.diagnose.recorded.operations.tensor_matches import SAME_NUMBERS, TensorMatches
from common.diagnose.recorded.recorded_batches import SAMPLE_WEIGHTS
from common.diagnose.recorded.recorded_side import RecordedSide
from common.errors import UserError
from common.recording.operation_format import Operation
from common.recording.record_format import OPERAND

Arrays = dict[str, np.ndarray]
LABEL = "batch/0/label/"  # the begin of the names of labels among the operations
MADE = " (constant: made by the script)"


class LeafMatcher:
    """Assigns recorded arrays to leaves.

    Attributes:
        notes: Sentences about leaves that are not replaced, or that get an array that is not surely theirs.
    """

    def __init__(self, side: RecordedSide, arrays: FollowedArrays) -> None:
        """Prepare to assign the arrays of a record."""
        self.notes: list[str] = []
        self._side, self._arrays = side, arrays

    def match(self, leaves: Arrays, arrays: Arrays) -> dict[str, str]:
        """Return the name of the recorded array for each leaf: by the same key, otherwise by shape, type and values."""
        leaves, arrays = self._leave_out_numbering(leaves, arrays)
        matches = self._match_keys(leaves, arrays)
        named = {*matches.values()}
        matches |= self._match_positions(leaves, arrays) if not matches else {}
        of_batch = {name: array for name, array in arrays.items() if name not in self._computed}
        received = {name: array for name, array in of_batch.items() if not name.startswith((OTHER, ALL_CALLS))}
        whole = {name: array for name, array in arrays.items() if not name.startswith(ALL_CALLS)}
        of_calls = {name: array for name, array in of_batch.items() if name.startswith(ALL_CALLS)}
        others = {name: array for name, array in of_batch.items() if name.startswith(OTHER)}
        # What the followed script has computed from outputs, such as the lengths of the model's outputs, comes last
        keys = read_keys(self._side)
        order = sorted(received, key=lambda name: bool(keys) and name.startswith("label ") and name not in keys)
        labels = {name: received[name] for name in order if name != f"label {SAMPLE_WEIGHTS}"}
        has_lengths = has_same_lengths((leaves[leaf] for leaf in leaves if leaf not in matches), labels.values())
        has_shape = has_same_shape if has_lengths else has_same_shape_of_data
        # The labels before the weights of examples, and each time from the strictest to the loosest
        passes = [
            *product([labels], [has_shape, has_converted_shape]),
            *product([others], [lambda array, leaf: has_same_shape(array, leaf) and not has_exact(labels, leaf)]),
            *product([labels], [has_equal_shape, has_one_column]),
            *product([of_calls], [has_same_frames]),
            *product([others], [has_equal_shape]),
            *product([labels, received, whole], [has_shape, has_equal_shape, has_same_mask, has_like_shape]),
        ]
        # An array that the script uses twice has two names
        for is_new, (candidates, fits) in product((True, False), passes):
            used = [arrays[name] for name in matches.values()] if is_new else []
            unused = {
                name: array
                for name, array in candidates.items()
                if name not in matches.values() and not any(array is other for other in used)
            }
            unmatched = {leaf: array for leaf, array in leaves.items() if leaf not in matches}
            may_replace = prefer_ranges(self._exclude_constants(fits), unmatched)
            best, in_order = (match(unmatched, unused, may_replace) for match in (match_by_values, match_in_order))
            moved = [f"{leaf} gets {name}" for leaf, name in best.items() if in_order.get(leaf) != name]
            if moved:
                self.add_note(f"batches: {', '.join(moved)}, because their values contradict the order; check this")
            matches |= best
        matches |= match_copies(leaves, matches)
        for leaf, name in matches.items():
            if name in self._computed:
                self._refuse_computed(leaf, name)
        self._note_doubts(matches)
        for leaf, array in leaves.items():
            if leaf not in matches:
                taken = [arrays[name] for name in matches.values()]
                self._report_unmatched(leaf, array, received or whole, taken, named)
        return {leaf: matches[leaf] for leaf in leaves if leaf in matches}

    def _match_keys(self, leaves: Arrays, arrays: Arrays) -> dict[str, str]:
        """Return the recorded array with the place or the key of each leaf, or with a synonym of its key."""
        keys, others = read_keys(self._side), {name: array for name, array in arrays.items() if name.startswith(OTHER)}
        matches = match_structure(leaves, arrays, keys)
        for are_same in (lambda leaf, name: have_equal_keys(leaf, keys.get(name, "0")), have_equal_keys, are_synonyms):
            for leaf, array in leaves.items():
                same = [name for name in arrays if name not in matches.values() and are_same(leaf, name)]
                if are_same is are_synonyms and has_exact(others, array):
                    same = [name for name in same if has_same_shape(arrays[name], array)]
                if leaf not in matches and same:
                    matches[leaf] = same[0]
        return matches

    def _match_positions(self, leaves: Arrays, arrays: Arrays) -> dict[str, str]:
        """Return the recorded array in the place of each leaf, if arrays that the model does not receive show it.

        One further leaf then gets the array that the model or its loss receives, whatever other leaves have its shape:
        the noise of a generator is one of two in its batch, and the target of a decoder is one of two sequences.
        """
        # Without a loss function that the recorder knows, the labels of Keras are arrays of the batch
        has_labels = self._has_batch_as_labels()
        others = {
            get_key(name): name
            for name in arrays
            if name.startswith(OTHER) or (has_labels and name.startswith("label ") and get_key(name).isdecimal())
        }
        places = {get_key(leaf): leaf for leaf in leaves}
        remaining = [leaf for key, leaf in places.items() if key not in others]
        # An input that is a label as well is one array of the batch
        received = {id(x): name for name, x in arrays.items() if name not in others.values()}
        fitting = [
            name
            for name in received.values()
            if not self._arrays.is_made(arrays[name])
            and any(has_equal_shape(arrays[name], leaves[leaf]) for leaf in remaining)
        ]
        if len(fitting) != 1 or len(remaining) != 1 or len(places) != len(leaves) or not others.keys() <= places.keys():
            return {}
        matches = {places[key]: name for key, name in others.items()} | {remaining[0]: fitting[0]}
        fit = all(
            has_equal_shape(arrays[name], leaves[leaf]) and not have_other_ranges(leaves[leaf], arrays[name])
            for leaf, name in matches.items()
        )
        return matches if fit else {}

    def _has_batch_as_labels(self) -> bool:
        """Check whether the labels have the names of the places of a batch, because no loss function was seen."""
        return not self._side.is_torch and self._side.record.facts["loss"] is None

    def _leave_out_numbering(self, leaves: Arrays, arrays: Arrays) -> tuple[Arrays, Arrays]:
        """Return the leaves and the recorded arrays without those that only number the examples for one script."""
        numbering = list_surplus_numbering(leaves, arrays)
        for leaf in numbering:
            self.add_note(f"batches: {leaf} of the script's batch numbers the examples, and is not replaced")
        leaves = {name: leaf for name, leaf in leaves.items() if name not in numbering}
        surplus = list_surplus_numbering(arrays, leaves)
        return leaves, {name: array for name, array in arrays.items() if name not in surplus}

    def _refuse_computed(self, leaf: str, name: str) -> None:
        """Raise UserError for a leaf whose array the followed script has changed before it combined it with outputs."""
        raise UserError(
            f"{self._side.record.directory}: has nothing for {leaf} of the script's batch but {name}, which the "
            f"followed script computed from its batch in {locate(self._computed[name])}; let its batches come from a "
            "torch.utils.data.DataLoader, so that they are recorded"
        )

    def _note_doubts(self, matches: Mapping[str, str]) -> None:
        """Note the leaves that get an array which the followed script does not surely use in the same place."""
        if later := [f"{leaf} gets {name}" for leaf, name in matches.items() if name.startswith(LATER_CALL)]:
            self.add_note(f"batches: the followed script calls its model several times: {', '.join(later)}; check this")
        if operands := [f"{leaf} gets {name}" for leaf, name in matches.items() if name.startswith(f"label {OPERAND}")]:
            self.add_note(
                f"batches: the followed script computes its loss itself: {', '.join(operands)}, with which it combines "
                "the outputs of its model; check that these are the labels"
            )
        if others := [f"{leaf} gets {name}" for leaf, name in matches.items() if name.startswith(OTHER)]:
            self.add_note(
                f"batches: {', '.join(others)}: arrays of the followed script's batch that neither its model nor its "
                "loss function received; check this"
            )

    def _report_unmatched(
        self, leaf: str, array: np.ndarray, arrays: Arrays, used: Collection[np.ndarray], named: Collection[str]
    ) -> None:
        """Note that a leaf keeps its values, if the record has no array left for it. Otherwise raise UserError.

        Args:
            leaf: The name of the leaf.
            array: The script's own array.
            arrays: The arrays that the followed script's model and loss function received, by name.
            used: The recorded arrays that replace other leaves.
            named: Names of recorded arrays that have the key of the array that they replace, so that they fit no other.
        """
        directory = self._side.record.directory
        if array.dtype.kind in "iu" and array.size >= FEWEST and is_constant(array):  # a data set returns labels, too
            self.add_note(f"batches: {leaf} of the script's batch is not replaced: its numbers are all the same")
            return
        # A script computes the labels of real and fake images itself, and the inputs of later calls with another model
        own_arrays = [
            name
            for name, known in arrays.items()
            if name.startswith(LATER_CALL) or (is_continuous(array) and self._arrays.is_made(known))
        ]
        are_used = all(name in own_arrays or any(are_copies(x, known) for x in used) for name, known in arrays.items())
        may_be_label = array.ndim == 1 or array.dtype.kind != "f" or get_key(leaf) in LABEL_NAMES
        excluded = {*named, *(name for name in own_arrays if not name.startswith(LATER_CALL))}
        is_known = any(name.startswith("label ") or (name in own_arrays and not may_be_label) for name in arrays)
        is_known |= self._has_no_labels() or bool(read_keys(self._side))  # the whole batch is recorded
        is_like_any = any(has_like_shape(known, array) for name, known in arrays.items() if name not in excluded)
        if is_known and are_used and not is_like_any:
            listed = ", ".join(name + (MADE if self._arrays.is_made(known) else "") for name, known in arrays.items())
            reason = f"the followed script's model and loss received only {listed}" if listed else "no array is like it"
            self.add_note(f"batches: {leaf} of the script's batch is not replaced: {reason}")
            return
        recorded = ", ".join(describe_array(name, arrays[name]) for name in arrays) or "arrays of another length"
        raise UserError(
            f"{directory}: has nothing for {describe_array(leaf, array)} of the script's batch, "
            f"but {recorded}; remove it from the batch, or let the followed script's model receive it"
        )

    @cached_property
    def _computed(self) -> dict[str, Operation]:
        """The labels that the followed script has computed from arrays of its batch, with the operations that did.

        A label has the size of such an array, and other numbers.
        """
        trace = self._side.record.ranks[0].operations
        if trace is None:
            return {}
        matches = TensorMatches(trace["tensors"], trace["tensors"], SAME_NUMBERS)
        side = SectionSide(trace, 0, ())
        computed = {}
        for name, number in trace["names"].items():
            operations = side.list_leading_to(number) if name.startswith(f"{LABEL}{OPERAND}") else []
            sources = side.list_sources(operations, side.count_elements([number])[0])
            if sources and not any(matches.are_equal(source, number) for source in sources):
                computed[f"label {name.removeprefix(LABEL)}"] = operations[-1]
        return computed

    def _has_no_labels(self) -> bool:
        """Check whether the operations of the followed script show that its loss needs nothing but outputs."""
        trace = self._side.record.ranks[0].operations
        if trace is None or not trace["complete"] or trace["loss"] is None:
            return False
        count = self._arrays.count_rows(self._side.record.steps[0])[0]
        return not SectionSide(trace, trace["loss"], ()).may_receive_labels(count)

    def _exclude_constants(self, fits: Callable[[np.ndarray, np.ndarray], bool]) -> Callable[..., bool]:
        """Return a check by which labels that the followed script made replace no continuous values, nor masks ids.

        Nor do integers, such as lengths, replace fractions of them, nor smoothed labels one-hot ones.
        """
        return lambda array, template: (
            fits(array, template)
            and not (self._arrays.is_made(array) and is_continuous(template))
            and not (array.ndim == 1 and array.dtype.kind in "iu" and is_continuous(template))
            and not (is_continuous(array) and template.shape[-1:] > (1,) and are_one_hot(template))
            and not (is_mask_of_other(array, template) or is_mask_of_other(template, array))
        )

    def match_rest(self, leaves: Arrays, arrays: Arrays) -> dict[str, str]:
        """Return recorded arrays without a row for each example for such leaves. Raise UserError if one has none."""
        matches = match_without_rows(leaves, arrays, read_keys(self._side))
        for leaf, array in leaves.items():
            if leaf not in matches:
                self._report_unmatched(leaf, array, arrays, [], [])
        return matches

    def add_note(self, sentence: str) -> None:
        """Add a sentence to the notes, once."""
        self.notes += [] if sentence in self.notes else [sentence]


def describe_array(name: str, array: np.ndarray) -> str:
    """Return the name, the type and the shape of an array."""
    return f"{name} {array.dtype}{list(array.shape)}"
