"""Files with the weights of a user's model: NAME.weights.h5, NAME.weights.json with its shards, and NAME.keras."""

import tempfile
from collections.abc import Mapping
from pathlib import Path

import keras
import numpy as np

from common.errors import UserError, build_write_error, describe_error
from common.map.description import Arrays
from common.models.keras_file import has_optimizer, read_keras_file
from common.models.loaded_weights import LoadedWeights, fit_types, is_floating, list_names
from tf_impl.described_state import read_state, set_state
from tf_impl.keras_two import KerasTwoModel

MAX_SHARD_GIB = 5.0  # the size of the shards of NAME.weights.json


def load_weight_file(model: keras.Layer, location: str, path: Path) -> LoadedWeights:
    """Load a file into a model, after checks of all names, shapes, types and values.

    Args:
        model: The model.
        location: The key and the file for errors, such as weights=model.pt.
        path: The path of the file.

    Raises:
        UserError: The file cannot be read without running code, or does not fit the model.
    """
    _check_keras_three(model, location)
    with tempfile.TemporaryDirectory(prefix="lockstep-") as directory:
        own_path = Path(directory, "own.weights.h5")
        save_weight_file(model, location, own_path)
        expected = read_keras_file(location, own_path)
    loaded = fit_types(location, read_keras_file(location, path, expected), expected)
    changed = {name: array * 1.5 + 1 for name, array in read_weights(model).items() if is_floating(array)}
    set_weights(model, changed)
    notes = ["the slots of the optimizer are left out"] if has_optimizer(location, path) else []
    try:
        keras.saving.load_weights(model, path)
    except Exception as error:
        raise UserError(f"{location}: cannot be loaded ({describe_error(error)}); save it again") from error
    arrays = read_weights(model)
    if unsaved := [name for name, array in changed.items() if np.array_equal(arrays[name], array)]:
        raise UserError(f"{location}: does not restore {list_names(unsaved)}; let the model save these variables")
    return LoadedWeights(arrays, [*notes, *loaded.notes])


def save_weight_file(model: keras.Layer, location: str, path: Path) -> None:
    """Save the weights of a model.

    Args:
        model: The model.
        location: The key and the file for errors, such as weights=model.pt.
        path: The path of the file.

    Raises:
        UserError: The file cannot be written.
    """
    _check_keras_three(model, location)
    try:
        keras.saving.save_weights(model, path, max_shard_size=MAX_SHARD_GIB if path.suffix == ".json" else None)
    except Exception as error:
        raise build_write_error(location, error) from error


def read_weights(model: keras.Layer) -> Arrays:
    """Return copies of the variables by path, in their own types."""
    return read_state(model)


def set_weights(model: keras.Layer, arrays: Mapping[str, np.ndarray]) -> None:
    """Set some of the variables."""
    set_state(model, arrays)


def _check_keras_three(model: keras.Layer, location: str) -> None:
    """Raise UserError if a model is one of Keras 2, whose files have other names."""
    if isinstance(model, KerasTwoModel):
        raise UserError(
            f"{location}: model.tf returns a model of Keras 2, whose files are not converted; give the model of Keras "
            "3, or start a run from the file with model.checkpoint"
        )
