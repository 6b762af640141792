"""Transforms of images, [height, width, channels]. A transform draws random values once for all images of an example.

Transforms that move pixels also move labels of pixels, [height, width] or [height, width, channels].
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Self

import numpy as np
from typing_extensions import override

from common.data.transforms.transform import (
    KEY,
    ONE_LABEL,
    Example,
    IgnoredLabels,
    check_ignored_label,
    describe_arrays,
    is_number,
    read_size,
    require,
    require_probability,
)
from common.errors import UserError


@dataclass(frozen=True)
class ImageTransform:
    """Base of the transforms of images.

    `arrays` are the names of the images and of the labels of pixels. If `arrays` is empty, `bind` fills in the only
    input that is an image, and the labels of pixels.
    """

    training_only: ClassVar[bool]
    moves_pixels: ClassVar[bool] = False  # whether it can be applied to labels of pixels

    arrays: Sequence[str] = field(default=(), kw_only=True)
    ignored_labels: IgnoredLabels = field(default_factory=lambda: ONE_LABEL, kw_only=True)

    def bind(self, example: Example) -> Self:
        """Return the transform with the names of the arrays. Raise UserError if the examples have no such images."""
        name = type(self).title()
        labels = self.ignored_labels
        arrays = list(self.arrays) or [key for key, array in example.items() if array.ndim == 3 and key not in labels]
        axes = (2, 3) if self.moves_pixels else (3,)
        if (not self.arrays and len(arrays) != 1) or any(
            key not in example or example[key].ndim not in axes for key in arrays
        ):
            raise UserError(
                f"{KEY}: {name}: needs images [height, width, channels], but an example has {describe_arrays(example)};"
                f" name them as {{{name}: {{arrays: [NAME]}}}}"
            )
        shape = example[arrays[0]].shape[:2]
        others = [key for key, array in example.items() if key not in (*arrays, *labels) and array.shape == shape]
        if self.moves_pixels and not self.arrays and others:
            raise UserError(
                f"{KEY}: {name}: may have to move {others[0]}, too, which has the height and width of {arrays[0]}; "
                f"name what it moves as {{{name}: {{arrays: [{arrays[0]}, NAME]}}}}"
            )
        for label in labels if self.moves_pixels else ():
            if label in arrays or example[label].ndim < 2:
                continue
            if self.arrays or example[label].shape[:2] != shape:
                raise UserError(
                    f"{KEY}: {name}: would leave {label} where they are; an example has {describe_arrays(example)}; "
                    "name labels of pixels in arrays, too, and give them the height and width of the image"
                )
            arrays.append(label)
        if len({example[key].shape[:2] for key in arrays}) > 1:
            raise UserError(f"{KEY}: {name}: {' and '.join(arrays)} have different heights or widths; make them equal")
        return replace(self, arrays=arrays)

    @classmethod
    def title(cls) -> str:
        """Return the name of the transform in the config."""
        return "".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in cls.__name__).lstrip("_")

    def __call__(self, example: Example, generator: np.random.Generator) -> Example:
        """Return the example with transformed images."""
        height, width = example[self.arrays[0]].shape[:2]
        draw = self.draw(height, width, generator)
        moved = {name: self.apply(example[name], draw, name) for name in self.arrays}
        return {**example, **{name: np.ascontiguousarray(array) for name, array in moved.items()}}

    def draw(self, height: int, width: int, generator: np.random.Generator) -> Any:  # noqa: ANN401  see apply
        """Return the random values that all images of an example share; None for a transform without any."""
        return None

    def apply(self, image: np.ndarray, draw: Any, name: str) -> np.ndarray:  # noqa: ANN401  each draws its own
        """Return the transformed image. name: the name of the array, which may be labels of the pixels."""
        raise NotImplementedError


@dataclass(frozen=True)
class RandomCrop(ImageTransform):
    """Add `padding` pixels of the value `fill` on each side, and cut out a random rectangle of the size.

    `size: null` is the size of the image. Labels of pixels are padded with the label that the task ignores.
    """

    training_only = True
    moves_pixels = True

    padding: int = 0
    size: Any = None
    fill: float = 0.0

    def __post_init__(self) -> None:
        is_count = isinstance(self.padding, int) and not isinstance(self.padding, bool) and self.padding >= 0
        require(is_count, "random_crop: padding", self.padding, "a number of pixels, at least 0")
        require(is_number(self.fill, -float("inf")), "random_crop: fill", self.fill, "a number")
        if self.size is not None:
            read_size("random_crop: size", self.size)
        if self.padding == 0 and self.size is None:
            raise UserError(f"{KEY}: random_crop: padding=0: leaves each image as it is; give a padding or a size")

    def _size(self, height: int, width: int) -> tuple[int, int]:
        return (height, width) if self.size is None else read_size("random_crop: size", self.size)

    def _count_places(self, height: int, width: int) -> tuple[int, int]:
        """Return the numbers of rows and columns at which a crop can begin. Raise UserError for a small image."""
        rows, columns = self._size(height, width)
        largest = height + 2 * self.padding, width + 2 * self.padding
        fits = rows <= largest[0] and columns <= largest[1]
        require(fits, "random_crop: size", self.size, f"at most {[*largest]}, the padded image")
        return largest[0] - rows + 1, largest[1] - columns + 1

    @override
    def bind(self, example: Example) -> Self:
        bound = super().bind(example)
        height, width = example[bound.arrays[0]].shape[:2]
        self._count_places(height, width)
        for name in self.ignored_labels if self.padding else ():
            if name in bound.arrays:
                check_ignored_label("random_crop", example[name], self.ignored_labels[name])
        return bound

    @override
    def draw(self, height: int, width: int, generator: np.random.Generator) -> tuple[int, int]:
        tops, lefts = self._count_places(height, width)  # images may have different heights
        return int(generator.integers(0, tops)), int(generator.integers(0, lefts))

    @override
    def apply(self, image: np.ndarray, draw: tuple[int, int], name: str) -> np.ndarray:
        top, left = draw[0] - self.padding, draw[1] - self.padding  # of the crop, in the image without padding
        height, width = image.shape[:2]
        rows, columns = self._size(height, width)
        ignored_label = self.ignored_labels.get(name)
        fill = self.fill if ignored_label is None else ignored_label
        cropped = np.full((rows, columns, *image.shape[2:]), fill, image.dtype)
        first_row, first_column = max(0, -top), max(0, -left)
        part = image[max(0, top) : max(0, top + rows), max(0, left) : max(0, left + columns)]
        cropped[first_row : first_row + part.shape[0], first_column : first_column + part.shape[1]] = part
        return cropped


@dataclass(frozen=True)
class CenterCrop(ImageTransform):
    """Cut out the middle of the image. If a margin is odd, the larger part is below or to the right."""

    training_only = False
    moves_pixels = True

    size: Any

    def __post_init__(self) -> None:
        read_size("center_crop: size", self.size)

    @override
    def apply(self, image: np.ndarray, draw: None, name: str) -> np.ndarray:
        rows, columns = read_size("center_crop: size", self.size)
        fits = rows <= image.shape[0] and columns <= image.shape[1]
        require(fits, "center_crop: size", self.size, f"at most {[*image.shape[:2]]}, the image")
        top, left = (image.shape[0] - rows) // 2, (image.shape[1] - columns) // 2
        return image[top : top + rows, left : left + columns]


@dataclass(frozen=True)
class _Flip(ImageTransform):
    """Reverse an axis of the image with a probability."""

    training_only = True
    moves_pixels = True
    axis: ClassVar[int]

    probability: float = 0.5

    def __post_init__(self) -> None:
        require_probability(self.title(), self.probability)

    @override
    def draw(self, height: int, width: int, generator: np.random.Generator) -> bool:
        return generator.random() < self.probability

    @override
    def apply(self, image: np.ndarray, draw: bool, name: str) -> np.ndarray:
        return np.flip(image, self.axis) if draw else image


@dataclass(frozen=True)
class HorizontalFlip(_Flip):
    """Exchange left and right with a probability."""

    axis = 1


@dataclass(frozen=True)
class VerticalFlip(_Flip):
    """Exchange top and bottom with a probability."""

    axis = 0
