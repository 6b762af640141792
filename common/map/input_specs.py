"""Descriptions of a model's inputs: `float32[8,16]`, `float32[8,32,32,channels=3]`, `int32[4,12]<1000`."""

import re
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from common.errors import UserError

PATTERN = r"(\w+)\[((?:\d+,)*)(channels=)?(\d+)(,prefix)?\](?:(?:>(\d+))?<(\d+))?"
DTYPES = ("float32", "float64", "int32", "int64", "bool")
EXAMPLES = "write for example 'float32[8,32,32,3]', 'float32[8,32,32,channels=3]' or 'int32[4,12]<1000'"


@dataclass(frozen=True)
class InputSpec:
    """The dtype, the shape and the limits of an input.

    Attributes:
        dtype: One of DTYPES.
        shape: The shape with channels last.
        channels: Whether the last axis has channels, which PyTorch's model gets as its second axis.
        above: The integers are greater than this number.
        below: The integers are less than this number.
        prefix: Whether the array is a mask of padding: ones up to a random length of the last axis, and zeros after it.
        open_axes: The axes whose sizes differ from batch to batch, so that a compiled step does not know them. The
            inputs of a custom model set them; a parsed description has none.
    """

    dtype: str
    shape: tuple[int, ...]
    channels: bool
    above: int
    below: int
    prefix: bool = False
    open_axes: tuple[int, ...] = ()


def parse_input_spec(name: str, text: str) -> InputSpec:
    """Parse the description of an input. Raise UserError if it is malformed."""
    match = re.fullmatch(PATTERN, text.replace(" ", ""))
    if not match:
        raise UserError(f"inputs.{name}={text}: not a dtype with a shape; {EXAMPLES}")
    dtype, axes, channels, last_axis, prefix, above, below = match.groups()
    if dtype not in DTYPES:
        raise UserError(f"inputs.{name}={text}: unknown dtype; use one of {', '.join(DTYPES)}")
    shape = (*(int(axis) for axis in axes.split(",")[:-1]), int(last_axis))
    if 0 in shape:
        raise UserError(f"inputs.{name}={text}: every size must be at least 1")
    if channels and len(shape) == 1:
        raise UserError(f"inputs.{name}={text}: channels= needs an axis before it, such as float32[8,channels=3]")
    if prefix and (dtype.startswith("float") or below is not None):
        raise UserError(
            f"inputs.{name}={text}: prefix is for a mask of bools or of integers without limits, such as "
            "bool[4,12,prefix] or int32[4,12,prefix]"
        )
    smallest = int(above) + 1 if above else 0
    if dtype.startswith("int") and not prefix:
        if below is None or int(below) <= smallest:
            raise UserError(f"inputs.{name}={text}: needs a limit above its values, such as <1000 or >0<1000")
        if int(below) - 1 > np.iinfo(dtype).max:
            raise UserError(f"inputs.{name}={text}: {dtype} cannot hold its values; lower the limit or use int64")
    elif below is not None:
        raise UserError(f"inputs.{name}={text}: takes no limit (<{below}); only integers do")
    return InputSpec(dtype, shape, channels is not None, smallest - 1, int(below or 0), prefix is not None)


def draw_inputs(inputs: Mapping[str, InputSpec], seed: int) -> dict[str, np.ndarray]:
    """Draw arrays with channels last. Floats are normally distributed, and float64 because the models compute in it."""
    stream = np.random.default_rng(seed)
    arrays: dict[str, np.ndarray] = {}
    for name, spec in inputs.items():
        if spec.dtype.startswith("float"):
            arrays[name] = stream.standard_normal(spec.shape)
        elif spec.prefix:
            lengths = stream.integers(1, spec.shape[-1] + 1, (*spec.shape[:-1], 1))
            arrays[name] = (np.arange(spec.shape[-1]) < lengths).astype(spec.dtype)
        elif spec.dtype == "bool":
            arrays[name] = stream.random(spec.shape) < 0.5
        else:
            arrays[name] = stream.integers(spec.above + 1, spec.below, spec.shape).astype(spec.dtype)
    return arrays


def note_equal_values(inputs: Mapping[str, InputSpec], arrays: Mapping[str, np.ndarray]) -> list[str]:
    """Return a sentence for each input of integers or bools whose drawn values are all equal."""
    return [
        f"inputs.{name}: all values are {int(arrays[name].flat[0])}, so the proof does not show what the models do "
        f"with other values; for a mask, write {spec.dtype}[{','.join(map(str, spec.shape))},prefix]"
        for name, spec in inputs.items()
        if arrays[name].dtype.kind in "bi" and arrays[name].size > 1 and len(np.unique(arrays[name])) == 1
    ]
