"""Weights that a side has loaded from a file into a user's model, and the checks that both sides make first."""

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

import numpy as np

from common.errors import UserError
from common.map.description import Arrays
from common.models.weight_files import FLOAT_TYPES

MAX_NAMES = 3  # the number of names that a sentence lists
UNREAD = 0.7390851332151607  # a value of variables before a file is read, which no file has


@dataclass(frozen=True)
class LoadedWeights:
    """The weights of a model that has loaded a file.

    Attributes:
        arrays: The variables by name, in the types of the model.
        notes: Sentences about differences between the file and the model that are not errors.
    """

    arrays: Arrays
    notes: list[str] = field(default_factory=list)


def check_all_read(path: str, weights: Arrays) -> None:
    """Raise UserError if a file has left a variable as it was, with UNREAD in all elements."""
    unread = [
        name for name, array in weights.items() if is_floating(array) and (array == array.dtype.type(UNREAD)).all()
    ]
    if unread:
        raise UserError(f"model.checkpoint={path}: has no {list_names(unread)}; give the checkpoint of this model")


def fit_types(location: str, stored: Mapping[str, np.ndarray], initial: Arrays) -> LoadedWeights:
    """Convert the arrays of a file to the types of the model's variables.

    Args:
        location: The key and the file for errors, such as weights=model.pt.
        stored: The arrays by the names of `initial`; names may be missing.
        initial: The model's own variables by name.

    Raises:
        UserError: An array has another shape or kind of type than its variable, or has values that are not finite.
    """
    fitted, changes = {}, Counter[tuple[str, str, bool]]()
    for name, array in stored.items():
        variable = initial[name]
        check_shape(location, name, array.shape, variable.shape)
        fitted[name] = _convert(location, name, array, variable)
        if array.dtype.name != variable.dtype.name and is_floating(variable):  # names do not tell the order of bytes
            is_same = np.array_equal(fitted[name].astype(np.float64), array.astype(np.float64), equal_nan=True)
            changes[array.dtype.name, variable.dtype.name, is_same] += 1
    notes = [
        f"{count_tensors(count)} of {old} {'become' if count > 1 else 'becomes'} {new}, the type of the model, "
        f"{'which holds all values exactly' if is_same else 'and values are rounded'}"
        for (old, new, is_same), count in changes.items()
    ]
    return LoadedWeights(fitted, notes)


def check_names(location: str, stored: Collection[str], expected: Collection[str]) -> None:
    """Raise UserError if a file lacks some of the expected names, or has others."""
    missing = [name for name in expected if name not in stored]
    superfluous = [name for name in stored if name not in expected]
    if missing:
        raise UserError(
            f"{location}: has no {list_names(missing)}, which the model has; give the file of this model, or let the "
            "factory build the model of this file"
        )
    if superfluous:
        raise UserError(
            f"{location}: has {list_names(superfluous)}, which the model lacks; let the factory build the model of "
            "this file, or remove these tensors from the file"
        )


def check_shape(location: str, name: str, stored: tuple[int, ...], own: tuple[int, ...]) -> None:
    """Raise UserError if a stored array does not have the shape of its variable."""
    if stored != own:
        raise UserError(
            f"{location}: {name} has the shape {list(stored)}, the model's {list(own)}; give the file of this model"
        )


def check_finite(location: str, name: str, array: np.ndarray, own: np.ndarray) -> None:
    """Raise UserError if a stored array has values that are not finite, and the model's own array has none."""
    if is_floating(array) and not np.isfinite(array).all() and np.isfinite(own).all():
        raise UserError(
            f"{location}: {name} has values that are infinite or not a number; give a file of finite weights"
        )


def is_floating(array: np.ndarray) -> bool:
    """Check whether an array has floating-point numbers, bfloat16 included."""
    return array.dtype.name in FLOAT_TYPES


def list_names(names: Collection[str]) -> str:
    """Return the first names as text, and how many more there are."""
    first = ", ".join(list(names)[:MAX_NAMES])
    return first if len(names) <= MAX_NAMES else f"{first} and {len(names) - MAX_NAMES} more"


def count_tensors(count: int) -> str:
    """Return a number of tensors as text."""
    return f"{count} tensor{'s' if count > 1 else ''}"


def _convert(location: str, name: str, array: np.ndarray, own: np.ndarray) -> np.ndarray:
    """Convert an array to the type of the model's own array. Raise UserError if the type cannot hold the values."""
    if is_floating(array) != is_floating(own):
        raise UserError(
            f"{location}: {name} is {array.dtype.name}, the model's {own.dtype.name}; give the file of this model"
        )
    if not is_floating(own):
        if not np.array_equal(converted := array.astype(own.dtype), array):
            raise UserError(f"{location}: {name} is {array.dtype.name}, with values that {own.dtype.name} cannot hold")
        return converted
    with np.errstate(over="ignore"):
        converted = array.astype(own.dtype)
    check_finite(location, name, array, own)
    if not np.isfinite(converted).all() and np.isfinite(array).all():
        raise UserError(
            f"{location}: {name} has values beyond the range of {own.dtype.name}, the type of the model; let the "
            f"factory build the model in {array.dtype.name}"
        )
    return converted
