"""Random inputs of a model by name: `float32[8,16]`, `float32[8,32,32,channels=3]`, `int32[4,12]<1000`."""

import re
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from common.errors import UserError

DTYPES = ("float32", "float64", "int32", "int64", "bool")
HOW = "write such as 'float32[8,32,32,3]', 'float32[8,32,32,channels=3]' or 'int32[4,12]<1000'"


@dataclass(frozen=True)
class InputSpec:
    """channels: whether the last axis is one of channels, which PyTorch has as its second.

    above, below: limits of integers, which are not among them.
    """

    dtype: str
    shape: tuple[int, ...]
    channels: bool
    above: int
    below: int


def parse_input_spec(name: str, text: str) -> InputSpec:
    """Read what describes an input. Raises UserError."""
    match = re.fullmatch(r"(\w+)\[((?:\d+,)*)(channels=)?(\d+)\](?:(?:>(\d+))?<(\d+))?", text.replace(" ", ""))
    if not match:
        raise UserError(f"inputs.{name}={text}: not a dtype with a shape; {HOW}")
    dtype, axes, channels, last, above, below = match.groups()
    if dtype not in DTYPES:
        raise UserError(f"inputs.{name}={text}: no such dtype; there are {', '.join(DTYPES)}")
    shape = (*(int(axis) for axis in axes.split(",")[:-1]), int(last))
    if 0 in shape:
        raise UserError(f"inputs.{name}={text}: a size must be at least 1")
    if channels and len(shape) == 1:
        raise UserError(f"inputs.{name}={text}: channels= needs an axis before it, such as float32[8,channels=3]")
    integer = dtype.startswith("int")
    least = int(above) + 1 if above else 0
    if integer != (below is not None) or int(below or 1) <= least and integer:
        limit = (
            "needs a limit above its values, such as <1000 or >0<1000"
            if integer
            else "has no limit; only integers have"
        )
        raise UserError(f"inputs.{name}={text}: {limit}")
    return InputSpec(dtype, shape, channels is not None, least - 1, int(below or 0))


def draw_inputs(inputs: Mapping[str, InputSpec], seed: int) -> dict[str, np.ndarray]:
    """Arrays with channels last. Floats are normal and float64, as everything is computed in that."""
    stream = np.random.default_rng(seed)
    drawn: dict[str, np.ndarray] = {}
    for name, each in inputs.items():
        if each.dtype.startswith("float"):
            drawn[name] = stream.standard_normal(each.shape)
        elif each.dtype == "bool":
            drawn[name] = stream.random(each.shape) < 0.5
        else:
            drawn[name] = stream.integers(each.above + 1, each.below, each.shape).astype(each.dtype)
    return drawn
