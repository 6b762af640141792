"""Gradients of the outputs of a user's model, for common.map."""

from collections.abc import Collection, Mapping

import keras
import numpy as np
import tensorflow as tf

from common.errors import UserError, describe_error
from common.map.description import Arrays, GradientSummary
from common.map.gradient_summary import summarize_gradients
from tf_impl.described_state import get_state, view_tensor


class DifferentiatedModel:
    """A model whose last forward pass can be differentiated. A subclass computes the pass and sets the attributes.

    Attributes:
        key: The config key that names the factory; errors begin with it.
        factory: The user's factory as module:function.
        model: The model.
        tape: The tape that recorded the last pass.
        last_outputs: The outputs of the last pass by name.
        last_gradients: The gradients that `compute_gradients` has computed since the last pass.
        unconnected: The variables through which the last gradients found no path to the outputs.
    """

    key: str
    factory: str
    model: keras.Layer
    tape: tf.GradientTape
    last_outputs: dict[str, tf.Tensor]
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
        trainable = {name: variable for name, variable in get_state(self.model).items() if _is_trained(variable)}
        outputs = [self.last_outputs[name] for name in projections]
        factors = [tf.cast(array, output.dtype) for array, output in zip(projections.values(), outputs, strict=True)]
        sources = [variable.value for variable in trainable.values()]
        try:
            computed = self.tape.gradient(outputs, sources, factors)
        except Exception as error:
            raise UserError(f"{self.key}={self.factory}: its backward pass raised {describe_error(error)}") from error
        connected = {name: x for name, x in zip(trainable, computed, strict=True) if x is not None}
        self.unconnected = trainable.keys() - connected.keys()
        return {
            name: view_tensor(tf.convert_to_tensor(connected[name])) if name in connected else np.zeros(variable.shape)
            for name, variable in trainable.items()
        }


def _is_trained(variable: keras.Variable) -> bool:
    return variable.trainable and "float" in variable.dtype
