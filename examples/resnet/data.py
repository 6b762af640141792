"""Data for the ResNet: the handwritten digits that scikit-learn comes with, enlarged to 16 x 16.

Run python -m examples.resnet.data DIRECTORY
"""

import sys
from pathlib import Path

import numpy as np
from sklearn.datasets import load_digits


def write(directory: Path) -> None:
    """Write train.npz and validation.npz: images float32 [n, 16, 16, 1], labels int64 [n]."""
    digits = load_digits()
    images = np.kron(digits.images / 16, np.ones((1, 2, 2)))[..., None].astype(np.float32)
    directory.mkdir(parents=True, exist_ok=True)
    for name, part in (("train", slice(0, 1500)), ("validation", slice(1500, None))):
        np.savez(directory / f"{name}.npz", images=images[part], labels=digits.target[part])


if __name__ == "__main__":
    write(Path(sys.argv[1]))
