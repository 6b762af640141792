"""Code between layers that computes different arrays in A and in B, with the arrays that it may use.

A is the reference run of a diagnosis, and B the run that is compared with it.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TypeVar

import numpy as np

from common.diagnose.explain.attention import list_masks
from common.diagnose.explain.reductions import list_reduced
from common.diagnose.explain.sums import Terms
from common.diagnose.rounding import is_close
from common.diagnose.zero_borders import strip_borders
from common.map.array_differences import compute_norm

NO_INPUTS = ("labels", "weights", "dropout_keys")  # arrays of a batch that no model receives
MOST_ELEMENTS = 2**20  # size of an array above which only some examples are explained, since all would take minutes
PLACES = "places"  # array that only a batch without padding has
EARLIER_LAYERS = 4  # number of preceding layers whose outputs the code may use


ChosenArray = TypeVar("ChosenArray", np.ndarray, np.ndarray | None)


@dataclass(frozen=True)
class LayerOutput:
    """The arrays that a layer before the code received and returned, in B's layout.

    Attributes:
        title: Title of the layer in reports.
        returned: The output of A's layer, which the code receives in A and in B; None: unknown.
        received_in_a: The input of A's layer; None: unknown.
        received_in_b: The array that B's code passed to the layer; None: unknown.
    """

    title: str
    returned: np.ndarray | None
    received_in_a: np.ndarray | None = None
    received_in_b: np.ndarray | None = None


@dataclass(frozen=True)
class CodeSection:
    """Code between layers that computes different arrays in A and in B.

    Attributes:
        tensor: Name of the array that differs, such as "input of classifier".
        title: Title of the layer that receives the array, or "the outputs".
        a: The array in A.
        b: The array in B, computed by B's code from the outputs of A's layers.
        earlier_outputs: Outputs of the layers that ran before, the latest last.
        batch: Arrays of the first micro-batch, the input of both models.
        weights: Weights of both models, by parameter name.
        reordered_outputs: Outputs of layers that run before the next layer on one side and after the next layer on the
            other side.
        part: Text for reports that names the part of the array in `a` and `b`; empty for the whole array.
        removed: Number of slices of zeros that were removed at the start of each axis; empty if nothing was removed.
        features: Start and end of the features in [n, features] that `a` and `b` have; None for all features.
    """

    tensor: str
    title: str
    a: np.ndarray
    b: np.ndarray
    earlier_outputs: Sequence[LayerOutput]
    batch: Mapping[str, np.ndarray]
    weights: Mapping[str, np.ndarray] = field(default_factory=dict)
    reordered_outputs: Sequence[LayerOutput] = ()
    part: str = ""
    removed: tuple[int, ...] = ()
    features: tuple[int, int] | None = None

    @property
    def is_first(self) -> bool:
        """Check whether the code receives the inputs of the model and no output of a layer."""
        return not self.earlier_outputs and self.a.ndim > 1 and self.a.dtype.kind == "f"

    @property
    def masks(self) -> dict[str, np.ndarray]:
        """Masks [n, tokens] by name: the batch's arrays of zeros and ones, and which token ids are not 0."""
        return list_masks(self.batch)

    @property
    def known_outputs(self) -> list[tuple[str, np.ndarray]]:
        """Titles and outputs of the layers that ran last before the code, the latest last.

        The outputs are flattened if the code flattens the examples.
        """
        return [
            (output.title, self._flatten(output.returned))
            for output in self.earlier_outputs[-EARLIER_LAYERS:]
            if output.returned is not None
        ]

    def _flatten(self, output: np.ndarray) -> np.ndarray:
        is_flattened = self.a.ndim == 2 < output.ndim and len(output) == len(self.a) and output.size == self.a.size
        return output.reshape(self.a.shape) if is_flattened else output

    def choose_features(self, output: np.ndarray) -> np.ndarray:
        """Return the features of an output [n, ..., features] that this part of the code has, such as one direction."""
        start, end = self.features or (0, output.shape[-1])
        is_longer = self.features is not None and output.ndim > 2 and output.shape[-1] >= end > self.a.shape[-1]
        return output[..., start:end] if is_longer else output

    def list_terms(self, side: str) -> Terms:
        """Return the inputs and outputs of the last layers before the code on a side, in order, with titles."""
        terms = []
        for output in self.earlier_outputs[-EARLIER_LAYERS:]:
            received = output.received_in_a if side == "a" else output.received_in_b
            terms += [(f"the input of {output.title}", received), (f"the output of {output.title}", output.returned)]
        return [
            (name + title, term)
            for title, array in terms
            if array is not None and array.dtype.kind == "f" and np.isfinite(array).all()
            for name, term in list_reduced(array, self.a.shape)
        ]

    @cached_property
    def shared_terms(self) -> Terms:
        """The arrays that the code of both sides may use: the batch, and inputs and outputs of layers, the latest last.

        The arrays are flattened if the code flattens the examples. An array that two layers receive is listed once.
        """
        terms = [(f"the batch's {name}", array) for name, array in self.batch.items() if name not in NO_INPUTS]
        terms.extend(self.reordered_terms)
        for output in self.earlier_outputs:
            received, received_in_b = output.received_in_a, output.received_in_b
            if received is not None and received_in_b is not None and is_close(received, received_in_b):
                terms.append((f"the input of {output.title}", received))
            if output.returned is not None:
                terms.append((f"the output of {output.title}", output.returned))
        distinct: dict[tuple[tuple[int, ...], float, float], tuple[str, np.ndarray]] = {}
        for title, array in terms:
            if array.dtype.kind == "f" and array.ndim > 1 and np.isfinite(array).all():
                distinct.setdefault(
                    (array.shape, float(array.sum()), float(array.flat[0])), (title, self._flatten(array))
                )
        return list(distinct.values())

    def list_differing_inputs(self, side: str) -> Terms:
        """Return the inputs of earlier layers on a side that differ from the inputs on the other side."""
        return [
            (f"the input of {output.title}", received)
            for output in self.earlier_outputs
            if (received := output.received_in_a if side == "a" else output.received_in_b) is not None
            and output.received_in_a is not None
            and output.received_in_b is not None
            and received.dtype.kind == "f"
            and np.isfinite(received).all()
            and not is_close(output.received_in_a, output.received_in_b)
        ]

    @property
    def reordered_terms(self) -> Terms:
        """The outputs of layers that one side runs before the code, and the other side after the next layer."""
        return [
            (f"the output of {output.title}", output.returned)
            for output in self.reordered_outputs
            if output.returned is not None
        ]

    @property
    def place(self) -> str:
        """The place of the code in reports."""
        place = f"before {self.title}"
        if self.earlier_outputs:
            place = f"between {self.earlier_outputs[-1].title} and {self.title}"
        return f"{place}, {self.part}" if self.part else place

    @property
    def described_tensor(self) -> str:
        """Name of the array in reports, with its part."""
        return f"{self.tensor}, {self.part}," if self.part else self.tensor

    def limit_examples(self) -> "CodeSection":
        """Return the section; if its arrays are large, only with the examples that differ most."""
        total = len(self.a) if self.a.ndim > 1 else 0
        count = max(2, MOST_ELEMENTS * total // max(self.a.size, 1))
        if count >= total or PLACES in self.batch:  # tokens without padding have no first axis of examples
            return self
        gaps = [compute_norm(a - b) for a, b in zip(self.a, self.b, strict=True)]
        chosen = np.sort(np.argsort(gaps)[-count:])

        def choose(array: ChosenArray) -> ChosenArray:
            return array if array is None or len(array) != total else array[chosen]

        def choose_of_layers(outputs: Sequence[LayerOutput]) -> list[LayerOutput]:
            return [
                LayerOutput(
                    output.title,
                    choose(output.returned),
                    choose(output.received_in_a),
                    choose(output.received_in_b),
                )
                for output in outputs
            ]

        return replace(
            self,
            a=choose(self.a),
            b=choose(self.b),
            earlier_outputs=choose_of_layers(self.earlier_outputs),
            reordered_outputs=choose_of_layers(self.reordered_outputs),
            batch={name: choose(array) for name, array in self.batch.items()},
            part=f"in the {count} examples that differ most",
        )

    def list_parts(self) -> Iterator["CodeSection"]:
        """Yield the section, and parts of its arrays that may have an explanation even if the whole has none.

        The parts are the arrays without the zeros around both, without axes of a single token, and the only block that
        differs along an axis, such as one of several joined arrays.
        """
        if (stripped := strip_borders(self.a, self.b)) is not None:
            a, b, removed = stripped
            yield from replace(self, a=a, b=b, removed=removed).list_parts()
        yield self
        if self.a.ndim > 2 and self.a.size == len(self.a) * self.a.shape[-1]:
            a, b = (array.reshape(len(array), -1) for array in (self.a, self.b))
            removed = (self.removed[0], self.removed[-1]) if self.removed else ()
            yield from replace(self, a=a, b=b, removed=removed).list_parts()
            return
        for axis in reversed(range(1, self.a.ndim)):
            slices = [np.moveaxis(array, axis, 0) for array in (self.a, self.b)]
            differing = [index for index, pair in enumerate(zip(*slices, strict=True)) if not is_close(*pair)]
            start, end = (differing[0], differing[-1] + 1) if differing else (0, 0)
            if 0 < end - start == len(differing) < self.a.shape[axis]:
                chosen = tuple(slice(start, end) if other == axis else slice(None) for other in range(self.a.ndim))
                offset = self.removed[axis] if self.removed else 0
                elements = f"in the elements {start + offset} to {end - 1 + offset} of axis {axis}"
                part = f"{self.part}, {elements}" if self.part else elements
                features = (start, end) if self.a.ndim == 2 and not self.removed else None
                yield replace(self, a=self.a[chosen], b=self.b[chosen], part=part, features=features)
