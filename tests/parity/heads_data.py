"""Random images with a class for each pixel, a class for each image and a number. Many labels are unknown."""

from pathlib import Path

import numpy as np


def write(directory: Path) -> None:
    """Write train.npz and validation.npz: images, mask, group and age. Unknown labels are -100."""
    stream = np.random.default_rng(0)
    directory.mkdir(parents=True, exist_ok=True)
    for name, count in (("train", 90), ("validation", 40)):
        images = stream.standard_normal((count, 6, 6, 2)).astype(np.float32)
        mask = (images[..., 0] > images[..., 1]).astype(np.int32)
        mask[stream.random(mask.shape) < np.linspace(0, 1, count)[:, None, None]] = -100
        group = images.mean((1, 2)).argmax(1).astype(np.int32)
        group[::3] = -100
        np.savez(directory / f"{name}.npz", images=images, mask=mask, group=group, age=images.max((1, 2, 3)))
