"""Interface of transforms, and the values that they share."""

from collections.abc import Mapping
from typing import Any, ClassVar, Protocol

import numpy as np

from common.errors import UserError

Example = dict[str, np.ndarray]  # one example by the names of its arrays, among them `labels`
KEY = "data.transforms"

# The arrays that are labels, by name, with the label that has no loss; None if all labels have one.
IgnoredLabels = Mapping[str, int | None]
ONE_LABEL: IgnoredLabels = {"labels": None}


class Transform(Protocol):
    """A function of one example and a generator of random numbers.

    `training_only` says whether evaluations leave the transform out, unless the config asks for it.
    """

    training_only: ClassVar[bool]

    def bind(self, example: Example) -> "Transform":
        """Return the transform for examples like `example`. Raise UserError if the transform does not fit."""

    def __call__(self, example: Example, generator: np.random.Generator) -> Example:
        """Return the transformed example."""


def require(condition: bool, name: str, value: object, limits: str) -> None:
    """Raise UserError for an argument of a transform if the condition is false."""
    if not condition:
        raise UserError(f"{KEY}: {name}={value}: must be {limits}")


def is_number(value: object, at_least: float = 0.0, at_most: float = float("inf")) -> bool:
    """Check whether a value is a finite number within the limits."""
    is_finite = isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < float("inf")
    return is_finite and at_least <= value <= at_most  # type: ignore[operator]  # it is a number


def check_ignored_label(name: str, labels: np.ndarray, ignored_label: int | None) -> None:
    """Raise UserError if a transform has no label for positions that have no loss. labels: an array of an example."""
    if labels.dtype.kind == "f" or ignored_label is None:
        reason = (
            "the labels are numbers" if labels.dtype.kind == "f" else "set task.ignore_label, or that of the output"
        )
        raise UserError(f"{KEY}: {name}: needs a label for positions without a loss, which the task ignores; {reason}")


def require_probability(name: str, probability: object) -> None:
    """Raise UserError unless the probability of a transform is a number from 0 to 1."""
    require(is_number(probability, 0, 1), f"{name}: probability", probability, "from 0 to 1")


def require_range(name: str, limits: Any, at_most: float = float("inf")) -> None:  # noqa: ANN401  what a user may write
    """Raise UserError unless an argument is [smallest, largest], two numbers above 0."""
    is_range = isinstance(limits, list | tuple) and len(limits) == 2 and all(is_number(x) for x in limits)
    expected = f"[smallest, largest], above 0{f' and at most {at_most:g}' if at_most < float('inf') else ''}"
    require(is_range and 0 < limits[0] <= limits[1] <= at_most, name, limits, expected)


def read_size(name: str, size: Any) -> tuple[int, int]:  # noqa: ANN401  what a user may write
    """Return height and width from a number or from two numbers."""
    sizes = [size, size] if isinstance(size, int) else size
    is_size = isinstance(sizes, list | tuple) and len(sizes) == 2
    require(
        is_size and all(isinstance(x, int) and not isinstance(x, bool) and x > 0 for x in sizes),
        *(name, size, "a number of pixels, or [height, width]"),
    )
    height, width = sizes
    return height, width


def read_levels(transform: str, name: str, image: np.ndarray) -> np.ndarray:
    """Return an image of integers, as uint8. The split returns the uint8 images of a file as int32.

    Raises:
        UserError: A pixel is not from 0 to 255.
    """
    if image.dtype.kind not in "iu" or image.min() < 0 or image.max() > np.iinfo(np.uint8).max:
        raise UserError(
            f"{KEY}: {transform}: needs floats, or integers from 0 to 255, but {name} has {image.dtype} from "
            f"{image.min()} to {image.max()}; put normalize before it, or name other images in arrays"
        )
    return image.astype(np.uint8)


def describe_arrays(example: Mapping[str, np.ndarray]) -> str:
    """Return the names, types and shapes of an example's arrays as text, such as "images float32 [8, 8, 1]"."""
    return ", ".join(f"{name} {array.dtype} {[*array.shape]}" for name, array in example.items())
