"""Transforms of images that compute new values of pixels."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
from typing_extensions import override

from common.data.transforms.image_transforms import ImageTransform
from common.data.transforms.transform import KEY, Example, is_number, require, require_probability, require_range
from common.errors import UserError

LUMA = np.array([0.2989, 0.587, 0.114], np.float32)  # weights of red, green and blue in a gray image, of torchvision
RGB = len(LUMA)  # number of channels of a color image
SMALLEST = np.finfo(np.float32).tiny  # above 0
SMALLEST_AT = np.array([3, 5, 1], np.float32)  # sectors in which red, green and blue are smallest
MAX_HUE = 0.5  # half of the circle of hues
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
    """Change the colors of images from 0 to 1 by random amounts, as torchvision computes them for tensors.

    A factor is drawn uniformly from max(0, 1 - x) to 1 + x, where x is `brightness`, `contrast` or `saturation`, and a
    part of the circle of hues from -`hue` to `hue`. Brightness comes before contrast; with `saturation` or `hue`, all
    changes have a random order, as in torchvision.
    """

    training_only = True

    brightness: float = 0.0
    contrast: float = 0.0
    saturation: float = 0.0
    hue: float = 0.0

    def __post_init__(self) -> None:
        for name in ("brightness", "contrast", "saturation"):
            value = getattr(self, name)
            require(is_number(value), f"color_jitter: {name}", value, "a number, at least 0")
        require(is_number(self.hue) and self.hue <= MAX_HUE, "color_jitter: hue", self.hue, "a number from 0 to 0.5")

    @override
    def bind(self, example: Example) -> Self:
        bound = super().bind(example)
        for name in bound.arrays:
            channels, values = example[name].shape[-1], example[name]
            if (self.saturation or self.hue) and channels not in (1, RGB):
                raise UserError(
                    f"{KEY}: color_jitter: {name} has {channels} channels; saturation and hue need red, green and blue"
                )
            if values.size and not 0 <= values.min() <= values.max() <= 1:
                raise UserError(
                    f"{KEY}: color_jitter: {name} has values from {values.min():.3g} to {values.max():.3g}, but must "
                    "have values from 0 to 1; put normalize after it, or {normalize: {mean: [0], std: [255]}} before it"
                )
        return bound

    @override
    def draw(self, height: int, width: int, generator: np.random.Generator) -> dict[str, np.float32]:
        """Draw the amount of each change, by its name, in the order of the changes."""
        names, centers = ["brightness", "contrast"], [1.0, 1.0]
        if self.saturation or self.hue:
            names, centers = [*names, "saturation", "hue"], [*centers, 1.0, 0.0]
        limits = [getattr(self, name) for name in names]
        amounts = {
            name: np.float32(generator.uniform(max(0.0, center - limit) if center else -limit, center + limit))
            for name, center, limit in zip(names, centers, limits, strict=True)
        }
        if self.saturation or self.hue:
            names = [names[index] for index in generator.permutation(len(names))]
        return {name: amounts[name] for name in names if getattr(self, name)}

    @override
    def apply(self, image: np.ndarray, draw: dict[str, np.float32], name: str) -> np.ndarray:
        for change, amount in draw.items():
            image = CHANGES[change](image, amount)
        return image


def _compute_gray(image: np.ndarray) -> np.ndarray:
    """Return the gray image [height, width, 1] of a color image, and all other images as they are."""
    return image @ LUMA[:, None] if image.shape[-1] == RGB else image


def _change_brightness(image: np.ndarray, factor: np.float32) -> np.ndarray:
    return (image * factor).clip(0, 1)


def _change_contrast(image: np.ndarray, factor: np.float32) -> np.ndarray:
    return (factor * image + (1 - factor) * _compute_gray(image).mean(dtype=np.float32)).clip(0, 1)


def _change_saturation(image: np.ndarray, factor: np.float32) -> np.ndarray:
    return (factor * image + (1 - factor) * _compute_gray(image)).clip(0, 1) if image.shape[-1] == RGB else image


def _shift_hue(image: np.ndarray, shift: np.float32) -> np.ndarray:
    """Move the hue of each pixel along the circle of hues, whose length is 1. Value and saturation stay.

    Source: Smith, Color Gamut Transform Pairs (1978), the hexcone model.
    """
    if image.shape[-1] != RGB:
        return image
    red, green, blue = np.ascontiguousarray(image.transpose(2, 0, 1))
    value, smallest = np.maximum(np.maximum(red, green), blue), np.minimum(np.minimum(red, green), blue)
    chroma = value - smallest
    divisor = np.maximum(chroma, SMALLEST)  # gray pixels have no hue, and stay as they are for any
    sector = np.where(value == green, (blue - red) / divisor + 2, (red - green) / divisor + 4)
    sector = np.where(value == red, (green - blue) / divisor, sector)  # from -1 to 5
    # The distance of each pixel from the place on the circle of 6 sectors at which a channel is smallest
    distance = np.abs(sector + ((6 * shift - SMALLEST_AT + 4) % 6 - 4)[:, None, None])
    lack = (2 - np.minimum(distance, 6 - distance)).clip(0, 1)
    return np.ascontiguousarray((value - chroma * lack).transpose(1, 2, 0))


CHANGES: dict[str, Callable[[np.ndarray, np.float32], np.ndarray]] = {
    "brightness": _change_brightness,
    "contrast": _change_contrast,
    "saturation": _change_saturation,
    "hue": _shift_hue,
}


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
