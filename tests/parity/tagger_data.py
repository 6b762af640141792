"""Random sequences with a class for each token. Some examples have few labels, and some none."""

from pathlib import Path

import numpy as np

TOKENS = 12


def write(directory: Path) -> None:
    """Write train.npz and validation.npz: x float32 [n, TOKENS, 6], labels int32 [n, TOKENS], -100 for no label."""
    stream = np.random.default_rng(0)
    directory.mkdir(parents=True, exist_ok=True)
    for name, count in (("train", 90), ("validation", 40)):
        x = stream.standard_normal((count, TOKENS, 6)).astype(np.float32)
        labels = x[..., :3].argmax(-1).astype(np.int32)
        labels[stream.random((count, TOKENS)) < np.linspace(0, 1, count)[:, None]] = -100
        np.savez(directory / f"{name}.npz", x=x, labels=labels)
