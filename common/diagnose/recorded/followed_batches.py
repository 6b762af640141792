"""The batches of a record, in the structure of the batches of the script that follows it.

A script follows a record if it trains on the recorded examples instead of its own. The script's own batch may be
nested. A leaf is an array in it, with the shape and the type that the script expects.
"""

import contextlib
from collections.abc import Collection, Iterator, Mapping, Sequence

import numpy as np

from common.diagnose.recorded.array_layouts import convert_to_layout
from common.diagnose.recorded.columns import adapt_columns
from common.diagnose.recorded.derived_arrays import Rule, find_derived
from common.diagnose.recorded.example_axis import find_most_rows, has_examples_second, infer_count
from common.diagnose.recorded.followed_arrays import ALL_CALLS, FollowedArrays, lay_out_calls
from common.diagnose.recorded.leaf_keys import match_micro_batch, read_keys
from common.diagnose.recorded.leaf_matches import LeafMatcher, describe_array
from common.diagnose.recorded.matched_arrays import unflatten
from common.diagnose.recorded.merged_axes import find_merged_axes, merge_axes
from common.diagnose.recorded.padded_lists import Lengths, cut_lists, join_lists, pad_lists
from common.diagnose.recorded.recorded_side import RecordedSide
from common.diagnose.recorded.time_axis import (
    TimeSizes,
    infer_follower_sizes,
    is_timed,
    put_examples_first,
    put_time_first,
)
from common.diagnose.recorded.token_lengths import sort_by_length
from common.errors import UserError
from common.recording.record_format import REFUSED

Arrays = dict[str, np.ndarray]


class FollowedBatches:
    """Hands out the examples of a record step by step, in micro-batches of the script's size.

    A process takes its share of each micro-batch, so that all processes together take the examples of the step once.

    Attributes:
        may_have_time_first: Whether a layer of the script's model takes time-first arrays.
        class_weights: The weights that the script declares, by class, as `fit(class_weight=...)` does.
    """

    def __init__(self, side: RecordedSide) -> None:
        """Begin with the first recorded step."""
        self._side, self._arrays = side, FollowedArrays(side)
        self._steps = list(side.record.steps)
        self._updates = 0  # number of updates of the script
        self._position = 0  # index of the next example within the step
        self._matcher = LeafMatcher(side, self._arrays)
        self.may_have_time_first = False
        self.class_weights: Mapping[float, float] = {}
        self._time_sizes: TimeSizes | None = None

    @property
    def notes(self) -> list[str]:
        """Return sentences about arrays of the script's batches that are not replaced, or not in their order."""
        return self._matcher.notes

    def end_step(self) -> None:
        """Count an update of the script. The script needs no more examples of this step of the record."""
        self._updates += 1

    def _skip_finished_steps(self) -> None:
        """Leave out the rest of the recorded steps that the script has ended with fewer examples."""
        finished = self._side.record.steps[: self._updates]
        if not (self._steps and self._steps[0] in finished):
            return
        if self._position:
            self._matcher.add_note(
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
        with self._note_refusal():
            return self._fill(leaves, rank, world_size)

    @contextlib.contextmanager
    def _note_refusal(self) -> Iterator[None]:
        """Note an error for the record of the script, which ends with it."""
        try:
            yield
        except UserError as error:
            self._matcher.add_note(f"{REFUSED}{error}")
            raise

    def _fill(self, leaves: Mapping[str, np.ndarray], rank: int, world_size: int) -> Arrays | None:
        self._skip_finished_steps()
        if not self._steps:
            return None
        step = self._steps[0]
        if (graph := self._fill_graph(leaves, step, world_size)) is not None:
            return graph
        arrays = self._arrays.read(step)
        leaves, own_lengths = join_lists(leaves)
        total = len(next(iter(arrays.values())))
        axes = find_merged_axes(leaves, total) if world_size == 1 and read_keys(self._side) else None
        if axes is not None:
            merged = self._fill({name: merge_axes(leaf, total) for name, leaf in leaves.items()}, rank, world_size)
            return {name: array.reshape(*axes, *array.shape[1:]) for name, array in (merged or {}).items()}
        sizes = self._find_time_sizes(leaves, arrays, {total // world_size, *self._arrays.count_rows(step)})
        self._time_sizes = sizes
        timed = {name for name, leaf in leaves.items() if sizes is not None and is_timed(leaf, sizes)}
        if sizes is not None:
            leaves = {name: put_examples_first(leaf, sizes) for name, leaf in leaves.items()}
        count = infer_count(leaf.shape for leaf in leaves.values()) or 0
        arrays = lay_out_calls(arrays, leaves)
        frames = {array[:, 0].shape for name, array in arrays.items() if name.startswith(ALL_CALLS)}
        turned = {
            name
            for name, leaf in leaves.items()
            if sizes is None and (has_examples_second(leaf, count) or leaf.shape[1:] in frames)
        }
        leaves = {name: leaf.swapaxes(0, 1) if name in turned else leaf for name, leaf in leaves.items()}
        original_shapes = {name: leaf.shape for name, leaf in leaves.items()}
        leaves = unflatten(leaves)
        size = find_most_rows(leaves)
        rows = np.arange(self._position, min(self._position + size * world_size, total))
        share = np.array_split(rows, world_size)[rank]
        if not share.size:
            raise UserError(
                f"{self._side.record.directory}: step {step} has {total} examples, too few for {world_size} processes "
                f"with {size} each; use a smaller batch"
            )
        self._position = int(rows[-1]) + 1
        self._end_full_step(total)
        examples = {name: leaf for name, leaf in leaves.items() if leaf.ndim and len(leaf) == size}
        arrays = adapt_columns(arrays, examples, self._matcher.add_note)
        filled, listed = self._fill_examples(examples, arrays, share, own_lengths)
        flat = {leaf for leaf, shape in original_shapes.items() if shape != leaves[leaf].shape}
        filled = {leaf: array.reshape(-1) if leaf in flat else array for leaf, array in filled.items()}
        filled = {leaf: array.swapaxes(0, 1) if leaf in turned else array for leaf, array in filled.items()}
        if sizes is not None:
            self._time_sizes = sizes = sizes[0], len(share)
            filled = {leaf: put_time_first(array, sizes) if leaf in timed else array for leaf, array in filled.items()}
        filled |= self._fill_lists(listed, arrays, share, leaves, own_lengths)
        return filled | self._fill_whole(leaves, examples, step, share)

    def _fill_examples(
        self, examples: Arrays, arrays: Arrays, share: np.ndarray, own_lengths: Lengths
    ) -> tuple[Arrays, dict[str, str]]:
        """Return recorded arrays for the script's arrays, and the names of the recorded lists for its other arrays.

        Args:
            examples: The script's arrays with a row for each example.
            arrays: The recorded arrays of the step.
            share: The indices of the examples.
            own_lengths: The numbers of rows of the lists of the script's batch.
        """
        derived, arrays = find_derived(examples, arrays, self.class_weights)
        names = self._matcher.match({name: leaf for name, leaf in examples.items() if name not in derived}, arrays)
        listed = {leaf: name for leaf, name in names.items() if leaf in own_lengths or name in self._arrays.lengths}
        filled = {
            leaf: self._convert(leaf, name, self._arrays.take(name, arrays[name], share), examples[leaf])
            for leaf, name in names.items()
            if leaf not in listed
        }
        filled |= {leaf: self._derive(leaf, rule, filled) for leaf, rule in derived.items()}
        return filled if listed else sort_by_length(examples, filled), listed

    def _fill_graph(self, leaves: Mapping[str, np.ndarray], step: int, world_size: int) -> Arrays | None:
        """Return the next micro-batch as it is if both scripts' batches have one structure, and none counts examples.

        Their arrays have different numbers of rows, such as the nodes, the edges and the labels of a part of a graph.
        None is returned for other batches, and with several processes.
        """
        if world_size > 1 or len({len(leaf) for leaf in leaves.values() if leaf.ndim}) < 2:
            return None
        arrays, count = self._arrays.read_micro_batch(step, self._position)
        matches = match_micro_batch(leaves, arrays, read_keys(self._side))
        if not matches:
            return None
        listed = ", ".join(f"{leaf} gets {name}" for leaf, name in matches.items())
        self._matcher.add_note(f"batches: their arrays have no row for each example, so that {listed}; check this")
        self._position += count
        self._end_full_step(sum(self._arrays.count_rows(step)))
        return {
            leaf: convert_to_layout(arrays[name], leaves[leaf]).astype(leaves[leaf].dtype)
            for leaf, name in matches.items()
        }

    def _fill_whole(self, leaves: Arrays, examples: Collection[str], step: int, share: np.ndarray) -> Arrays:
        """Return recorded arrays for the script's arrays without a row for each example. examples: the others."""
        arrays, count = self._arrays.read_micro_batch(step, int(share[0]), len(share))
        without_rows = {name: array for name, array in arrays.items() if not array.ndim or len(array) != count}
        matches = self._matcher.match_rest({x: leaf for x, leaf in leaves.items() if x not in examples}, without_rows)
        return {leaf: arrays[name].astype(leaves[leaf].dtype) for leaf, name in matches.items()}

    def _end_full_step(self, total: int) -> None:
        """Go on with the next step if all examples of a step are handed out. total: their number."""
        if self._position == total:
            self._steps, self._position = self._steps[1:], 0

    def _fill_lists(
        self, names: Mapping[str, str], arrays: Arrays, share: np.ndarray, leaves: Arrays, own_lengths: Lengths
    ) -> Arrays:
        """Return the lists of examples of the script's batch, and its arrays that the followed script has as lists."""
        directory = self._side.record.directory
        for leaf, counts in own_lengths.items():
            if leaf in names and len(counts) != len(share):
                raise UserError(
                    f"{directory}: has {len(share)} examples for the {len(counts)} of {leaf}; use batches of that size"
                )
        rows = {leaf: arrays[name][share] for leaf, name in names.items()}
        lengths = {name: counts[share] for name, counts in self._arrays.lengths.items()}
        cut = {leaf: name for leaf, name in names.items() if leaf in own_lengths}
        padded = {leaf: name for leaf, name in names.items() if leaf not in cut}
        steps = [self._arrays.read_named({*cut.values()} - {*lengths}, step) for step in self._side.record.steps]
        return cut_lists(cut, rows, lengths, steps) | pad_lists(padded, rows, lengths, leaves)

    def restore_time_axis(self, array: np.ndarray, template: np.ndarray) -> np.ndarray:
        """Convert the input of a recorded layer to time-first if the script's last batch is time-first.

        Args:
            array: The input of the recorded layer.
            template: The input of its counterpart in the script.
        """
        sizes = self._time_sizes
        return array if sizes is None or not is_timed(template, sizes) else put_time_first(array, sizes)

    def check_time_axis(self, shape: Sequence[int]) -> None:
        """Raise UserError if the script's batch was taken for a time-first batch, but the model shows the opposite.

        Args:
            shape: The shape of the input of the first time-first layer.
        """
        sizes = self._time_sizes
        if sizes is not None and sizes[0] != sizes[1] and tuple(shape[:2]) == (sizes[1], sizes[0]):
            with self._note_refusal():
                raise UserError(
                    "the script's batches may be time-first or batch-first, and its model swaps the axes; use batches "
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
        if sizes is not None and None not in sizes and self._time_sizes is None and sizes[1] not in counts:
            name = next(name for name, leaf in leaves.items() if leaf.shape[:2] == sizes)
            raise UserError(
                f"{describe_array(name, leaves[name])} of the script's batch may be time-first or batch-first; use "
                f"batches of {max(counts)} examples, or {sizes[0]} time steps"
            )
        return sizes

    def _derive(self, leaf: str, rule: Rule, filled: Arrays) -> np.ndarray:
        """Return an array that the script computes from the array which has been replaced by a recorded one."""
        computed = rule.compute(filled[rule.source]) if rule.source in filled else None
        if computed is None:
            raise UserError(
                f"{self._side.record.directory}: has labels for which {leaf} of the script's batch shows no weight; "
                "let the script's first batch have all classes"
            )
        return computed

    def _convert(self, leaf: str, name: str, array: np.ndarray, template: np.ndarray) -> np.ndarray:
        """Return recorded examples with a name in the layout and the type of the script's array."""
        converted = convert_to_layout(array, template)
        cast = converted.astype(template.dtype)
        is_lossless = converted.ndim == template.ndim and np.array_equal(convert_to_layout(converted, array), array)
        sizes = converted.shape[1:], template.shape[1:]  # a part of labels has fewer values: boxes without classes
        is_label = name.startswith("label ") and len(sizes[0]) > 1 and array.dtype.kind == "f"
        is_image = 4 in (array.ndim, template.ndim)  # of another size
        is_part = is_label and not is_image and sizes[0][:-1] == sizes[1][:-1] and sizes[0] != sizes[1]
        if is_part or not is_lossless or (template.dtype.kind != "f" and not np.array_equal(cast, converted)):
            raise UserError(
                f"{self._side.record.directory}: its values {array.dtype}{list(array.shape)} do not fit "
                f"{describe_array(leaf, template)} of the script's batch; prepare the batches before the loop, so that "
                "the loop gets what the model and the loss receive"
            )
        return cast
