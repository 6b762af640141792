"""The variables of a model that common.map describes."""

from collections.abc import Mapping

import keras
import numpy as np

from tf_impl.described_dropout import SEED_STATE
from tf_impl.keras_paths import variables_by_path


def get_state(model: keras.Layer) -> dict[str, keras.Variable]:
    """Return the variables by path, except for the states of random generators."""
    return {path: variable for path, variable in variables_by_path(model).items() if variable.name != SEED_STATE}


def read_state(model: keras.Layer) -> dict[str, np.ndarray]:
    """Return copies of these variables by path."""
    return {path: np.array(variable) for path, variable in get_state(model).items()}


def set_state(model: keras.Layer, arrays: Mapping[str, np.ndarray]) -> None:
    """Set some of these variables."""
    variables = get_state(model)
    for path, array in arrays.items():
        variables[path].assign(array)
