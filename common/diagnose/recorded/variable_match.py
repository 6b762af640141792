"""A variable of one record and its counterpart in the other record: how the arrays of both are read and written.

A is the reference record of a diagnosis, and B the record that is compared with it. The layout in which both sides are
compared is the common layout.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from common.map.pair_variables import VariablePair

Arrays = Mapping[str, np.ndarray]
# Last words of the names of variables that hold statistics of the data, which scripts set themselves
VARIANCE, DEVIATION = re.compile(r"(^|_)var(iance)?s?$"), re.compile(r"(^|_)(std|stds|stdev|stddev|std_dev|sigma)$")


class ReadArray(Protocol):
    """Function that returns the array of a variable, given all arrays of its side by name; None if it is missing."""

    def __call__(self, arrays: Arrays, is_gradient: bool = False) -> np.ndarray | None:
        """Return the array in the common layout. `is_gradient`: whether the arrays are gradients or slots."""


WriteArray = Callable[[np.ndarray, dict[str, np.ndarray]], None]


@dataclass(frozen=True)
class VariableMatch:
    """A variable of A and its counterpart in B.

    Attributes:
        title: Name of the pair in reports.
        names_a: Names of A's variables that belong to the pair.
        names_b: Names of B's variables that belong to the pair.
        read_a: Function from A's arrays by name to the pair's array in the common layout; None if it is missing.
        read_b: The same function for B's arrays.
        write_b: Function that writes an array in the common layout into B's arrays by name, in place.
        is_sum: Whether one side adds its variables of the pair, such as the two biases of PyTorch's LSTM.
    """

    title: str
    names_a: tuple[str, ...]
    names_b: tuple[str, ...]
    read_a: ReadArray
    read_b: ReadArray
    write_b: WriteArray
    is_sum: bool = False


def are_other_statistics(match: VariableMatch) -> bool:
    """Check whether one side has a variance and the other a standard deviation, whose shapes are the same."""
    roles = [re.split(r"[./]", names[0])[-1] for names in (match.names_a, match.names_b)]
    return any(VARIANCE.search(role) and DEVIATION.search(other) for role, other in (roles, roles[::-1]))


def _read_by_name(name: str) -> ReadArray:
    def read(arrays: Arrays, is_gradient: bool = False) -> np.ndarray | None:
        return arrays.get(name)

    return read


def read_sum(names: tuple[str, ...]) -> ReadArray:
    """Return a function that reads the first of several variables, or the sum of their gradients."""

    def read(arrays: Arrays, is_gradient: bool = False) -> np.ndarray | None:
        gradients = [arrays[name] for name in names if is_gradient and name in arrays]
        if len(gradients) < 2:
            return arrays.get(names[0])
        return np.sum(gradients, axis=0)

    return read


def write_by_name(names: tuple[str, ...]) -> WriteArray:
    """Return a function that writes an array to each of several names of one variable."""

    def write(array: np.ndarray, arrays: dict[str, np.ndarray]) -> None:
        arrays.update(dict.fromkeys(names, array))

    return write


def match_frameworks(pair: VariablePair, a_is_torch: bool) -> VariableMatch:
    """Return the match of a variable of Keras and the parameters of PyTorch from which it is computed."""
    names, transformation = tuple(source.name for source in pair.transformation.sources), pair.transformation

    def read_torch(arrays: Arrays, is_gradient: bool = False) -> np.ndarray | None:
        convert = transformation.gradient_to_keras if is_gradient else transformation.to_keras
        try:
            return convert(arrays)
        except (KeyError, ValueError):  # a tensor is missing, or of another shape
            return None

    read_keras, write_keras = _read_by_name(pair.keras), write_by_name((pair.keras,))
    title = join_titles(names[0], pair.keras) if a_is_torch else join_titles(pair.keras, names[0])
    is_sum = transformation.joined == "+"
    if a_is_torch:
        return VariableMatch(title, names, (pair.keras,), read_torch, read_keras, write_keras, is_sum)
    return VariableMatch(title, (pair.keras,), names, read_keras, read_torch, transformation.to_torch, is_sum)


def join_titles(a: str, b: str) -> str:
    """Return the name of a pair in reports."""
    return a if a == b else f"{a} | {b}"
