"""Gradients of the outputs of a user's module, for common.map."""

from collections.abc import Collection, Mapping

import numpy as np
import torch

from common.errors import UserError, describe_error
from common.map.description import Arrays, GradientSummary
from common.map.gradient_summary import summarize_gradients
from torch_impl.float64 import keep_float64


class DifferentiatedModel:
    """A module whose last forward pass can be differentiated. A subclass computes the pass and sets the attributes.

    Attributes:
        key: The config key that names the factory; errors begin with it.
        factory: The user's factory as module:function.
        model: The module.
        last_outputs: The outputs of the last pass by name.
        last_gradients: The gradients that `compute_gradients` has computed since the last pass.
        unconnected: The parameters through which the last gradients found no path to the outputs.
    """

    key: str
    factory: str
    model: torch.nn.Module
    last_outputs: dict[str, torch.Tensor]
    last_gradients: Arrays
    unconnected: set[str]

    def compute_gradients(self, projections: Mapping[str, np.ndarray]) -> dict[str, GradientSummary]:
        """Compute gradients as `gradients` does, keep them until the next pass, and return summaries of them."""
        self.last_gradients = self.gradients(projections)
        return summarize_gradients(self.last_gradients)

    def read_gradients(self, names: Collection[str]) -> dict[str, np.ndarray]:
        """Return the last gradients of some variables by name."""
        return {name: array for name, array in self.last_gradients.items() if name in names}

    def gradients(self, projections: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Return the gradients of the sum of all elements of the last outputs, each output times its projection.

        Call this method once after `compute`.

        Args:
            projections: An array of the shape of the output for each floating-point output, by name.

        Raises:
            UserError: The backward pass failed.
        """
        trainable = {name: parameter for name, parameter in self.model.named_parameters() if parameter.requires_grad}
        loss = sum((self.last_outputs[name] * torch.from_numpy(array)).sum() for name, array in projections.items())
        assert isinstance(loss, torch.Tensor)
        self.unconnected = set(trainable)
        if not trainable or not loss.requires_grad:
            return {name: np.zeros(parameter.shape) for name, parameter in trainable.items()}
        try:
            with keep_float64():  # activation checkpointing computes layers again
                gradients = torch.autograd.grad(loss, list(trainable.values()), allow_unused=True)
        except Exception as error:
            raise UserError(f"{self.key}={self.factory}: its backward pass raised {describe_error(error)}") from error
        connected = {name: x for name, x in zip(trainable, gradients, strict=True) if x is not None}
        self.unconnected -= connected.keys()
        return {
            name: connected[name].to_dense().numpy() if name in connected else np.zeros(parameter.shape)
            for name, parameter in trainable.items()
        }
