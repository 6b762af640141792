"""Models and losses that mix the examples of a batch: their output for an example depends on the other examples.

Replicas that compute parts of a batch would then compute different values. To find such a model, it is computed twice
in evaluation mode: on a batch, and on a batch of copies of one of its examples. Both passes must return the same for
this example, and the second pass must return the same for all copies.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from common.errors import UserError
from common.map.array_differences import compute_norm, relative_difference
from common.map.description import Arrays, ComputedPass, RecordedCall

TOLERANCE = 1e-9  # larger than the rounding errors of a float64 pass
GRADIENT_TOLERANCE = 1e-5  # larger than the rounding errors of float32; some models compute gradients in it
FACTORS = np.random.default_rng(0).standard_normal(64)  # of the neighboring elements that `sketch_array` adds
SMALL_SHARE = 1e-2  # a smaller gradient is compared relative to this share of the norm of the largest gradient


@dataclass(frozen=True)
class BatchPass:
    """A forward pass on a batch: the outputs by name, and the first call of each layer by path."""

    outputs: Arrays
    calls: Mapping[str, RecordedCall]


class BatchModel(Protocol):
    """A model of either framework, with the tensors of a batch."""

    inputs: dict[str, Any]
    unconnected: set[str]  # the parameters through which the last `gradients` found no path to the outputs

    def compute(self, weights: Arrays, training: bool) -> ComputedPass:
        """Compute a forward pass, and return its outputs. Raise UserError if it fails."""
        ...

    def gradients(self, projections: Arrays) -> Arrays:
        """Return the gradients of the last outputs by parameter, from their projections by name."""
        ...


def choose_example(count: int) -> int:
    """Return the index of the example that is copied: one in the middle, as a layer may mix only earlier examples."""
    return count // 2


def find_mixing_layer(batch: BatchPass, copies: BatchPass) -> str | None:
    """Return the first layer that mixes examples, or None. "the model" says that only code outside of the layers does.

    Args:
        batch: The pass on the batch.
        copies: The pass on copies of the example that `choose_example` returns, as many as the batch has examples.
    """
    counts = {len(array) for array in batch.outputs.values() if array.ndim}
    if len(counts) != 1:
        return None
    (count,) = counts
    outputs = ((array, copies.outputs[name]) for name, array in batch.outputs.items())
    # An output that is the same for other examples has no examples in its rows.
    if not any(_differs(a, b, count) and not np.array_equal(a, b) for a, b in outputs):
        return None
    layers = (
        path
        for path, call in batch.calls.items()
        if path != "model" and path in copies.calls and _differs(call.returned, copies.calls[path].returned, count)
    )
    return next(layers, "the model")


@dataclass(frozen=True)
class BatchGradients:
    """Observations of the gradients of a batch in evaluation mode.

    Attributes:
        mixed: The first parameter whose gradient is not the sum of its gradients for both halves of the batch, or None.
        unused: The parameters on which no output depends; None if these gradients do not show it.
    """

    mixed: str | None = None
    unused: set[str] | None = None


def observe_gradients(model: BatchModel, batch_outputs: Arrays) -> BatchGradients:
    """Find out whether gradients mix examples, and which parameters are unused.

    A hook on a tensor or a custom gradient may mix examples.

    The gradients of the halves are computed from a doubled loss and divided by 2, because strategies differ in the
    scale of the gradients that a hook sees.

    Args:
        model: The model. Its inputs are restored.
        batch_outputs: Its outputs for all examples, by name.
    """
    batch = model.inputs
    count = len(next(iter(batch.values())))
    if count < 2:
        return BatchGradients()
    floating = {name for name, array in batch_outputs.items() if array.dtype.kind == "f"}
    stream = np.random.default_rng(0)
    projections = {
        name: stream.standard_normal(array.shape)
        for name, array in batch_outputs.items()
        if name in floating and array.shape[:1] == (count,)
    }
    sums: Arrays = {}
    try:
        for rows in (slice(count // 2), slice(count // 2, None)):
            model.inputs = {name: tensor[rows] for name, tensor in batch.items()}
            outputs = model.compute({}, training=False).outputs
            # Use only outputs whose rows are examples, and whose other sizes do not depend on the batch.
            matching = {
                name: array
                for name, array in projections.items()
                if name in outputs and outputs[name].shape == array[rows].shape
            }
            if not matching or (sums and matching.keys() != projections.keys()):
                return BatchGradients()
            projections = matching
            halves = model.gradients({name: 2 * array[rows] for name, array in projections.items()})
            for name, half in halves.items():
                sums[name] = sums.get(name, 0) + sketch_array(half)
            del halves  # they take as much memory as the model
        model.inputs = batch
        model.compute({}, training=False)
        gradients = model.gradients(projections)
        whole = {name: sketch_array(gradient) for name, gradient in gradients.items()}
    except UserError:  # the model may accept this number of examples only
        return BatchGradients()
    finally:
        model.inputs = batch
    min_norm = SMALL_SHARE * max((compute_norm(gradient) for gradient in whole.values()), default=0)
    differing = (
        name for name in whole if relative_difference(whole[name], sums[name] / 2, min_norm) > GRADIENT_TOLERANCE
    )
    unused = _find_unused(model, gradients) if projections.keys() == floating else None
    return BatchGradients(next(differing, None), unused)


def sketch_array(array: np.ndarray) -> np.ndarray:
    """Return sums of neighboring elements, each times a random factor. Arrays that differ have other sums.

    The sums have about the norm of the array, but take less memory: there is one for len(FACTORS) elements.
    """
    elements = array.ravel()
    end = len(elements) - len(elements) % len(FACTORS)
    sums = np.einsum("ij,j->i", elements[:end].reshape(-1, len(FACTORS)), FACTORS)
    return np.append(sums, elements[end:] @ FACTORS[: len(elements) - end])


def _find_unused(model: BatchModel, gradients: Arrays) -> set[str] | None:
    """Return the parameters without a path to the outputs. Return None if a gradient of another parameter is zero.

    Such a parameter may be used, because other weights, such as zeros, can make its gradient zero.
    """
    zero = {name for name, gradient in gradients.items() if not gradient.any()}
    return zero if zero == model.unconnected else None


def mixes_examples(batch: np.ndarray, copies: np.ndarray, index: int) -> bool:
    """Check whether values of a batch and of copies of one of its examples show that the examples are mixed.

    Args:
        batch: Values [n, ...] of the examples of a batch.
        copies: The same for n copies of one example.
        index: The index of this example in the batch.
    """
    expected = np.broadcast_to(batch[index], copies.shape)
    return bool(np.isfinite(batch[index]).all()) and relative_difference(expected, copies) > TOLERANCE


def _differs(a: np.ndarray | None, b: np.ndarray | None, count: int) -> bool:
    """Check whether the outputs of a layer for a batch and for copies of one example show that it mixes examples."""
    if a is None or b is None or a.shape != b.shape or a.shape[:1] != (count,) or a.dtype.kind != "f":
        return False
    return mixes_examples(a, b, choose_example(count))
