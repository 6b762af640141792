"""Variables that no output of a model depends on, such as a head whose output the model does not return."""

from collections.abc import Collection
from dataclasses import replace
from typing import Protocol

import numpy as np

from common.map.array_differences import compute_norm
from common.map.description import Arrays, ModelDescription
from common.map.mixed_examples import BatchModel
from common.map.torch_layers import RECURRENT_KINDS

VARIANCES = {"running_var", "moving_variance"}  # roles of moving variances
WHOLE_KINDS = {*RECURRENT_KINDS, "MultiheadAttention"}  # layers that are described with all of their variables or none


def draw_constants(weights: Arrays, description: ModelDescription, seed: int) -> Arrays:
    """Return the weights of a model with random values in place of constant arrays, and with larger matrices.

    Zeros and ones, such as the initial bias and scale of a layer, would hide an error. Small matrices, which many
    libraries draw, would hide it, too: after some layers no digit of the outputs would depend on the inputs.
    """
    variances = {name for layer in description.layers for role, name in layer.variables.items() if role in VARIANCES}
    stream = np.random.default_rng(seed)
    drawn = dict(weights)
    for name, array in weights.items():
        is_constant = array.dtype.kind == "f" and array.size > 0 and np.ptp(array) == 0
        if name in variances or (is_constant and name in description.buffers):  # may be a variance or a count
            drawn[name] = stream.uniform(0.5, 2, array.shape)
        elif is_constant and not description.variables[name].is_constant:
            drawn[name] = array + 0.2 * stream.standard_normal(array.shape)
        elif array.dtype.kind == "f" and array.ndim > 1 and array.any() and name not in description.buffers:
            drawn[name] = array * _get_gain(array, description.is_keras)
    return drawn


def _get_gain(array: np.ndarray, is_keras: bool) -> float:
    """Return the factor, at least 1, after which a matrix or kernel no longer shrinks random vectors.

    Args:
        array: The parameter, whose outputs are the first axis in PyTorch and the last one in Keras.
        is_keras: Whether it has Keras's layout.
    """
    inputs = array.size / array.shape[-1 if is_keras else 0]
    return max(1.0, 1 / (np.sqrt(inputs) * compute_norm(array) / np.sqrt(array.size)))


class WeightedModel(BatchModel, Protocol):
    """A model of either framework whose variables can be read."""

    def weights(self) -> Arrays:
        """Return copies of all variables by name."""
        ...


def find_unused(model: WeightedModel, description: ModelDescription, seed: int) -> set[str]:
    """Return the names of the trained variables that no output depends on: their gradients are zero.

    The model computes a pass in evaluation mode with random values in place of constant weights. It keeps its weights.
    """
    weights = model.weights()
    outputs = model.compute(draw_constants(weights, description, seed), training=False).outputs
    stream = np.random.default_rng(seed)
    projections = {
        name: stream.standard_normal(array.shape) for name, array in outputs.items() if array.dtype.kind == "f"
    }
    gradients = model.gradients(projections)
    model.compute(weights, training=False)
    return {name for name, gradient in gradients.items() if not gradient.any()}


def leave_out(description: ModelDescription, unused: Collection[str], unmatched: Collection[str]) -> ModelDescription:
    """Return a description in which unused variables belong to no layer.

    A variable is left out only if an unmatched variable has its shape, because only then can it be what the other model
    lacks. Others may be unused with these examples only, such as an expert that no example reaches. A recurrent layer
    or an attention keeps its variables unless all of them are left out.

    Args:
        description: The description of a model.
        unused: The names of its unused variables.
        unmatched: The names of its variables that have no counterpart.
    """
    shapes = {description.variables[name].shape for name in unmatched}
    names = {name for name in unused if description.variables[name].shape in shapes}
    layers = []
    for layer in description.layers:
        used = {role: name for role, name in layer.variables.items() if name not in names}
        if used and layer.kind in WHOLE_KINDS:
            used = dict(layer.variables)
            names -= {*used.values()}
        layers.append(replace(layer, variables=used))
    return replace(
        description,
        layers=[layer for layer in layers if layer.variables],
        unused=[*description.unused, *(name for name in description.variables if name in names)],
    )
