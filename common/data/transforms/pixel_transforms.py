"""Transforms of images that compute new values of pixels."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
from typing_extensions import override

from common.data.transforms.image_transforms import ImageTransform
from common.data.transforms.transform import KEY, Example, is_number, require, require_probability, require_range
from common.errors import UserError

LUMA = np.array([0.2989, 0.587, 0.114], np.float32)  # weights of red, green and blue in a gray image, of torchvision
ERASE_ATTEMPTS = 10


@dataclass(frozen=True)
class FloatImageTransform(ImageTransform):
    """Base of the transforms that need images of floats."""

    @override
    def bind(self, example: Example) -> Self:
        bound = super().bind(example)
        for name in bound.arrays:
            if example[name].dtype.kind != "f":
                raise UserError(
                    f"{KEY}: {self.title()}: {name} has the type {example[name].dtype}; put normalize before it, such "
                    "as {normalize: {mean: [0], std: [255]}}"
                )
        return bound


@dataclass(frozen=True)
class ColorJitter(FloatImageTransform):
    """Change brightness and then contrast of images from 0 to 1, each by a random factor, as torchvision computes them.

    A factor is drawn uniformly from max(0, 1 - x) to 1 + x, where x is `brightness` or `contrast`.
    """

    training_only = True

    brightness: float = 0.0
    contrast: float = 0.0

    def __post_init__(self) -> None:
        for name in ("brightness", "contrast"):
            value = getattr(self, name)
            require(is_number(value), f"color_jitter: {name}", value, "a number, at least 0")

    @override
    def draw(self, height: int, width: int, generator: np.random.Generator) -> list[np.float32]:
        return [np.float32(generator.uniform(max(0.0, 1 - x), 1 + x)) for x in (self.brightness, self.contrast)]

    @override
    def apply(self, image: np.ndarray, draw: list[np.float32], name: str) -> np.ndarray:
        brightness, contrast = draw
        if self.brightness:
            image = np.clip(image * brightness, 0, 1)
        if self.contrast:
            gray = image @ LUMA if image.shape[-1] == len(LUMA) else image
            image = np.clip(contrast * image + (1 - contrast) * gray.mean(dtype=np.float32), 0, 1)
        return image


@dataclass(frozen=True)
class RandomErase(FloatImageTransform):
    """Set a random rectangle to a value, with a probability (Zhong et al., 2020), as torchvision chooses it.

    `scale` limits the rectangle's share of the image, and `ratio` its height divided by its width.
    """

    training_only = True

    probability: float = 0.5
    scale: Sequence[float] = (0.02, 0.33)
    ratio: Sequence[float] = (0.3, 3.3)
    value: float = 0.0

    def __post_init__(self) -> None:
        require_probability(self.title(), self.probability)
        require(is_number(self.value, -float("inf")), "random_erase: value", self.value, "a number")
        require_range("random_erase: scale", self.scale, 1.0)
        require_range("random_erase: ratio", self.ratio)

    @override
    def draw(self, height: int, width: int, generator: np.random.Generator) -> tuple[slice, slice] | None:
        if generator.random() >= self.probability:
            return None
        for _ in range(ERASE_ATTEMPTS):
            area = height * width * generator.uniform(self.scale[0], self.scale[1])
            ratio = math.exp(generator.uniform(math.log(self.ratio[0]), math.log(self.ratio[1])))
            rows, columns = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
            if rows < height and columns < width:
                top = generator.integers(0, height - rows, endpoint=True)
                left = generator.integers(0, width - columns, endpoint=True)
                return slice(top, top + rows), slice(left, left + columns)
        return None

    @override
    def apply(self, image: np.ndarray, draw: tuple[slice, slice] | None, name: str) -> np.ndarray:
        if draw is not None:
            image = image.copy()
            image[draw] = self.value
        return image


@dataclass(frozen=True)
class Normalize(ImageTransform):
    """Compute (image - mean) / std in float32, with a number for each channel, or one for all of them."""

    training_only = False

    mean: Sequence[float]
    std: Sequence[float]

    def __post_init__(self) -> None:
        for name, least in (("mean", -float("inf")), ("std", 0.0)):
            numbers = getattr(self, name)
            is_list = isinstance(numbers, list | tuple) and len(numbers) > 0
            require(
                is_list and all(is_number(x, least) and (name == "mean" or x > 0) for x in numbers),
                *(f"normalize: {name}", numbers, "a list of numbers" + (" above 0" if name == "std" else "")),
            )

    @override
    def bind(self, example: Example) -> Self:
        bound = super().bind(example)
        channels = example[bound.arrays[0]].shape[-1]
        for name in ("mean", "std"):
            numbers = getattr(self, name)
            require(
                len(numbers) in (1, channels),
                f"normalize: {name}",
                numbers,
                f"one number, or one for {channels} channels",
            )
        return bound

    @override
    def apply(self, image: np.ndarray, draw: None, name: str) -> np.ndarray:
        mean, std = (np.asarray(numbers, np.float32) for numbers in (self.mean, self.std))
        return (image.astype(np.float32, copy=False) - mean) / std
