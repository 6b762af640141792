"""Random numbers that describe each example twice, and a third time an example that is close to it."""

from pathlib import Path

import numpy as np


def write(directory: Path) -> None:
    """Write train.npz and validation.npz: text [n, 4], image and other [n, 6], without labels."""
    stream = np.random.default_rng(0)
    directory.mkdir(parents=True, exist_ok=True)
    projection = stream.standard_normal((4, 6))
    for name, count in (("train", 95), ("validation", 40)):  # the last batch of an epoch has 2 examples
        text = stream.standard_normal((count, 4)).astype(np.float32)
        image, other = (np.tanh((text + noise * stream.standard_normal((count, 4))) @ projection) for noise in (0, 0.5))
        np.savez(directory / f"{name}.npz", text=text, image=image, other=other)
