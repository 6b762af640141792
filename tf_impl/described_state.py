"""Reading and setting the variables of a model for common.map."""

from collections.abc import Callable, Mapping
from contextlib import suppress

import keras
import numpy as np
import tensorflow as tf

from common.errors import UserError
from common.map.changing_buffers import compute_checksums
from common.map.description import Arrays
from common.map.keras_paths import SEED_STATE, variables_by_path

# Factors and terms that move a variable out of its range, if it has one: factor * variable + term. No number stays
# close to 0 in both moves.
FAR_MOVES = ((-10.0, -10.0), (10.0, 30.0))


def get_state(model: keras.Layer) -> dict[str, keras.Variable]:
    """Return the variables by path, except for the states of random generators."""
    return {path: variable for path, variable in variables_by_path(model).items() if variable.name != SEED_STATE}


def view_state(model: keras.Layer) -> dict[str, np.ndarray]:
    """Return the values of the variables by path. Arrays of float64 share the memory of their variables."""
    return {path: view_tensor(tf.convert_to_tensor(variable.value)) for path, variable in get_state(model).items()}


def view_tensor(tensor: tf.Tensor) -> np.ndarray:
    """Return the values of a tensor: in its memory if it is of float64, otherwise as a copy."""
    return np.asarray(memoryview(tensor)) if tensor.dtype == tf.float64 else np.asarray(tensor.numpy())


def read_state(model: keras.Layer) -> dict[str, np.ndarray]:
    """Return copies of these variables by path."""
    return {path: variable.numpy() for path, variable in get_state(model).items()}


def set_state(model: keras.Layer, arrays: Mapping[str, np.ndarray]) -> None:
    """Set some of these variables."""
    variables = get_state(model)
    for path, array in arrays.items():
        variables[path].assign(array)


def find_restricted(model: keras.Layer, before: Arrays, compute: Callable[[], object]) -> list[str]:
    """Return the paths of the trainable variables that a forward pass moves back into a range, such as a clamp does.

    In their range, such a pass does not change them. The model keeps its trainable variables.

    Args:
        model: The model.
        before: Its variables.
        compute: A function that computes a pass, and may raise UserError.
    """
    variables = {path: variable for path, variable in get_state(model).items() if variable.trainable and path in before}
    others = {path: array for path, array in before.items() if path not in variables}
    restricted: set[str] = set()
    for factor, offset in FAR_MOVES:
        for path, variable in variables.items():  # one after the other, because each array takes memory
            moved_array = np.asarray(factor * before[path])
            moved_array += offset
            variable.assign(moved_array)
        moved = compute_checksums(view_state(model))
        with suppress(UserError):  # the model may not accept such values
            compute()
        after = compute_checksums(view_state(model))
        restricted |= {path for path in variables if after.get(path) != moved[path]}
        set_state(model, others)
    set_state(model, before)
    return sorted(restricted)
