"""A split whose examples are transformed when they are gathered."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Self

import numpy as np
from typing_extensions import override

from common.data.batches import Arrays, Split
from common.data.label_weights import count_losses
from common.data.splits.multi_output_split import MultiOutputSplit
from common.data.transforms.builder import Step, TransformList
from common.data.transforms.label_limits import LabelLimits
from common.data.transforms.rows import gather_examples
from common.data.transforms.streams import BATCHES, EXAMPLES, Streams, derive_keys
from common.data.transforms.transform import KEY, Example, describe_arrays
from common.errors import UserError

DTYPES = ("float32", "int32", "int64", "uint8", "bool")  # types of the arrays that a transform may return

# The shape and the type of an example's arrays; None is the axis of a ragged array.
Specs = Mapping[str, tuple[tuple[int | None, ...], np.dtype[Any]]]


@dataclass(frozen=True)
class TransformedSplit:
    """The examples of `source` after the transforms, in one epoch and one global batch.

    Attributes:
        source: The examples before the transforms.
        transforms: The transforms, which are bound to the examples.
        specs: The shape and the type of each array of an example after the transforms of one example.
        seed: The seed of the run.
        epoch: The epoch, from 0.
        step: The number of the global batch; 0 before `select_batch`.
        batch_ids: The ids of the global batch, among which a mixing finds partners; None before `select_batch`.
        limits: The ranges of labels, by the names of their arrays, which examples are checked against.
    """

    source: Split
    transforms: TransformList
    specs: Specs
    seed: int
    epoch: int = 0
    step: int = 0
    batch_ids: np.ndarray | None = None
    limits: Mapping[str, LabelLimits] = field(default_factory=dict)

    def select_batch(self, epoch: int, step: int, ids: np.ndarray) -> Self:
        """Return the split for a global batch of these ids."""
        return replace(self, epoch=epoch, step=step, batch_ids=ids)

    def __len__(self) -> int:
        return len(self.source)

    @property
    def labels(self) -> np.ndarray:
        """The labels before the transforms."""
        return self.source.labels

    @property
    def example_shapes(self) -> dict[str, tuple[int | None, ...]]:
        """The shape of an example in every array."""
        if self.transforms.mixing is None:
            return {**self.source.example_shapes, **{name: shape for name, (shape, _) in self.specs.items()}}
        first = self.gather(np.arange(1), np.arange(1))
        return {name: array.shape[1:] for name, array in first.items()}

    def lengths(self, ids: np.ndarray) -> np.ndarray:
        """Return the number of tokens of each example before the transforms, int64 [n]."""
        return self.source.lengths(ids)

    def weights(self, ids: np.ndarray) -> np.ndarray:
        """Return the weight of each example in the loss, float64 [n]."""
        return self.source.weights(ids)

    def loss_counts(self, ids: np.ndarray) -> np.ndarray:
        """Return the number of losses of each example, float64 [n]: 1, or the sum of the weights of its labels."""
        task, (shape, _) = getattr(self.source, "task", None), self.specs["labels"]
        if task is None or not self.transforms_labels:
            return self.source.loss_counts(ids)
        if not shape:
            return np.ones(len(ids))
        return count_losses(task, self._transform(ids, ids)["labels"])

    @property
    def transforms_labels(self) -> bool:
        """Return whether a transform may change labels, because its `arrays` have labels or it has no `arrays`."""
        labels = self.label_names
        arrays = [getattr(step.transform, "arrays", labels) for step in self.transforms.steps]
        return any({*labels} & {*names} for names in arrays)

    @property
    def label_names(self) -> list[str]:
        """The names of the arrays of labels that the transforms get."""
        return ["labels"]

    def gather(self, ids: np.ndarray, batch: np.ndarray) -> Arrays:
        """Return the transformed examples. Ragged arrays are padded to the longest of the examples `batch`."""
        mixing = self.transforms.mixing
        if mixing is None:
            return self._transform(ids, batch)
        generator, partners = self._choose_partners(ids)
        unique_ids, rows = np.unique(np.concatenate((ids, partners)), return_inverse=True)
        arrays = self._transform(unique_ids, unique_ids)
        examples, partner_examples = (
            {name: array[half] for name, array in arrays.items()} for half in np.split(rows, 2)
        )
        return mixing.mix(examples, partner_examples, generator)

    def _choose_partners(self, ids: np.ndarray) -> tuple[np.random.Generator, np.ndarray]:
        """Return the generator of the global batch, and the partner of each example, int64 [n]."""
        batch_ids = ids if self.batch_ids is None else self.batch_ids
        generator = Streams().start(derive_keys(BATCHES, self.seed, self.epoch, np.array([self.step]))[0], 0)
        partners = batch_ids[generator.permutation(len(batch_ids))]
        order = np.argsort(batch_ids)
        return generator, partners[order[np.searchsorted(batch_ids, ids, sorter=order)]]

    def gather_unpadded(self, ids: np.ndarray) -> Arrays:
        """Return the arrays padded to the longest of `ids`."""
        return self.gather(ids, ids)

    def count_tokens(self, arrays: Arrays) -> int:
        """Return the number of tokens that a model computes for arrays of this split."""
        return self.source.count_tokens(arrays)

    def _transform(self, ids: np.ndarray, batch: np.ndarray) -> Arrays:
        """Return the examples after the transforms, but not mixed. Ragged arrays keep their padding and masks."""
        source, examples = gather_examples(self.source, ids, batch)
        streams = Streams()
        arrays = {}
        for name, (shape, dtype) in self.specs.items():
            sizes = [size for size in shape if size is not None]
            is_ragged = len(sizes) < len(shape)
            arrays[name] = source[name].astype(dtype) if is_ragged else np.empty((len(ids), *sizes), dtype)
        for row, key in enumerate(derive_keys(EXAMPLES, self.seed, self.epoch, ids)):
            example = examples[row]
            for step in self.transforms.steps:
                example = step.transform(example, streams.start(key, step.index))
            for name, array in example.items():
                shape, dtype = self.specs[name]
                expected = examples[row][name].shape if None in shape else shape
                if (array.shape, array.dtype) != (expected, dtype):
                    self._refuse(f"example {ids[row]}", name, array)
                arrays[name][row, ...][tuple(map(slice, array.shape))] = array  # the padding after a ragged row stays
        for name, limits in self.limits.items():
            if len(wrong := np.argwhere(limits.find_wrong(arrays[name]))):
                title, label = self._find_step(ids[wrong[0][0]], name, limits.find_wrong), arrays[name][tuple(wrong[0])]
                raise UserError(
                    f"{KEY}: {title} returns the label {label:g} for example {ids[wrong[0][0]]} ({name}), but the "
                    f"task and the model need labels {limits}; correct it"
                )
        for name, array in arrays.items():
            if array.dtype.kind == "f" and not np.isfinite(array).all():
                wrong = np.argwhere(~np.isfinite(array))
                title = self._find_step(ids[wrong[0][0]], name, lambda values: ~np.isfinite(values))
                raise UserError(f"{KEY}: {title} returns nan or infinity in {name} of example {ids[wrong[0][0]]}")
        return {**{name: array for name, array in source.items() if name not in examples[0]}, **arrays}

    def _find_step(self, example_id: int, name: str, find_wrong: Callable[[np.ndarray], np.ndarray]) -> str:
        """Return the first transform that returns wrong values in an array of an example, or "the data"."""
        ids = np.array([example_id])
        _, (example,) = gather_examples(self.source, ids, ids)
        key, streams = derive_keys(EXAMPLES, self.seed, self.epoch, ids)[0], Streams()
        for step in self.transforms.steps:
            example = step.transform(example, streams.start(key, step.index))
            if name in example and find_wrong(example[name]).any():
                return step.name
        return "the data"

    def _refuse(self, title: str, name: str, array: np.ndarray) -> None:
        """Raise UserError for an array that has another shape or type than in the first example."""
        shape, dtype = self.specs[name]
        if None in shape:
            raise UserError(
                f"{KEY}: {name} becomes {array.dtype} {[*array.shape]} in {title}; examples of different lengths must "
                "keep their shape, and have the same type"
            )
        raise UserError(
            f"{KEY}: {name} becomes {dtype} {[*shape]} in the first example, but in {title} "
            f"{describe_arrays({name: array})}; return the same shape and type for every example"
        )


@dataclass(frozen=True)
class TransformedOutputsSplit(TransformedSplit):
    """A transformed split whose examples have labels of several outputs. The transforms get each array of labels."""

    source: MultiOutputSplit

    @property
    @override
    def label_names(self) -> list[str]:
        return list(self.source.label_columns)

    @property
    @override
    def example_shapes(self) -> dict[str, tuple[int | None, ...]]:
        """The shape of an example in every array. `labels` has the labels of all outputs, flat."""
        inputs = {name: shape for name, shape in super().example_shapes.items() if name not in self.label_names}
        first = np.arange(1)
        return {**inputs, "labels": self.transform_outputs(first).gather_labels(first).shape[1:]}

    @override
    def loss_counts(self, ids: np.ndarray) -> np.ndarray:
        """Return the number of losses of each example for each output, float64 [n, outputs]."""
        if not self.transforms_labels:
            return self.source.loss_counts(ids)
        return self.transform_outputs(ids).loss_counts(np.arange(len(ids)))

    @override
    def gather(self, ids: np.ndarray, batch: np.ndarray) -> Arrays:
        """Return the transformed inputs as `TransformedSplit` does, and `labels`: the labels of all outputs, flat."""
        arrays = self._transform(ids, batch)
        labels = {name: arrays.pop(name) for name in self.label_names}
        return {**arrays, "labels": self.source.replace_labels(labels).gather_labels(np.arange(len(ids)))}

    def gather_labels(self, ids: np.ndarray) -> np.ndarray:
        """Return the transformed labels of all outputs, flat, float64 [n, labels]."""
        return self.gather(ids, ids)["labels"]

    def transform_outputs(self, ids: np.ndarray) -> MultiOutputSplit:
        """Return the transformed labels of n examples as a split without inputs, whose ids are 0 to n - 1."""
        arrays = self._transform(ids, ids)
        return self.source.replace_labels({name: arrays[name] for name in self.label_names})


def transform_split(source: Split, transforms: TransformList, classes: int, seed: int) -> TransformedSplit:
    """Return a split with transforms.

    Args:
        source: The examples.
        transforms: The transforms, which are not yet bound to the examples.
        classes: The number of classes; 0 if the labels are not classes.
        seed: The seed of the run.

    Raises:
        UserError: A transform does not fit the examples.
    """
    ragged = [name for name, shape in source.example_shapes.items() if None in shape]
    if ragged and transforms.mixing is not None:
        raise UserError(f"{KEY}: {ragged[0]} has examples of different lengths, which cannot be mixed; pad them")
    first, streams, steps = np.arange(1), Streams(), []
    _, (example,) = gather_examples(source, first, first)
    key = derive_keys(EXAMPLES, seed, 0, first)[0]
    for step in transforms.steps:
        steps.append(Step(step.name, step.index, step.transform.bind(example)))
        before = {name: (example[name].shape, example[name].dtype) for name in ragged if name in example}
        example = steps[-1].transform(example, streams.start(key, step.index))
        check_types(step.name, example)
        _check_ragged(step.name, before, example)
    mixing = None if transforms.mixing is None else transforms.mixing.bind(example, classes)
    specs = {
        name: ((None, *array.shape[1:]) if name in ragged else array.shape, array.dtype)
        for name, array in example.items()
    }
    bound = TransformList(tuple(steps), mixing)
    if isinstance(source, MultiOutputSplit):
        return TransformedOutputsSplit(source, bound, specs, seed)
    return TransformedSplit(source, bound, specs, seed)


def _check_ragged(step: str, before: Mapping[str, tuple[tuple[int, ...], np.dtype[Any]]], after: Example) -> None:
    """Raise UserError if a transform changes the shape of an array whose lengths differ, or the type of such labels.

    A batch is padded before the transforms, and another type might not have the label that pads.
    """
    for name, (shape, dtype) in before.items():
        array = after[name]
        rule = "examples of different lengths must keep their shape" if array.shape != shape else ""
        if name == "labels" and array.dtype != dtype:
            rule = "labels of different lengths must keep their type"
        if rule:
            change = f"from {dtype} {[*shape]} to {array.dtype} {[*array.shape]}"
            raise UserError(f"{KEY}: {step}: changes {name} {change}; {rule}")


def check_types(name: str, example: Example) -> None:
    """Raise UserError if a transform returns an array of a type that batches never have."""
    for array_name, array in example.items():
        if array.dtype.name not in DTYPES:
            raise UserError(f"{KEY}: {name} returns {array_name} as {array.dtype}; return one of {', '.join(DTYPES)}")


def get_source(split: Split) -> Split:
    """Return the examples of a split before their transforms; the split itself if it has none."""
    return split.source if isinstance(split, TransformedSplit) else split
