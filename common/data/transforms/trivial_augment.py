"""TrivialAugment: one random operation of random strength for each image, with the operations of TrivialAugmentWide."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, NamedTuple, Self

import numpy as np
from typing_extensions import override

from common.data.transforms.image_transforms import ImageTransform
from common.data.transforms.transform import KEY, Example, is_number, read_levels, require
from common.errors import UserError

if TYPE_CHECKING:
    from PIL.Image import Image

STRENGTHS = 31  # the number of strengths of each operation
LEVELS = 255  # the value of white


class Draw(NamedTuple):
    """The operation of an image, and its strength, with a sign."""

    operation: str
    strength: float


def _transform(matrix: tuple[float, ...], image: "Image", fill: int) -> "Image":
    """Return the image whose pixel (x, y) is the nearest pixel at `matrix` (x, y, 1) of the old one."""
    from PIL import Image

    return image.transform(
        image.size, Image.Transform.AFFINE, matrix, Image.Resampling.NEAREST, fillcolor=_make_color(image, fill)
    )


def _rotate(angle: float, image: "Image", fill: int) -> "Image":
    return image.rotate(angle, fillcolor=_make_color(image, fill))


def _make_color(image: "Image", fill: int) -> int | tuple[int, ...]:
    return fill if image.mode == "L" else (fill,) * 3


def _enhance(kind: str, strength: float, image: "Image", fill: int) -> "Image":
    from PIL import ImageEnhance

    enhance: Callable[[Image], ImageEnhance._Enhance] = getattr(ImageEnhance, kind)
    return enhance(image).enhance(1 + strength)


def _operate(kind: str, image: "Image", *arguments: float) -> "Image":
    from PIL import ImageOps

    operate: Callable[..., Image] = getattr(ImageOps, kind)
    return operate(image, *arguments)


def _spread(start: float, end: float) -> tuple[float, ...]:
    """Return the strengths from `start` to `end`, rounded as torch.linspace rounds them.

    Torchvision cuts off the digits of a translation after the point: 15.999999 is 15.
    """
    step, numbers = float(np.float32(end - start) / np.float32(STRENGTHS - 1)), np.arange(STRENGTHS)
    strengths = np.where(numbers < STRENGTHS // 2, start + numbers * step, end - numbers[::-1] * step)
    return tuple(strengths.astype(np.float32).tolist())


LINEAR, PIXELS = _spread(0, 0.99), _spread(0, 32)
# Each operation by name: its strengths, whether they get a random sign, and a function of strength, image and fill
OPERATIONS: dict[str, tuple[tuple[float, ...], bool, Callable[[float, "Image", int], "Image"]]] = {
    "identity": ((0.0,), False, lambda strength, image, fill: image),
    "shear_x": (LINEAR, True, lambda strength, image, fill: _transform((1, strength, 0, 0, 1, 0), image, fill)),
    "shear_y": (LINEAR, True, lambda strength, image, fill: _transform((1, 0, 0, strength, 1, 0), image, fill)),
    "translate_x": (
        PIXELS,
        True,
        lambda strength, image, fill: _transform((1, 0, -int(strength), 0, 1, 0), image, fill),
    ),
    "translate_y": (
        PIXELS,
        True,
        lambda strength, image, fill: _transform((1, 0, 0, 0, 1, -int(strength)), image, fill),
    ),
    "rotate": (_spread(0, 135), True, _rotate),
    **{
        name: (LINEAR, True, partial(_enhance, kind))
        for name, kind in (
            ("brightness", "Brightness"),
            ("color", "Color"),
            ("contrast", "Contrast"),
            ("sharpness", "Sharpness"),
        )
    },
    "posterize": (
        tuple(8.0 - round(number / ((STRENGTHS - 1) / 6)) for number in range(STRENGTHS)),
        False,
        lambda strength, image, fill: _operate("posterize", image, int(strength)),
    ),
    "solarize": (
        _spread(255, 0),
        False,
        lambda strength, image, fill: _operate("solarize", image, strength),
    ),
    "auto_contrast": ((0.0,), False, lambda strength, image, fill: _operate("autocontrast", image)),
    "equalize": ((0.0,), False, lambda strength, image, fill: _operate("equalize", image)),
}


@dataclass(frozen=True)
class TrivialAugment(ImageTransform):
    """Apply one of 14 operations, with a strength, both drawn uniformly (Mueller and Hutter, 2021).

    Images are integers from 0 to 255, or floats from 0 to 1, which are rounded to 256 levels. `fill`, from 0 to 255, is
    the value of pixels that come from outside the image.
    """

    training_only = True

    fill: int = 0

    def __post_init__(self) -> None:
        is_level = isinstance(self.fill, int) and is_number(self.fill, 0, LEVELS)
        require(is_level, "trivial_augment: fill", self.fill, "a whole number from 0 to 255")

    @override
    def bind(self, example: Example) -> Self:
        bound = super().bind(example)
        for name in bound.arrays:
            require(
                (channels := example[name].shape[-1]) in (1, 3),
                f"trivial_augment: the channels of {name}",
                channels,
                "1 or 3; name other images in arrays",
            )
        if labels := [name for name in self.ignored_labels if example[name].ndim >= 2]:
            raise UserError(
                f"{KEY}: trivial_augment: would leave {labels[0]} where they are; use flips and crops, which "
                "move labels of pixels"
            )
        shape = example[bound.arrays[0]].shape[:2]
        others = [key for key in example if key not in (*bound.arrays, *self.ignored_labels)]
        if not self.arrays and (planes := [key for key in others if example[key].shape == shape]):
            raise UserError(
                f"{KEY}: trivial_augment: would leave {planes[0]} where they are, which have the height and width of "
                f"{bound.arrays[0]}; if that is right, give {{trivial_augment: {{arrays: [{bound.arrays[0]}]}}}}"
            )
        return bound

    @override
    def draw(self, height: int, width: int, generator: np.random.Generator) -> Draw:
        operation = list(OPERATIONS)[generator.integers(len(OPERATIONS))]
        strengths, is_signed, _ = OPERATIONS[operation]
        strength = strengths[generator.integers(len(strengths))]
        return Draw(operation, -strength if is_signed and generator.integers(2) else strength)

    @override
    def apply(self, image: np.ndarray, draw: Draw, name: str) -> np.ndarray:
        from PIL import Image

        is_float = image.dtype.kind == "f"
        if is_float and not (image.min() >= 0 and image.max() <= 1):  # nan is neither
            raise UserError(
                f"{KEY}: trivial_augment: needs floats from 0 to 1, but {name} has {image.min():g} to {image.max():g}; "
                "put normalize after it"
            )
        levels = np.rint(image * LEVELS).astype(np.uint8) if is_float else read_levels(self.title(), name, image)
        height, width, channels = levels.shape
        mode = "L" if channels == 1 else "RGB"
        # Image.fromarray takes twice as long.
        pillow_image = Image.frombuffer(mode, (width, height), np.ascontiguousarray(levels), "raw", mode, 0, 1)
        _, _, operate = OPERATIONS[draw.operation]
        result = np.asarray(operate(draw.strength, pillow_image, self.fill)).reshape(image.shape)
        values = result.astype(image.dtype)
        return values / image.dtype.type(LEVELS) if is_float else values
