"""Transforms that resize images by Pillow's bilinear filter, and labels of pixels to the nearest label."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from typing_extensions import override

from common.data.transforms.image_transforms import ImageTransform
from common.data.transforms.transform import read_levels, read_size, require, require_range

CROP_ATTEMPTS = 10


@dataclass(frozen=True)
class Resize(ImageTransform):
    """Resize images by Pillow's bilinear filter, and labels of pixels to the nearest label.

    With `antialias` the filter grows with the factor by which an image shrinks. Without `antialias`, a pixel is
    interpolated from the four nearest ones, as `tf.image.resize` and `torch.nn.functional.interpolate` do by default.
    Pillow rounds the pixels of images of integers.
    """

    training_only = False
    moves_pixels = True

    size: Any
    antialias: bool = True

    def __post_init__(self) -> None:
        name = self.title()
        read_size(f"{name}: size", self.size)
        require(isinstance(self.antialias, bool), f"{name}: antialias", self.antialias, "true or false")

    @override
    def apply(self, image: np.ndarray, draw: Any, name: str) -> np.ndarray:
        rows, columns = read_size(f"{self.title()}: size", self.size)
        height, width = image.shape[:2]
        if name in self.ignored_labels:
            nearest = [((np.arange(n) + 0.5) * (m / n)).astype(int) for n, m in ((rows, height), (columns, width))]
            return image[np.ix_(*nearest)]
        dtype, channels = image.dtype, image.shape[2:]  # an array [height, width] is one plane
        # A function of the user may return float64.
        image = image.astype(np.float32, copy=False) if dtype.kind == "f" else read_levels(self.title(), name, image)
        if image.dtype == np.uint8 and channels == (3,):
            pixels = self._resize_image("RGB", image, rows, columns)
        else:  # Pillow has no images of several channels of floats
            mode = "F" if dtype.kind == "f" else "L"
            planes = image.reshape(height, width, -1).transpose(2, 0, 1)
            pixels = np.empty((rows, columns, len(planes)), image.dtype)
            for channel, plane in enumerate(planes):
                pixels[..., channel] = self._resize_image(mode, plane, rows, columns)
        return pixels.reshape(rows, columns, *channels).astype(dtype)  # a copy, because Pillow's arrays are read-only

    def _resize_image(self, mode: str, image: np.ndarray, rows: int, columns: int) -> np.ndarray:
        """Return an image of a mode of Pillow in another size."""
        from PIL import Image

        height, width = image.shape[:2]
        # Image.fromarray takes twice as long.
        source = Image.frombuffer(mode, (width, height), np.ascontiguousarray(image), "raw", mode, 0, 1)
        if self.antialias:
            return np.asarray(source.resize((columns, rows), Image.Resampling.BILINEAR))
        coefficients = (width / columns, 0, 0, 0, height / rows, 0)
        bilinear = Image.Resampling.BILINEAR
        return np.asarray(source.transform((columns, rows), Image.Transform.AFFINE, coefficients, resample=bilinear))


@dataclass(frozen=True)
class RandomResizedCrop(Resize):
    """Cut out a random rectangle and resize it, as torchvision chooses the rectangle.

    `scale` limits the rectangle's share of the image, and `ratio` its width divided by its height.
    """

    training_only = True

    scale: Sequence[float] = (0.08, 1.0)
    ratio: Sequence[float] = (3 / 4, 4 / 3)

    def __post_init__(self) -> None:
        super().__post_init__()
        require_range("random_resized_crop: scale", self.scale, 1.0)
        require_range("random_resized_crop: ratio", self.ratio)

    @override
    def draw(self, height: int, width: int, generator: np.random.Generator) -> tuple[slice, slice]:
        for _ in range(CROP_ATTEMPTS):
            area = height * width * generator.uniform(self.scale[0], self.scale[1])
            ratio = math.exp(generator.uniform(math.log(self.ratio[0]), math.log(self.ratio[1])))
            rows, columns = round(math.sqrt(area / ratio)), round(math.sqrt(area * ratio))
            if 0 < rows <= height and 0 < columns <= width:
                top = int(generator.integers(0, height - rows, endpoint=True))
                left = int(generator.integers(0, width - columns, endpoint=True))
                return slice(top, top + rows), slice(left, left + columns)
        # The largest rectangle in the middle whose ratio is within the limits.
        rows = min(height, max(1, round(width / self.ratio[0])))
        columns = min(width, max(1, round(height * self.ratio[1])))
        top, left = (height - rows) // 2, (width - columns) // 2
        return slice(top, top + rows), slice(left, left + columns)

    @override
    def apply(self, image: np.ndarray, draw: tuple[slice, slice], name: str) -> np.ndarray:
        return super().apply(image[draw], draw, name)
